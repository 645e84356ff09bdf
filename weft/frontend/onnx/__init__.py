"""`wf.onnx`: models as ONNX, for other runtimes.

Enters: functions, modules, graphs. Leaves: files of ONNX (`save`), which the package `onnx` (the
extra `onnx`) makes. `nodes` has a row for each op of weft. Imports: `bundle`, whose way of tracing
and freezing it shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.onnx.save import save

__all__ = ["save"]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
