"""Convolutions, pooling and other ops on windows."""
