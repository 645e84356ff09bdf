"""Fills the table through which tensors and variables call the public functions: `x + y`,
`x.sum()`, `x[i]`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from weft.frontend import (
    ops_arithmetic,
    ops_elementwise,
    ops_index,
    ops_linalg,
    ops_rearrange,
    ops_reduction,
    ops_shape,
    ops_sort,
)
from weft.frontend.operators import METHOD_NAMES, METHODS
from weft.frontend.tensor import Tensor

_MODULES: tuple[ModuleType, ...] = (
    ops_arithmetic,
    ops_index,
    ops_rearrange,
    ops_reduction,
    ops_shape,
    ops_sort,
)
_OTHERS: dict[str, Callable[..., Tensor]] = {
    "power": ops_elementwise.pow,
    "matmul": ops_linalg.matmul,
}


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
