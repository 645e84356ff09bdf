"""ONNX: models out of weft.

`save.py` writes functions, modules and graphs as ONNX models: `save_table.py` has a row for each op
of weft, `save_graph.py` the graph while it is written. Uses `bundle`; only the extra `onnx` brings
the package that this needs."""

from weft.frontend.onnx.save import save

__all__ = ["save"]
