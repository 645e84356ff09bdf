"""The names that a printed kernel for a GPU imports: those that numba-cuda compiles (`names.py`),
or, where a kernel is simulated, those that Python runs (`simulated.py`).

A kernel is simulated inside `simulating()`, and in a process that has NUMBA_ENABLE_CUDASIM=1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_simulating: ContextVar[bool] = ContextVar("weft_numba_cuda_simulating", default=False)


@contextmanager
def simulating() -> Iterator[None]:
    """What is imported within is what Python runs."""
    token = _simulating.set(True)
    try:
        yield
    finally:
        _simulating.reset(token)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from numba.core import config

    settings: Any = config
    # numba-cuda is there to compile alone, the simulator needs Numba
    if _simulating.get() or settings.ENABLE_CUDASIM:
        from weft.codegen.cuda.numba_cuda.simulated import NAMES as names
    else:
        from weft.codegen.cuda.numba_cuda.names import NAMES as names
    try:
        return names[name]
    except KeyError:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'") from None
