"""Pipelines by name, whose passes a step with a plan on disk does not load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from weft.ir.loading import load

if TYPE_CHECKING:
    from weft.passes.manager import Pass


class NamedPipeline(Sequence["Pass"]):
    """The passes of `pipelines.PIPELINES[name]`, loaded when somebody looks at one of them."""

    __slots__ = ("_passes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._passes: tuple[Pass, ...] | None = None

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes in order."""
        if self._passes is None:
            pipelines = load("weft.passes.pipelines", "PIPELINES")
            assert isinstance(pipelines, dict)
            self._passes = pipelines[self.name]
        return self._passes

    def __len__(self) -> int:
        return len(self.passes)

    @overload
    def __getitem__(self, index: int) -> Pass: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Pass, ...]: ...
    def __getitem__(self, index: int | slice) -> Pass | tuple[Pass, ...]:
        return self.passes[index]

    def __reduce__(self) -> tuple[type[NamedPipeline], tuple[str]]:
        return NamedPipeline, (self.name,)


#: What `@wf.compile` does unless it is told otherwise.
STANDARD = NamedPipeline("standard")
