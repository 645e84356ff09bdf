"""Errors as users see them: without weft's own frames, and with the signature of a function that
was called in another library's way.

Applied where user's code that weft runs ends: a call of a compiled function, a gradient, a step of
a session, the block of a graph. WEFT_TRACEBACK=full keeps all frames."""

from __future__ import annotations

import inspect
import os
import re
import sys
from types import TracebackType

from weft.ir.errors import InternalError, WeftError
from weft.ir.locations import is_ours

#: What Python says of a call that does not fit, and the function's name in it.
_MISFIT = re.compile(
    r"(\w+)\(\) (?:got an unexpected keyword argument '(\w+)'|takes|got|missing|got multiple)"
)
#: What calls public functions that `@runs_native` is above.
_WRAPPER = os.path.join("weft", "frontend", "eager", "native.py")
_MODULES = ("", "nn", "linalg", "random", "train", "data", "lookup", "tf1")


def as_seen(error: BaseException) -> None:
    """Take weft's frames out of the error's traceback, and add a hint on a misfit call.

    All frames stay of what may be a fault of weft: InternalError, and an error of another kind that
    was raised in weft's code.
    """
    frames = _frames(error.__traceback__)
    if not frames:
        return
    calls = [tb.tb_frame.f_code.co_filename for tb in frames]
    if calls[-1].endswith(_WRAPPER):
        del calls[-1]
    in_weft = not calls or is_ours(calls[-1])
    if isinstance(error, InternalError) or (in_weft and not isinstance(error, WeftError)):
        return
    if type(error) is TypeError:
        _explain_call(error)
    if os.environ.get("WEFT_TRACEBACK") == "full":
        return
    kept = [tb for tb in frames if not is_ours(tb.tb_frame.f_code.co_filename)]
    after: TracebackType | None = None
    for tb in reversed(kept):
        tb.tb_next = after
        after = tb
    error.__traceback__ = after


def _frames(tb: TracebackType | None) -> list[TracebackType]:
    found = []
    while tb is not None:
        found.append(tb)
        tb = tb.tb_next
    return found


def _explain_call(error: TypeError) -> None:
    """Add the signature of the public function that a misfit call was of."""
    match = _MISFIT.match(str(error))
    if match is None or getattr(error, "__notes__", None):
        return
    name, keyword = match.groups()
    weft = sys.modules["weft"]
    for module in _MODULES:
        where = getattr(weft, module) if module else weft
        function = vars(where).get(name)
        if name in where.__all__ and inspect.isfunction(function):
            break
    else:
        return
    from weft.frontend.core.foreign_names import KEYWORDS  # only who makes a mistake needs it

    signature = inspect.signature(function)
    public = f"wf.{module}.{name}" if module else f"wf.{name}"
    here = KEYWORDS.get(keyword or "", "")
    if here.startswith("nothing") or here.split(" ")[0] in signature.parameters:
        error.add_note(f"  hint: '{keyword}' is {here} here")
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=plain, return_annotation=signature.empty)
    error.add_note(f"  hint: the signature is {public}{shown}")
