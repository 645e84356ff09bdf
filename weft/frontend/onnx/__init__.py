"""`wf.onnx`: ONNX models of other frameworks as functions of weft, and functions of weft as ONNX
models.

Enters: files, bytes, models of the package `onnx` (the extra `onnx`). Leaves: functions, with their
weights (`load`), and files (`save`: `save_table.py` has a row for each op of weft, `save_graph.py`
the graph while it is written). Imports: the public functions of weft, and `bundle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.onnx.model import Model, load
from weft.frontend.onnx.save import save

__all__ = ["Model", "load", "save"]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
