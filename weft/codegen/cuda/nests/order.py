"""The order of a fold's loops: whatever threads stand side by side on comes last.

On a GPU the 32 threads of a warp read 32 neighbouring elements at once, so the last loop is to be
one that buffers are contiguous in: a reduced one (threads share a row) or not (they stand on
columns).
"""

from __future__ import annotations

from dataclasses import replace

from weft.codegen.nests.nest import Nest, simplify_nest


def ordered(nest: Nest) -> Nest:
    """The nest with its loops in the order in which most of its buffers lie in memory."""
    if not nest.extents:
        return nest
    last = max(range(len(nest.extents)), key=lambda k: (_contiguous(nest, k), k))
    kinds = [k for k in range(len(nest.extents)) if nest.reduced[k] is nest.reduced[last]]
    others = [k for k in range(len(nest.extents)) if nest.reduced[k] is not nest.reduced[last]]
    kinds.append(kinds.pop(kinds.index(last)))
    return simplify_nest(_arranged(nest, others + kinds))


def _contiguous(nest: Nest, loop: int) -> int:
    """How many buffers lie in memory as the loop goes."""
    walks = [a.strides for a in nest.loads if isinstance(a.leaf, int)]
    walks += [w.strides for w in nest.stores if w.reduction is None]
    return sum(strides[loop] in (1, -1) for strides in walks)


def _arranged(nest: Nest, loops: list[int]) -> Nest:
    def pick(strides: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(strides[k] for k in loops) if strides else ()

    return replace(
        nest,
        extents=tuple(nest.extents[k] for k in loops),
        reduced=tuple(nest.reduced[k] for k in loops),
        loads=tuple(replace(a, strides=pick(a.strides)) for a in nest.loads),
        stores=tuple(replace(w, strides=pick(w.strides)) for w in nest.stores),
    )
