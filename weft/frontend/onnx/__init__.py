"""`wf.onnx`: ONNX models of other frameworks as functions of weft, and functions of weft as ONNX
models.

Enters: files, bytes, models of the package `onnx` (the extra `onnx`). Leaves: functions, with their
weights (`load`: `ops` has a function for each operator), and files (`save`: `nodes` has a row for
each op of weft). Imports: the public functions of weft, and `bundle`, whose way of tracing and
freezing `save` shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.onnx.model import Model, load
from weft.frontend.onnx.save import save

__all__ = ["Model", "load", "save"]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
