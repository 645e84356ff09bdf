"""Parts of k: what a block does of it, and the kernel that adds the parts up in order."""

from __future__ import annotations

from dataclasses import replace

from weft.codegen.call import Scratch
from weft.codegen.cuda.kernel import Launch
from weft.codegen.cuda.products.epilogue import Epilogue
from weft.codegen.cuda.products.fused import Follow, FusedProduct, store_nest
from weft.codegen.cuda.products.tiles import sums_dtype
from weft.codegen.cuda.scalars.memory import nbytes
from weft.codegen.cuda.scalars.scalar import expression
from weft.codegen.cuda.writer import IndexDtype, Source
from weft.codegen.gemm.blocking import Product
from weft.ir.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Parts:
    """`count` parts of `run` numbers of k each; the last may have fewer."""

    count: int
    run: int


def cut(k: int, count: int, unit: int) -> Parts:
    """k in parts of whole units, as many as there are up to `count`."""
    run = -(-k // max(count, 1))
    run = max(-(-run // unit) * unit, unit)
    return Parts(max(-(-k // run), 1), run)


def results(p: Product) -> int:
    """Elements of C."""
    return p.m * p.n * len(p.c_at)


def part_of(s: Source, p: Product, number: str, parts: Parts, k: str) -> tuple[str, str, str]:
    """Of a block that has matrix `number` in [part, matrix]: its matrix, where its part of k begins
    and where it ends."""
    if parts.count == 1:
        return number, s.const(0), k
    count, run = s.number("matrices", len(p.c_at)), s.number("run", parts.run)
    part = s.let(s.div(number, count), "part")
    matrix = s.let(s.sub(number, s.mul(part, count)), "matrix")
    first = s.let(s.mul(part, run), "k_first")
    end = s.let(s.add(first, run), "k_end")
    return matrix, first, s.let(f"{end} if {end} < {k} else {k}", "k_end")


def into_scratch(fused: FusedProduct, parts: Parts) -> tuple[FusedProduct, Scratch]:
    """The sums of the parts alone, stored as [part, matrix, m, n]."""
    p, sums = fused.product, sums_dtype(fused.product.dtype)
    scratch = Scratch(results(p) * parts.count * nbytes(sums))
    rows = parts.count * len(p.c_at) * p.m
    nest = store_nest("matmul_parts", sums, rows, p.n, fused.made)
    return replace(fused, nest=nest, outputs=(scratch,)), scratch


class AddParts:
    """The kernel that makes C of the parts of k, in the sums' dtype in `scratch`: a thread for each
    element, the parts in order, then what follows. size: rows of all matrices, columns. `mend` of
    `epilogue` may be set before `launch`."""

    def __init__(
        self,
        follow: Follow,
        dtype: str,
        size: tuple[int, int],
        parts: int,
        scratch: Scratch,
        index: IndexDtype,
    ) -> None:
        self.dtype, self.count = sums_dtype(dtype), size[0] * size[1]
        s = self.s = Source(f"{follow.nest.name}_add_parts_{dtype}_{index}", index)
        self.given = s.pointer("given", self.dtype, scratch)
        sizes = ("count", self.count), ("end", self.count * parts), ("n", size[1])
        self.sizes = [s.number(*x) for x in sizes]
        self.epilogue = Epilogue(s, follow)

    def launch(self) -> Launch:
        """Its launch, after that of the parts."""
        s, (count, end, n), given = self.s, self.sizes, self.given
        i = s.let(s.add(s.mul(s.block_index, s.const(s.threads)), s.thread), "i")
        with s.block(f"if {i} < {count}"):
            total = s.let(f"{given}[{i}]", "total")
            with s.loop(s.add(i, count), end, count, "at") as at:
                added = expression("add", self.dtype, self.dtype, [total, f"{given}[{at}]"])
                s.line(f"{total} = {added}")
            row, column = s.split(i, ["", n], "at")
            self.epilogue.mended(total, row, column)
            self.epilogue.write(row, column, [total])
        return s.launch(-(-self.count // s.threads))
