"""Analyses: what ops cost, how often loops run, what may be overwritten. They change nothing.

Enters: ops and graphs. Leaves: numbers and yes or no. Imports: `ir`, `rewriting` and `simplify`
(constants are found by `fold.uniform`)."""
