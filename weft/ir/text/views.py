"""The difference of two graphs as a unified diff in which unrelated renumbering does not show, and
names that the values of a graph keep from pass to pass.

The ops of the two graphs are matched block by block: first those that compute
the same from the same, then, between them, those that agree in name, attributes and types, then
those that agree in name. A matched pair prints with the same value numbers: a line differs only
where an op does. Ops in the body of a fused op that is new keep the numbers of the ops that they
were before, and what is only indented is no difference."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.program import Program
from weft.ir.text.printer import (
    format_attrs,
    print_block,
    print_graph,
    print_program,
    value_name,
)

Key = Callable[[Operation], Hashable]


def diff_graphs(
    old: Graph, new: Graph, old_name: str = "old", new_name: str = "new", *, locations: bool = False
) -> str:
    """A unified diff from `old` to `new`; empty if they are equal.

    Source locations count only if `locations` is true. Ops that stand only in `new` print as
    `%new0`, `%new1`, ...; all others have their numbers in `old`.
    """
    names: dict[Value, str] = {}
    name_graphs(old, new, names)
    a, b = (print_graph(g, locations, names=names).splitlines(keepends=True) for g in (old, new))
    return "".join(_unified(a, b, old_name, new_name))


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
            name_graphs(partners[part.device], part.graph, names)
    a, b = (print_program(p, locations, names).splitlines(keepends=True) for p in (old, new))
    return "".join(_unified(a, b, old_name, new_name))


def _unified(a: list[str], b: list[str], old_name: str, new_name: str) -> Iterator[str]:
    """As `difflib.unified_diff`, but that lines are equal whose text is; they print as in `b`."""
    matcher = difflib.SequenceMatcher(
        None, [x.strip() for x in a], [x.strip() for x in b], autojunk=False
    )
    groups = list(matcher.get_grouped_opcodes(3))
    if groups:
        yield f"--- {old_name}\n"
        yield f"+++ {new_name}\n"
    for group in groups:
        first, last = group[0], group[-1]
        yield (f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@\n")
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (f" {line}" for line in b[k:m])
            else:
                yield from (f"-{line}" for line in a[i:j])
                yield from (f"+{line}" for line in b[k:m])


def match_ops(
    old: Sequence[Operation], new: Sequence[Operation], keys: Sequence[Key]
) -> list[tuple[Operation, Operation]]:
    """Pairs of corresponding ops in order: by the first key, between those by the further keys."""
    if not keys or not old or not new:
        return []
    first, *rest = keys
    a_keys, b_keys = [first(op) for op in old], [first(op) for op in new]
    if len(a_keys) * len(b_keys) > _MOST_PAIRS:
        a_keys, b_keys = _numbered(a_keys), _numbered(b_keys)
    matcher = difflib.SequenceMatcher(None, a_keys, b_keys, autojunk=False)
    pairs: list[tuple[Operation, Operation]] = []
    i = j = 0
    for a, b, size in matcher.get_matching_blocks():
        pairs += match_ops(old[i:a], new[j:b], rest)
        pairs += zip(old[a : a + size], new[b : b + size], strict=True)
        i, j = a + size, b + size
    return pairs


#: Of so many pairs of ops equal keys are told apart by their number: difflib looks at each pair.
_MOST_PAIRS = 250_000


def _numbered(keys: Sequence[Hashable]) -> list[Hashable]:
    """The keys, each with how many equal ones are before it."""
    counts: dict[Hashable, int] = {}
    found: list[Hashable] = []
    for key in keys:
        counts[key] = counts.get(key, -1) + 1
        found.append((key, counts[key]))
    return found


def name_graphs(
    old: Graph, new: Graph, names: dict[Value, str], fresh: Iterator[str] | None = None
) -> None:
    """Fill in the names of all values of two graphs. Those of `old` may have names already.
    fresh: names for values that only `new` has."""
    args = [value_name(name) for name in old.arg_names]
    _name_blocks(old.block, new.block, names, args, fresh)


def name_programs(programs: Sequence[Program]) -> dict[Value, str]:
    """Names for the values of programs each of which is made of the one before it: a value has one
    name in all of them. The parts of a partitioned program are named one by one."""
    names: dict[Value, str] = {}
    fresh = map("%new{}".format, itertools.count())
    before: dict[str, Graph] = {}
    for program in programs:
        for part in program.parts:
            old = before.get(part.device, part.graph)
            if part.device not in before or old is not part.graph:
                name_graphs(old, part.graph, names, fresh)
            before[part.device] = part.graph
    return names


def _name_blocks(
    old: Block,
    new: Block,
    names: dict[Value, str],
    arg_names: Sequence[str] = (),
    fresh: Iterator[str] | None = None,
) -> None:
    """Fill in the names of all values of two corresponding blocks and of the regions in them."""
    local = {op: _local_key(op) for op in (*old.ops, *new.ops)}
    ids: dict[Hashable, int] = {}
    deep = _deep_keys(old, local, ids) | _deep_keys(new, local, ids)
    keys: list[Key] = [deep.__getitem__, local.__getitem__, _name_key]
    partner = {b: a for a, b in match_ops(old.ops, new.ops, keys)}
    results = enumerate(r for op in old.ops for r in op.results)
    numbers = {r: names.get(r, f"%{i}") for i, r in results}
    names.update(numbers)
    args = {a: arg_names[i] if arg_names else f"%a{i}" for i, a in enumerate(old.args)}
    args = {a: names.get(a, name) for a, name in args.items()}
    before = {_named_key(op, local[op], numbers | args): op for op in old.ops}
    names.update(zip(new.args, args.values(), strict=False))
    unseen = map("%new{}".format, itertools.count()) if fresh is None else fresh
    for arg in new.args[len(old.args) :]:
        names.setdefault(arg, next(unseen))
    taken = {numbers[r] for op in partner.values() for r in op.results}
    for op in new.ops:
        match = partner.get(op)
        made: Sequence[str | None] = [None] * len(op.results)
        if match is not None:
            for a, b in zip(match.regions, op.regions, strict=False):
                _name_blocks(a, b, names, (), fresh)
            made = list(map(numbers.get, match.results))
        elif op.name == "fused":
            made = _name_body(op, before, numbers, names)
        for result, known in zip(op.results, made, strict=True):
            is_new = known is None or (match is None and known in taken)
            name = next(unseen) if is_new or known is None else known
            taken.add(name)
            names[result] = name


def _named_key(op: Operation, local: Hashable, names: Mapping[Value, str]) -> Hashable:
    return local, tuple([names.get(v) for v in op.operands])


def _name_body(
    op: Operation,
    before: Mapping[Hashable, Operation],
    numbers: Mapping[Value, str],
    names: dict[Value, str],
) -> list[str | None]:
    """Name the values of a fused op's body by the ops `before` that compute the same; which of
    these names its results have, None for what was not there before."""
    body = op.regions[0]
    own: dict[Value, str] = {}
    for arg, operand in zip(body.args, op.operands, strict=True):
        name = names[operand]
        own[arg] = name if name not in own.values() else f"{name}_again"
    fresh = (f"%fused{i}" for i in itertools.count())
    for inner in body.ops:
        found = before.get(_named_key(inner, _local_key(inner), own))
        for i, result in enumerate(inner.results):
            known = None if found is None else numbers[found.results[i]]
            own[result] = next(fresh) if known is None or known in own.values() else known
    names.update(own)
    earlier = set(numbers.values())
    return [own[v] if own[v] in earlier else None for v in body.results]


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
