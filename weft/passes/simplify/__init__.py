"""Local rewrites of straight-line code: folding, CSE, DCE, algebra, effects, sparse updates.

Enters: a graph. Leaves: one with fewer or cheaper ops of the same meaning. Imports: `ir`,
`rewriting` and `sizes`."""
