"""Method table of tensors and variables: the public functions that `x + y`, `x.sum()`, `x[i]` call.

Filled when weft is imported (`core/operators.py` says why)."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from weft.frontend.core.operators import METHOD_NAMES, METHODS
from weft.frontend.core.tensor import Tensor
from weft.frontend.ops import elementwise, indexing, linalg, manipulation, reduction, special

_MODULES: tuple[ModuleType, ...] = (elementwise, indexing, manipulation, reduction)
_OTHERS: dict[str, Callable[..., Tensor]] = {"power": special.pow, "matmul": linalg.matmul}


def _find(name: str) -> Callable[..., Tensor]:
    """The public function of that name. KeyError if no module of ops defines it."""
    if name in _OTHERS:
        return _OTHERS[name]
    for module in _MODULES:
        function = vars(module).get(name)
        if function is not None and function.__module__ == module.__name__:
            found: Callable[..., Tensor] = function
            return found
    raise KeyError(name)


METHODS.update({name: _find(name) for name in METHOD_NAMES})
