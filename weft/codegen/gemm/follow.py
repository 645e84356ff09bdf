"""What goes before and after a product block by block: kernels and their words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from weft.codegen.call import Address, Arg, KernelCall, Pool, Scratch
from weft.codegen.jit import Kernel
from weft.codegen.nests.folds import combine_call, lay_out
from weft.codegen.nests.nest import Access
from weft.ir.dataclass import dataclass
from weft.ir.dtypes import as_dtype
from weft.ir.spec import ConstArray


@dataclass(frozen=True, slots=True)
class Follow:
    """An epilogue: its kernel, its words, and how many statements it has for each element.

    folds: (reduction, dtype, output) of what it folds over all rows; `columns` elements each.
    """

    kernel: Kernel
    args: list[Arg]
    statements: int
    folds: tuple[tuple[str, str, Address], ...] = ()
    columns: int = 0

    def calls(
        self, blocks: int, rows: int, matrices: int, held: int
    ) -> tuple[list[Arg], list[KernelCall]]:
        """The words for `blocks` blocks of `rows` rows in each of the matrices, and the calls that
        add up, in order, what each block has left. held: bytes of the scratch memory, which all
        calls share, that are in use.
        """
        if not self.folds:
            return self.args, []
        folds = [(name, dtype, self.columns, output) for name, dtype, output in self.folds]
        partials, nbytes = lay_out(folds, blocks * matrices)
        words: list[Arg] = [*self.args, blocks, rows, self.columns]
        if blocks * matrices == 1:  # nothing to add up
            return words + [x for p in partials for x in (p.output, 0)], []
        scratch = Scratch(held + nbytes)
        partials = [replace(p, offset=held + p.offset) for p in partials]
        words += [x for p in partials for x in (scratch, p.offset)]
        return words, [combine_call(p, scratch) for p in partials]


@dataclass(frozen=True, slots=True)
class Before:
    """A prologue: its kernel, its words, how many statements it has for each element; turned: it
    makes k by rows of A, not rows by k.
    """

    kernel: Kernel
    args: list[Arg]
    statements: int
    turned: bool


#: What computes A and B of a product, if anything does.
Prologues = tuple[Before | None, Before | None]


def load_words(loads: Iterable[Access], operands: Sequence[Address]) -> tuple[list[Arg], list[Arg]]:
    """The addresses of what a nest loads, and the strides; an "index" load has no address, but an
    offset before its strides.
    """
    addresses: list[Arg] = []
    strides: list[Arg] = []
    for load in loads:
        if load.leaf == "index":
            strides += [load.offset, *load.strides]
            continue
        strides += load.strides
        if isinstance(load.leaf, ConstArray):
            addresses.append(Pool(load.leaf))
        else:
            held, size = operands[load.leaf], as_dtype(load.dtype).itemsize
            addresses.append(Address(held.value, held.offset + load.offset * size))
    return addresses, strides
