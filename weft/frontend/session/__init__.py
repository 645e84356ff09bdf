"""Graphs and sessions as in TensorFlow 1."""
