"""Python code into graphs, and gradients of traced functions."""
