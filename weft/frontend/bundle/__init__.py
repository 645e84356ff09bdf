"""Bundles: models on disk that run without their source.

`export.py` traces functions, or takes fetches of a graph, and writes them; `load.py` reads a bundle
and makes compiled functions of it. Between them: `files.py`, the folder and its checks, and
`structure.py`, how arguments and results nest, as JSON. Uses `compile` and `session`; nothing of
the frontend uses it."""
