"""`wf.onnx`: ONNX models of other frameworks as functions of weft.

Enters: files, bytes, models of the package `onnx` (the extra `onnx`). Leaves: functions, with their
weights (`load`). Imports: the public functions of weft, and `bundle`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.onnx.model import Model, load

__all__ = ["Model", "load"]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
