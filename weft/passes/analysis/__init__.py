"""Analyses: what may be overwritten, and the size of graphs. They change nothing.

Enters: ops and graphs. Leaves: numbers and yes or no. Imports: `ir` and `rewriting`."""
