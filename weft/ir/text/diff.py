"""The difference of two graphs as a unified diff in which unrelated renumbering does not show.

The ops of the two graphs are matched block by block: first those that compute the same from the
same, then, between them, those that agree in name, attributes and types, then those that agree in
name. A matched pair prints with the same value numbers: a line differs only where an op does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Sequence

from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.program import Program
from weft.ir.text.printer import format_attrs, print_block, print_graph, print_program

Key = Callable[[Operation], Hashable]


def diff_graphs(
    old: Graph, new: Graph, old_name: str = "old", new_name: str = "new", *, locations: bool = False
) -> str:
    """A unified diff from `old` to `new`; empty if they are equal.

    Source locations count only if `locations` is true. Ops that stand only in `new` print as
    `%new0`, `%new1`, ...; all others have their numbers in `old`.
    """
    names: dict[Value, str] = {}
    _name_blocks(old.block, new.block, names)
    a, b = (print_graph(g, locations, names=names).splitlines(keepends=True) for g in (old, new))
    return "".join(difflib.unified_diff(a, b, old_name, new_name))


def diff_programs(
    old: Program,
    new: Program,
    old_name: str = "old",
    new_name: str = "new",
    *,
    locations: bool = False,
) -> str:
    """As `diff_graphs`, part by part: those on the same device correspond."""
    names: dict[Value, str] = {}
    partners = {part.device: part.graph for part in old.parts}
    for part in new.parts:
        if part.device in partners:
            _name_blocks(partners[part.device].block, part.graph.block, names)
    a, b = (print_program(p, locations, names).splitlines(keepends=True) for p in (old, new))
    return "".join(difflib.unified_diff(a, b, old_name, new_name))


def match_ops(
    old: Sequence[Operation], new: Sequence[Operation], keys: Sequence[Key]
) -> list[tuple[Operation, Operation]]:
    """Pairs of corresponding ops in order: by the first key, between those by the further keys."""
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
    local = {op: _local_key(op) for op in (*old.ops, *new.ops)}
    ids: dict[Hashable, int] = {}
    deep = _deep_keys(old, local, ids) | _deep_keys(new, local, ids)
    keys: list[Key] = [deep.__getitem__, local.__getitem__, _name_key]
    partner = {b: a for a, b in match_ops(old.ops, new.ops, keys)}
    numbers = {r: f"%{i}" for i, r in enumerate(r for op in old.ops for r in op.results)}
    names.update(numbers)
    added = 0
    for op in new.ops:
        match = partner.get(op)
        if match is not None:
            for a, b in zip(match.regions, op.regions, strict=False):
                _name_blocks(a, b, names)
        for i, result in enumerate(op.results):
            if match is not None:
                names[result] = numbers[match.results[i]]
            else:
                names[result] = f"%new{added}"
                added += 1


def _deep_keys(
    block: Block, local: dict[Operation, Hashable], ids: dict[Hashable, int]
) -> dict[Operation, int]:
    """A number for each op, equal for ops that compute the same from the block's arguments.

    `ids` numbers the distinct keys. A key holds its operands' numbers, so that it stays small.
    """
    value: dict[Value, Hashable] = {a: ("arg", i) for i, a in enumerate(block.args)}
    out: dict[Operation, int] = {}
    for op in block.ops:
        operands = tuple(value[v] for v in op.operands)
        key = (local[op], operands, tuple(value[v] for v in op.control))
        out[op] = ids.setdefault(key, len(ids))
        value.update((r, (out[op], i)) for i, r in enumerate(op.results))
    return out


def _local_key(op: Operation) -> Hashable:
    types = tuple(r.type for r in op.results)
    return (op.name, format_attrs(op.attrs), types, tuple(map(print_block, op.regions)))


def _name_key(op: Operation) -> Hashable:
    return (op.name, len(op.results))
