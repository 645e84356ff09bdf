"""Control flow: branches and loops as functions that take functions.

Enters: the user's functions and operands. Leaves: ops with regions, traced by `region`.
Imports: `core`, `ops`, `state`."""
