"""The builder of a finalized graph: it refuses ops."""

from __future__ import annotations

from typing import Any, NoReturn

from weft.ir.errors import FailedPreconditionError
from weft.ir.graph import Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.ir.types import Type


class FinalizedBuilder(Builder):
    """Holds the arguments and ops of `builder`, and takes no more: FailedPreconditionError."""

    def __init__(self, builder: Builder, name: str) -> None:
        self.args, self.ops, self._name = builder.args, builder.ops, name

    def emit(self, name: str, *_: Any, **__: Any) -> tuple[Value, ...]:
        self.refuse(f"op '{name}'")

    def clone(self, op: Operation, *_: Any, **__: Any) -> tuple[Value, ...]:
        self.refuse(f"op '{op.name}'")

    def add_arg(self, type: Type) -> Value:
        self.refuse("a placeholder")

    def refuse(self, what: str) -> NoReturn:
        """Raise the error about what was to be added."""
        raise FailedPreconditionError(
            f"{what} was added to the graph '{self._name}', which is finalized",
            hint="build the whole graph before graph.finalize()",
            location=caller_location(),
        )
