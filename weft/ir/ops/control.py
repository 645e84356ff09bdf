"""Structured control flow: `cond`, `while` and `scan` hold their bodies as regions.

A region sees only its own arguments: what it uses from outside comes in as an operand, which may
also be a handle or a ref (not a carry, nor a sequence). Regions that hold ops of the host, or reads
and writes of state, run on the dataflow executor; in compiled steps the frontend carries the values
of variables through them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dims import Dim, SymbolicDim, format_dim, same
from weft.ir.dtypes import bool_
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.rules import int_attr
from weft.ir.spec import OpSpec, tensors
from weft.ir.types import HandleType, RefType, TensorType, TokenType, Type

#: The ops of this module.
CONTROL = frozenset({"cond", "while", "scan"})
_BOOL = TensorType(bool_)


def length_attr(attrs: Attrs) -> Dim:
    """The attribute `length` of a scan: an int, or a symbolic dimension before specialisation."""
    length = attrs["length"]
    assert length is None or isinstance(length, int | SymbolicDim)
    return length


def _no_tokens(op: str, types: Sequence[Type]) -> None:
    """What regions use from outside: tensors, handles and refs."""
    if any(isinstance(t, TokenType) for t in types):
        raise TypeRuleError(
            f"op '{op}' takes tensors, handles and refs, got {_listed(types)}",
            hint=f"order the whole op by a control operand: {op}(...) after(%token)",
        )


def _no_handles(op: str, what: str, types: Sequence[Type]) -> None:
    """What is carried or given is data."""
    if any(isinstance(t, (HandleType, RefType, TokenType)) for t in types):
        raise TypeRuleError(f"op '{op}': {what} are tensors, got {_listed(types)}")


def _listed(types: Sequence[Type]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _check(op: str, what: str, got: Sequence[Type], wanted: Sequence[Type]) -> None:
    """Raise TypeRuleError unless the two lists of types are the same."""
    if list(got) != list(wanted):
        raise TypeRuleError(f"op '{op}': {what} {_listed(got)}, needs {_listed(wanted)}")


def _check_arguments(
    op: str, names: Sequence[str], regions: Sequence[Block], wanted: Sequence[Type]
) -> None:
    for name, region in zip(names, regions, strict=True):
        _check(op, f"the arguments of region '{name}' are", [a.type for a in region.args], wanted)


def _results(region: Block) -> list[Type]:
    return [v.type for v in region.results]


def _count(op: str, attrs: Attrs, name: str, most: int) -> int:
    count = int_attr(attrs, name)
    if not 0 <= count <= most:
        raise TypeRuleError(f"op '{op}': {name}={count}, but there are {most} operands for it")
    return count


def _cond_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _no_tokens("cond", types)
    if not types or types[0] != _BOOL:
        given = str(types[0]) if types else "nothing"
        raise TypeRuleError(f"op 'cond': the predicate must be a bool[], got {given}")
    _check_arguments("cond", ("then", "orelse"), regions, types[1:])
    then, orelse = map(_results, regions)
    _check("cond", "region 'orelse' returns", orelse, then)
    _no_handles("cond", "results", then)
    return then


def _while_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _no_tokens("while", types)
    carries = _count("while", attrs, "carries", len(types))
    _no_handles("while", "carries", types[:carries])
    if int_attr(attrs, "parallel_iterations") < 1:
        raise TypeRuleError(
            f"op 'while': parallel_iterations={attrs['parallel_iterations']}, must be at least 1"
        )
    _check_arguments("while", ("test", "body"), regions, types)
    test, body = map(_results, regions)
    _check("while", "region 'test' returns", test, [_BOOL])
    _check("while", "region 'body' returns", body, types[:carries])
    return body


def _scan_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _no_tokens("scan", types)
    length = length_attr(attrs)
    if isinstance(length, int) and length < 0:
        raise TypeRuleError(f"op 'scan': length={length} is negative")
    carries = _count("scan", attrs, "carries", len(types))
    sequences = _count("scan", attrs, "sequences", len(types) - carries)
    _no_handles("scan", "carries", types[:carries])
    rows: list[Type] = []
    for i, t in enumerate(tensors("scan", types[carries : carries + sequences])):
        if not t.rank or not same(t.shape[0], length):
            raise ShapeError(
                f"op 'scan': sequence {i} is {t}, needs a first axis of {format_dim(length)}"
            )
        rows.append(TensorType(t.dtype, t.shape[1:]))
    wanted = [*types[:carries], *rows, *types[carries + sequences :]]
    _check_arguments("scan", ("body",), regions, wanted)
    found = _results(regions[0])
    _check("scan", "region 'body' carries", found[:carries], types[:carries])
    stacked = tensors("scan", found[carries:])
    return [*found[:carries], *(TensorType(t.dtype, (length, *t.shape)) for t in stacked)]


TABLE = (
    OpSpec(
        "cond",
        None,
        _cond_type,
        None,
        "One of the regions [then, orelse] on operands 1.., as operand 0 (bool[]) chooses.",
        regions=2,
        traits=frozenset({"no_fold"}),
    ),
    OpSpec(
        "while",
        None,
        _while_type,
        None,
        "Regions [test, body] on the operands: the first `carries` become the body's results, as "
        "long as the test gives true and, with limit >= 0, at most `limit` times; of iterations "
        "that need not wait for each other at most `parallel_iterations` are under way at once. "
        "Its gradient keeps `gradient_memory` bytes at most if >= 0; with recompute only carries.",
        {
            "carries": AttrSpec("int"),
            "limit": AttrSpec("int", -1),
            "parallel_iterations": AttrSpec("int", 10),
            "gradient_memory": AttrSpec("int", -1),
            "recompute": AttrSpec("bool", False),
        },
        regions=2,
        traits=frozenset({"no_fold"}),
    ),
    OpSpec(
        "scan",
        None,
        _scan_type,
        None,
        "Region [body] `length` times: (carries, a row of each sequence, the other operands) -> "
        "(carries, a row of each further result); with reverse from the last row to the first.",
        {
            "carries": AttrSpec("int"),
            "sequences": AttrSpec("int"),
            "length": AttrSpec("dim"),
            "reverse": AttrSpec("bool", False),
        },
        regions=1,
        traits=frozenset({"no_fold"}),
    ),
)
