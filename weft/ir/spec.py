"""What an op means: one `OpSpec` row holds its schema, type rule and NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dataclass import dataclass
from weft.ir.errors import TypeRuleError
from weft.ir.types import TensorType, Type

if TYPE_CHECKING:
    from weft.ir.graph import Block

Array = np.ndarray[Any, Any]
InferRule = Callable[[Sequence[Type], Attrs, Sequence["Block"]], Sequence[Type]]
Reference = Callable[[Sequence[Array], Attrs], Array | Sequence[Array]]

#: Every trait an op may have.
TRAITS = frozenset(
    {
        "elementwise",  # one output element depends on the same element of each operand
        "commutative",  # the two operands may be swapped
        "view",  # the result may share the operand's buffer (contiguous reshape)
        "reads_state",  # takes a ref and reads it
        "writes_state",  # takes a ref and writes it
        "no_dce",  # kept even if nobody uses its results
        "no_cse",  # two equal ops are two different things
        "no_fold",  # never evaluated at compile time
        "reduction",  # axes, keepdims; folds elements
        "host",  # carried out by Python, may wait; never in a compiled step
        "handle",  # names an object of the host that steps share; no operands
    }
)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One row of an op table.

    arity: number of operands, or None for variadic.
    infer: (operand types, completed attributes, regions) -> result types; raises TypeRuleError or
        ShapeError.
    reference: (operand arrays, attributes) -> result array(s), the op's meaning in NumPy; None
        only for ops that the interpreter itself carries out (state, regions).
    scalar: for elementwise ops, the meaning on one element as an expression over the operand names
        a, b, c ("1 / (1 + exp(-a))"): documentation; a test holds it against the
        reference.
    """

    name: str
    arity: int | None
    infer: InferRule
    reference: Reference | None
    doc: str
    attrs: Mapping[str, AttrSpec] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    scalar: str | None = None
    regions: int = 0

    def __post_init__(self) -> None:
        unknown = self.traits - TRAITS
        if unknown:
            raise ValueError(f"op '{self.name}': unknown traits {sorted(unknown)}")


def tensors(op: str, types: Sequence[Type]) -> list[TensorType]:
    """The operand types, all of which must be tensors. Raises TypeRuleError."""
    out = [t for t in types if isinstance(t, TensorType)]
    if len(out) != len(types):
        listed = ", ".join(str(t) for t in types)
        raise TypeRuleError(f"op '{op}' takes tensors, got ({listed})")
    return out
