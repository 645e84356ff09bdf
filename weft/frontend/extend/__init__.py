"""Extensions: ops of the user's own, their kernels and gradients, and Python functions in graphs.

Enters: the user's functions. Leaves: rows of the tables of `ir`, `passes` and `codegen`.
Imports: `core`, `ops`."""
