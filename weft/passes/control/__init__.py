"""Passes on branches and loops."""
