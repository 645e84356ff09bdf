"""A convolution and what follows it as data, as `products/fused.py` has products.

The result of a convolution is a matrix for the nest that follows: rows are all axes but the last,
columns are the channels of all groups.
"""

from __future__ import annotations

from weft.codegen.call import Address
from weft.codegen.cuda.others.sizes import count_of, shape_of
from weft.codegen.cuda.products.epilogue import index_of_epilogue
from weft.codegen.cuda.products.fused import Follow, check_operands, over_rows, stored_alone
from weft.codegen.cuda.writer import IndexDtype, index_dtype
from weft.codegen.gemm.epilogue import operands_of, product_in, without_product
from weft.codegen.nests.nest import plain_nest
from weft.ir.dataclass import dataclass
from weft.ir.graph import Operation


@dataclass(frozen=True, slots=True)
class Convolution:
    """op: `conv`, `conv_input` or `conv_kernel`; operands: where its own are."""

    op: Operation
    operands: tuple[Address, ...]
    follow: Follow

    @property
    def name(self) -> str:
        """Of kernels."""
        return self.follow.nest.name

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        columns = shape_of(self.op.result)[-1]
        return count_of(self.op.result) // max(columns, 1), columns

    def index(self, *counts: int) -> IndexDtype:
        """The dtype of indices of kernels that count up to these, too."""
        own = index_dtype(*map(count_of, (*self.op.operands, self.op.result)), *counts)
        return "i64" if index_of_epilogue(self.follow) == "i64" else own


def convolution(op: Operation) -> Convolution:
    """One by itself."""
    return Convolution(op, tuple(map(Address, op.operands)), stored_alone(op))


def fused_convolution(op: Operation, in_place: tuple[tuple[int, int], ...]) -> Convolution:
    """That of a `fused` op. in_place: operand number -> number of the result whose buffer it
    shares. UnsupportedError for an operand that is computed."""
    conv = product_in(op)
    check_operands(conv)
    rest, made = without_product(op)
    outputs, operands = (tuple(map(Address, vs)) for vs in (op.results, op.operands))
    follow = Follow(over_rows(plain_nest(rest, in_place)), made, outputs, operands)
    return Convolution(conv, tuple(operands_of(op)), follow)
