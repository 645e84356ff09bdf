"""Compiled calls of one kind: the same dtypes, ranks and settings, any sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontend.compile.arguments import packer
from weft.frontend.core.function_trace import Traced
from weft.frontend.eager.numpy_program import CallKind
from weft.ir.dtypes import as_dtype
from weft.ir.errors import UnsupportedError
from weft.ir.types import TensorType
from weft.runtime.native.executable import Executable, compile_graph
from weft.runtime.native.size_plan import NativeMaker, NativeSizedStep
from weft.runtime.sized_step import Runs, SizedGraph, SizedStep

Array = np.ndarray[Any, Any]
Shapes = tuple[tuple[int, ...], ...]
Run = Callable[[list[Array]], Any]
#: After so many calls shapes have a plan of their own.
OFTEN = 256


class _Often:
    """A plan for many sizes, filled in for some: after many calls a plan for these alone replaces
    it, whose calls take some microseconds less."""

    def __init__(self, filled: Runs, make: Callable[[], Executable]) -> None:
        self._step = filled
        self._make: Callable[[], Executable] | None = make
        self._calls = 0

    def __call__(self, arrays: list[Array]) -> list[Any]:
        self._calls += 1
        if self._calls >= OFTEN and self._make is not None:
            make, self._make = self._make, None
            self._step = make()
        return self._step.run(arrays)


class Kind:
    """The native code for calls of one kind."""

    def __init__(self, calls: CallKind) -> None:
        self._calls, self._name = calls, calls.name
        self._step: NativeSizedStep | None = None

    def at(self, arrays: Sequence[Array], weak: Sequence[bool]) -> Run:
        """What runs calls with operands like these. Errors as those of tracing and compiling."""
        shapes = tuple([a.shape for a in arrays])
        dtypes = [as_dtype(a.dtype) for a in arrays]

        def trace(shapes: Sequence[tuple[int, ...]]) -> Traced:
            return self._calls.traced(dtypes, shapes, weak)

        if self._step is None:
            traced = trace(shapes)
            if traced.variables:
                raise UnsupportedError(f"{self._name} reads variables")
            types = tuple(
                TensorType(d, (None,) * len(s)) for d, s in zip(dtypes, shapes, strict=True)
            )
            sized = SizedGraph(self._name, types, lambda given: trace(given).graph)
            made = self._compiled(traced)
            self._pack, self._limits = packer(traced.structure, traced.weak), traced.limits
            self._step = SizedStep(NativeMaker(sized, {}), 0)
            return self._checked(made.run)
        found = self._step.shared(shapes)
        if found is None:
            return self._checked(self._compiled(trace(shapes)).run)
        return self._checked(_Often(found, lambda: self._compiled(trace(shapes))))

    def _compiled(self, traced: Traced) -> Executable:
        return compile_graph(traced.graph, name=self._name)

    def _checked(self, step: Callable[[list[Array]], list[Any]]) -> Run:
        """`step` with a check of the Python integers that meet a narrower dtype."""
        pack, limits = self._pack, self._limits
        if not limits:
            return lambda arrays: pack(step(arrays))

        def checked(arrays: list[Array]) -> Any:
            for limit in limits:
                value = arrays[limit.index].item()
                if not limit.low <= value <= limit.high:
                    raise limit.error(value)
            return pack(step(arrays))

        return checked
