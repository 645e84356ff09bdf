"""Reverse-mode differentiation: the sweep over a block, and the gradient of every op.

Enters: a builder with the forward ops. Leaves: the same with gradient ops appended. Imports: `ir`,
`rewriting`, `sizes.py`, `simplify`, `control`. A new op gets its row in one of the tables."""
