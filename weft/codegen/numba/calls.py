"""Calls of printed kernels: the kernels of an op as source, compiled by Numba and adopted under a
key of their text, and the arguments of their calls."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from typing import Any

from weft.codegen.call import Address, Arg, KernelCall, Status, cut_call
from weft.codegen.kernels.user_kernels import AlreadyCompiled
from weft.codegen.llvm.jit import Kernel, adopt_kernel
from weft.codegen.nests.nest import Nest, build_nest
from weft.codegen.nests.rows import RowNest, build_rows
from weft.codegen.numba import along_axis, products, stacks, structural
from weft.codegen.numba.nests import nest_source
from weft.codegen.numba.replacements import replacement
from weft.codegen.numba.rows import rows_source
from weft.codegen.numba.source import KernelSource, Number
from weft.codegen.numba.structural import Printer
from weft.codegen.products.calls import is_product
from weft.ir.analysis.index_maps import row_space_of
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation, Value

#: Ops that are no loop nests, and what prints them.
PRINTERS: dict[str, Printer] = {
    **structural.PRINTERS,
    **along_axis.PRINTERS,
    **products.PRINTERS,
    **stacks.PRINTERS,
}
#: What the printed entry of a kernel looks like; part of the keys of compiled kernels.
ENTRY_VERSION = 2


def nest_kernel(
    nest: Nest | RowNest, outputs: Sequence[Address], operands: Sequence[Address]
) -> KernelSource:
    """A nest on these buffers."""
    at = [(a, 0) for a in outputs], [(a, 0) for a in operands]
    return rows_source(nest, *at) if isinstance(nest, RowNest) else nest_source(nest, *at)


def sources_of(
    op: Operation, in_place: tuple[tuple[int, int], ...] = ()
) -> list[tuple[KernelSource, Nest | RowNest | None]]:
    """The kernels of an op as source, in the order of their calls; the nest of one that is a loop
    nest alone. in_place: the numbers of operands and results that share memory. UnsupportedError
    for an op that has no source, with its line.
    """
    try:
        if op.name == "fused" and is_product(op):
            return [(k, None) for k in products.fused_product(op, in_place)]
        if op.name == "fused":
            outputs, operands = [Address(v) for v in op.results], [Address(v) for v in op.operands]
            space = row_space_of(op.regions[0])
            nest = build_nest(op, in_place) if space is None else build_rows(op, space, in_place)
            return [(nest_kernel(nest, outputs, operands), nest)]
        printer = PRINTERS.get(op.name)
        if printer is None:
            raise UnsupportedError(
                f"op '{op.name}' has no Numba source",
                hint='engine="llvm" (WEFT_ENGINE=llvm), which is the default, compiles it',
            )
        return [(k, None) for k in printer(op, (0, 0) in in_place)]
    except UnsupportedError as error:
        raise error.at(op.locations) from None


def planned_kernels(
    op: Operation, in_place: tuple[tuple[int, int], ...], only_replaced: bool
) -> list[tuple[KernelCall, Nest | RowNest | None, str]] | None:
    """The calls of an op's kernels, in order: each with its nest, and, but for the last one of
    several, what it is for. only_replaced: None if no file replaces one of them.
    """
    if only_replaced and op.name != "fused" and op.name not in PRINTERS:
        return None
    try:
        made = sources_of(op, in_place)
    except UnsupportedError:
        if only_replaced:
            return None
        raise
    if only_replaced and not any(replacement(source.key) for source, _ in made):
        return None
    last = len(made) - 1
    return [
        (kernel_call(source), nest, "" if nest or k == last else source.name)
        for k, (source, nest) in enumerate(made)
    ]


def check_call(gather: Operation, index: Value) -> KernelCall:
    """A call that only checks the indices of a gather."""
    return kernel_call(structural.check_indices(gather, index))


def mark_call(name: str, number: int) -> KernelCall:
    """begin, end, mark or release of the arena of stacks, as `kernels.stack.mark_call`."""
    return kernel_call(stacks.mark(name, number))


def bytes_call(target: Address, source: Address, nbytes: int) -> KernelCall:
    """A copy of bytes."""
    return kernel_call(structural.copy_bytes(target, source, nbytes))


def kernel_call(source: KernelSource) -> KernelCall:
    """The call of a kernel, compiled: by the file that was put in its place, if there is one."""
    replaced = replacement(source.key)
    text, where = (source.text(), "<weft>") if replaced is None else replaced
    patterns = [p.pattern() + p.dtype for p in source.params if not isinstance(p, Number)]
    content = f"{ENTRY_VERSION} {text} {source.arguments()} {patterns}"
    key = f"numba-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
    kernel = Kernel(key, source.name, AlreadyCompiled())

    def make() -> Any:
        # who has no such kernel does not wait for Numba
        compiler: Any = importlib.import_module("weft.codegen.numba.compile")
        return compiler.compile_source(source, text, where)

    adopt_kernel(kernel.key, make)
    args = tuple(arguments(source))
    if source.units is None:
        return KernelCall(kernel, args)
    return cut_call(kernel, args, source.units, source.nanoseconds)


def arguments(source: KernelSource) -> list[Arg]:
    """The words of a call, as `compile.py` reads them."""
    args: list[Arg] = [Status()]
    for p in source.params:
        if isinstance(p, Number):
            args.append(p.value)
            continue
        args += [p.address, p.at]
        for size, stride, kind in zip(p.shape, p.strides, p.pattern(), strict=True):
            args += [size, stride] if kind == "s" else [size]
    return args
