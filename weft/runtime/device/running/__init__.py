"""Carrying out a plan: memory of a step, recordings, loops, times."""
