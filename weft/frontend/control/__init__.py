"""Branches and loops as functions that take functions."""
