"""The code generators: "llvm" (weft's own), and "numba", which compiles the kernels' printed Python
source, on the CPU (`codegen/numba`) and for GPUs (`codegen/cuda/numba_cuda`).

WEFT_ENGINE=numba  for the whole process ("llvm" if not set)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from weft.ir.errors import InvalidArgumentError, suggest

VARIABLE = "WEFT_ENGINE"
ENGINES = ("llvm", "numba")
_chosen: ContextVar[str | None] = ContextVar("weft_engine", default=None)


def engine() -> str:
    """What `using_engine` says, else WEFT_ENGINE. InvalidArgumentError as `checked_engine`."""
    return _chosen.get() or checked_engine(os.environ.get(VARIABLE) or ENGINES[0], VARIABLE)


def checked_engine(asked: str, what: str) -> str:
    """`asked`. InvalidArgumentError, about `what`, if that is no engine."""
    if asked not in ENGINES:
        raise InvalidArgumentError(
            f"{what}={asked!r} is no code generator{suggest(asked, ENGINES)}",
            hint='"llvm" is weft\'s own; "numba" compiles the kernels as printed Python source',
        )
    return asked


@contextmanager
def using_engine(name: str | None) -> Iterator[None]:
    """Steps are compiled by this engine within; None: by the one that is chosen already."""
    token = _chosen.set(name or _chosen.get())
    try:
        yield
    finally:
        _chosen.reset(token)
