"""State that outlives a call: variables, resources of the host, and the scopes they are made in.

Enters: initial values, updates, names. Leaves: `Variable`s; ops on variables and on resources in a
graph, or their effect at once. Imports: `core`, `ops`; the objects themselves are in `runtime`."""
