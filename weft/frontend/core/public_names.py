"""Public modules: what `dir` shows of one, and the error for a name that it has not."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable, Sequence
from types import FrameType

from weft.ir.errors import WeftError
from weft.ir.locations import WRAPPERS, is_ours

_PREFIX = "weft.frontend."
#: Public modules of functions and classes.
PUBLIC = (
    "nn", "linalg", "fft", "random", "train", "data", "lookup", "losses", "initializers",
    "metrics", "collectives", "image", "strings", "sparse", "onnx", "quantization",
)  # fmt: skip


def no_such_name(module: str, name: str) -> AttributeError | ImportError:
    """The error for a name that a public module has not; for one of another library's with the name
    here. module: as in `sys.modules`.

    An ImportError in `from weft import name`, which would replace an AttributeError by one of its
    own without the hint."""
    from weft.frontend.core.foreign_names import hint_for  # only who makes a mistake needs it

    shown = f"wf.{module.removeprefix(_PREFIX)}" if module.startswith(_PREFIX) else "wf"
    what = f"module {module!r} has no attribute {name!r}"
    hint = hint_for(shown, name) or _elsewhere(name)
    if hint is not None:  # Python's own guess would stand beside it
        caller = sys._getframe(2)  # of the module's __getattr__
        if caller.f_code.co_code[caller.f_lasti] == opcode.opmap["IMPORT_FROM"]:
            return ImportError(f"cannot import name {name!r} from {module!r}\n  hint: {hint}")
        return AttributeError(f"{what}\n  hint: {hint}")
    return AttributeError(what, name=name, obj=sys.modules[module])


def _elsewhere(name: str) -> str | None:
    """Where another public module has the name."""
    if name.startswith("_"):
        return None
    weft = sys.modules["weft"]
    if name in weft.__all__:
        return f"wf.{name}"
    found = (m for m in PUBLIC if name in getattr(weft, m).__all__)
    return next((f"wf.{m}.{name}" for m in found), None)


def as_public(error: WeftError, op: str) -> WeftError:
    """The error of an op, which says the name of the public function, such as `wf.reshape`, in
    place of `op 'reshape'` where the user has called that."""
    if op in sys.modules["weft"].__all__ and _entered() == op:
        return renamed(error, op, f"wf.{op}")
    return error


def renamed(error: WeftError, op: str, public: str) -> WeftError:
    """The error, with the name of the public function in place of `op 'NAME'` at its beginning."""
    begin = f"op '{op}'"
    if error.what.startswith(begin):
        error.what = f"{public}{error.what.removeprefix(begin)}"
        error.args = (error._render(),)
    return error


def _entered() -> str:
    """The function of weft's that the user has called."""
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None and is_ours(frame.f_code.co_filename):
        name = name if frame.f_code.co_name in WRAPPERS else frame.f_code.co_name
        frame = frame.f_back
    return name


def only_public(
    module: str, names: Sequence[str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` (PEP 562) of a public module whose public `names` are all
    loaded."""

    def missing(name: str) -> object:
        """AttributeError for a name that is none, with the one here if another library has it."""
        raise no_such_name(module, name)

    def shown() -> list[str]:
        """The public names."""
        return sorted({*names, *(n for n in vars(sys.modules[module]) if n.startswith("__"))})

    return missing, shown
