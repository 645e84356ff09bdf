"""The difference of two graphs as a unified diff in which unrelated renumbering does not show.

The ops of the two graphs are matched block by block: first those that compute the same from the same,
then, between them, those that agree in name, attributes and types, then those that agree in name. Each
matched pair of ops prints with the same value numbers, so that a line differs only where an op does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Sequence

from weft.ir.graph import Block, Graph, Operation, Value, canonical_block
from weft.ir.printer import format_attrs, print_graph

Key = Callable[[Operation], Hashable]


def diff_graphs(
    old: Graph, new: Graph, old_name: str = "old", new_name: str = "new", *, locations: bool = False
) -> str:
    """A unified diff from `old` to `new`; empty if they are equal.

    Source locations count only if `locations` is true. Ops that stand only in `new` print as `%new0`,
    `%new1`, ...; all others have their numbers in `old`.
    """
    names: dict[Value, str] = {}
    _name_blocks(old.block, new.block, names)
    lines = [
        print_graph(g, locations=locations, names=names).splitlines(keepends=True)
        for g in (old, new)
    ]
    return "".join(difflib.unified_diff(*lines, old_name, new_name))


def match_ops(
    old: Sequence[Operation], new: Sequence[Operation], keys: Sequence[Key]
) -> list[tuple[Operation, Operation]]:
    """Pairs of corresponding ops in order: by the first key, and between those by the further keys."""
    if not keys or not old or not new:
        return []
    first, *rest = keys
    matcher = difflib.SequenceMatcher(
        None, [first(op) for op in old], [first(op) for op in new], autojunk=False
    )
    pairs: list[tuple[Operation, Operation]] = []
    i = j = 0
    for a, b, size in matcher.get_matching_blocks():
        pairs += match_ops(old[i:a], new[j:b], rest)
        pairs += zip(old[a : a + size], new[b : b + size], strict=True)
        i, j = a + size, b + size
    return pairs


def _name_blocks(old: Block, new: Block, names: dict[Value, str]) -> None:
    """Fill in the names of all values of two corresponding blocks and of the regions in them."""
    deep = _deep_keys(old) | _deep_keys(new)
    partner = {
        b: a for a, b in match_ops(old.ops, new.ops, [lambda op: deep[op], _local_key, _name_key])
    }
    numbers = {r: f"%{i}" for i, r in enumerate(r for op in old.ops for r in op.results)}
    names.update(numbers)
    fresh = 0
    for op in new.ops:
        match = partner.get(op)
        if match is not None:
            for a, b in zip(match.regions, op.regions, strict=False):
                _name_blocks(a, b, names)
        for i, result in enumerate(op.results):
            if match is not None and i < len(match.results):
                names[result] = numbers[match.results[i]]
            else:
                names[result] = f"%new{fresh}"
                fresh += 1


def _deep_keys(block: Block) -> dict[Operation, Hashable]:
    """For each op a key that is equal for ops that compute the same from the block's arguments."""
    ids: dict[Hashable, int] = {}  # keys as small numbers, or they would grow exponentially
    value: dict[Value, Hashable] = {a: ("arg", i) for i, a in enumerate(block.args)}
    out: dict[Operation, Hashable] = {}
    for op in block.ops:
        operands = tuple(value.get(v) for v in (*op.operands, None, *op.control) if v is not None)
        key = (_local_key(op), len(op.operands), operands)
        out[op] = _Deep(key)
        for i, result in enumerate(op.results):
            value[result] = (out[op], i)
    del ids
    return out


class _Deep:
    """A key that compares by content but hashes once."""

    __slots__ = ("hash", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.hash = hash(key)


def _local_key(op: Operation) -> Hashable:
    types = tuple(r.type for r in op.results)
    return (op.name, format_attrs(op.attrs), types, tuple(map(canonical_block, op.regions)))


def _name_key(op: Operation) -> Hashable:
    return (op.name, len(op.results))
