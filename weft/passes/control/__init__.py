"""Control flow: simplify branches and loops, lower them to Switch and Merge, cut that into regions.

Enters: a graph with `cond`, `while` and `scan`. Leaves: a simpler one; for the dataflow executor, a
lowered graph and its static regions. Imports: `ir`, `rewriting`, `sizes.py`, `simplify`,
`in_place.py`."""
