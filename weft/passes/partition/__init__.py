"""One graph over several devices becomes one graph for each of them: see `partition.partition`."""
