"""Frontend: the part of weft that users call. Tensors, ops, `compile`, gradients, `nn`, `train`,
graphs and sessions, the `weft` command. The public names are in `weft/__init__.py`.

Folders, each of which imports only those before it: `core`, `compile`, `eager`, `ops`, `state`,
`control`, `autodiff`, `transforms`, `random`, `sparse`, `nn`, `image`, `metrics`, `optim`, `data`,
`extend`,
`session`, `queues`, `train`, `tools`. Beside them `linalg`, functions of matrices composed from
ops, and `fft`, `lookup`, `initializers` and `losses`, which only give names to users. Enters:
users' code. Leaves: graphs for `runtime`, and results. Imports: all of weft."""
