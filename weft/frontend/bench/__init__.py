"""Microbenchmarks of compiled functions: what `weft bench` and `f.cost` measure, and show."""
