"""Calls of one kind as graphs: the operands become inputs, settings are what they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.tensor import Tensor
from weft.frontend.tracing.tracing import Argument, Traced, trace_function
from weft.ir.dtypes import DType
from weft.ir.types import TensorType


class CallKind:
    """Calls of a function that differ in their operands alone.

    args, kwargs: of one such call. places: where in them the operands are, in order: a position or
    a keyword.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        places: Sequence[int | str],
    ) -> None:
        self.name, self._function = f"eager_{name}", function
        # the operands themselves are not kept
        taken = [p for p in places if (args[p] if isinstance(p, int) else kwargs[p]) is not None]
        self._places = taken
        self._args: list[Any] = [None if i in taken else a for i, a in enumerate(args)]
        self._kwargs = {n: None if n in taken else a for n, a in kwargs.items()}

    def traced(
        self, dtypes: Sequence[DType], shapes: Sequence[tuple[int, ...]], weak: Sequence[bool]
    ) -> Traced:
        """The function on operands of these shapes as a graph."""
        rows = zip(dtypes, shapes, weak, strict=True)
        arguments = [
            Argument(TensorType(d, tuple(s)), w, f"x{i}") for i, (d, s, w) in enumerate(rows)
        ]

        def call(inputs: list[Tensor]) -> Any:
            args, kwargs = [*self._args], {**self._kwargs}
            for place, value in zip(self._places, inputs, strict=True):
                if isinstance(place, int):
                    args[place] = value
                else:
                    kwargs[place] = value
            return self._function(*args, **kwargs)

        return trace_function(self.name, call, arguments)
