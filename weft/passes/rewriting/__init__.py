"""The tools that passes are written with: rebuilding blocks, and arithmetic on IR values.

Enters: blocks, ops and values. Leaves: new blocks that share every op that did not change. Imports:
`ir`, nothing else of `passes`."""
