"""Bundles: models on disk that run without their source.

`export.py` traces functions, or takes what a graph's outputs need, and writes them, frozen if asked
(`freeze.py`); `load.py` reads a bundle and makes compiled functions of it. Between them:
`files.py`, the folder and its checks, `signature.py` and `structure.py`, types and nesting as JSON.
Uses `compile` and `session`; `quantization`, `onnx`, `serving` and `tools` use it."""
