"""Variables (the paper, section 3.1): handles, reads, assignments and updates.

An update is one access that reads and writes: nothing else happens to the variable in between. Its
result is the value right after it, and whatever must come later is ordered after that value. The
pass `expand_updates` makes a read, an op and an assignment of it, within one compiled step.

A variable whose shape may change (`?` in its type) has no address that a compiled step could hold:
ops of the host, `read_open`, `assign_open` and `update_open`, work on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.dims import same
from weft.ir.dtypes import bool_, string
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import SIZES, fill_sizes
from weft.ir.spec import NUMERIC, Attrs, AttrSpec, InferRule, OpSpec, check_shape, require_dtype
from weft.ir.types import TOKEN, RefType, TensorType, Type

#: The ops that read a variable, combine that with their operands and write it, as one access.
UPDATES = frozenset({"assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update"})


def _variable_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    dtype, shape = attrs["dtype"], attrs["shape"]
    return [RefType(TensorType(dtype, shape))]  # type: ignore[arg-type]


def _held(op: str, types: Sequence[Type]) -> TensorType:
    """The type of what the variable of the first operand holds."""
    if not types or not isinstance(types[0], RefType):
        got = f", got {types[0]}" if types else ""
        raise TypeRuleError(f"op '{op}' takes a ref as its first operand{got}")
    return types[0].tensor


def _read_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [_held("read", types)]


def _check_fits(op: str, held: TensorType, given: Type) -> None:
    fits = (
        isinstance(given, TensorType)
        and given.dtype is held.dtype
        and given.rank == held.rank
        and all(same(a, b) for a, b in zip(given.shape, held.shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"op '{op}': a {given} does not fit a variable of type {held}",
            hint="a variable keeps its dtype and shape; use wf.astype or wf.reshape on the value",
        )


def _assign_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_fits("assign", _held("assign", types), types[1])
    return [TOKEN]


def _whole_type(op: str) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        held = _held(op, types)
        require_dtype(op, held, NUMERIC)
        _check_fits(op, held, types[1])
        return [held]

    return rule


def _rows_type(op: str, *, numeric: bool = True) -> InferRule:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        held, indices, updates = _held(op, types), types[1], types[2]
        if numeric:
            require_dtype(op, held, NUMERIC)
        if not held.rank:
            raise ShapeError(f"op '{op}': a variable of type {held} has no rows")
        if not isinstance(indices, TensorType) or not indices.dtype.is_integer:
            raise TypeRuleError(
                f"op '{op}': the indices must be integers, got {indices}",
                hint="convert them with wf.astype(x, wf.int64)",
            )
        if not isinstance(updates, TensorType) or updates.dtype is not held.dtype:
            raise TypeRuleError(f"op '{op}': updates of a {held} must be {held.dtype.name}, got "
                                f"{updates}")  # fmt: skip
        wanted = (*indices.shape, *held.shape[1:])
        check_shape(op, "the updates", updates.shape, wanted)
        return [held]

    return rule


def _read_open_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return fill_sizes("read_open", [_held("read_open", types)], attrs)


def _assign_open_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_fits("assign_open", _held("assign_open", types), types[1])
    return [TOKEN]


def _update_open_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    update = str(attrs["update"])
    if update not in UPDATES:
        raise TypeRuleError(
            f"op 'update_open': there is no update {update!r}",
            hint=f"it is one of {', '.join(sorted(UPDATES))}",
        )
    if len(types) != 2 + update.startswith("scatter"):
        raise TypeRuleError(f"op 'update_open': {update} has another number of operands")
    return fill_sizes("update_open", _UPDATE_RULES[update](types, attrs, regions), attrs)


def _is_initialized_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    _held("is_initialized", types)
    return [TensorType(bool_)]


def _assert_initialized_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    for t in types:
        _held("assert_initialized", [t])
    return [TOKEN]


def _report_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op, names = "report_uninitialized", attrs["names"]
    for t in types:
        _held(op, [t])
    assert isinstance(names, tuple)
    if len(names) != len(types):
        raise TypeRuleError(f"op '{op}': {len(types)} variables have {len(names)} names")
    return fill_sizes(op, [TensorType(string, (None,))], attrs)


def _count_up_to_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    held = _held("count_up_to", types)
    if held.rank or not held.dtype.is_integer:
        raise TypeRuleError(f"op 'count_up_to' takes a variable that holds one integer, got {held}")
    return [held]


_UPDATE_RULES: Mapping[str, InferRule] = {
    **{op: _whole_type(op) for op in ("assign_add", "assign_sub")},
    **{op: _rows_type(op) for op in ("scatter_add", "scatter_sub")},
    "scatter_update": _rows_type("scatter_update", numeric=False),
}
_UPDATE = frozenset({"reads_state", "writes_state", "no_fold", "no_cse", "no_dce"})
_ASKS = frozenset({"host", "reads_state", "no_fold", "no_cse"})

TABLE = (
    OpSpec(
        "variable",
        0,
        _variable_type,
        None,
        "A handle to the mutable state called `name`; shared by name (paper, section 3.1).",
        {"name": AttrSpec("str"), "dtype": AttrSpec("dtype"), "shape": AttrSpec("shape")},
        frozenset({"no_fold"}),
    ),
    OpSpec(
        "read",
        1,
        _read_type,
        None,
        "The value that the variable has at this point of the effect order.",
        traits=frozenset({"reads_state", "no_fold", "no_cse"}),
    ),
    OpSpec(
        "assign",
        2,
        _assign_type,
        None,
        "Store operand 1 in the variable; the token orders later reads and writes.",
        traits=frozenset({"writes_state", "no_fold", "no_cse", "no_dce"}),
    ),
    OpSpec(
        "assign_add", 2, _UPDATE_RULES["assign_add"], None,
        "Add operand 1 to the variable, as one access; the new value.", traits=_UPDATE,
    ),
    OpSpec(
        "assign_sub", 2, _UPDATE_RULES["assign_sub"], None,
        "Subtract operand 1 from the variable, as one access; the new value.", traits=_UPDATE,
    ),
    OpSpec(
        "scatter_add", 3, _UPDATE_RULES["scatter_add"], None,
        "Add operand 2 to the rows at operand 1; duplicates add up; the new value.",
        traits=_UPDATE,
    ),
    OpSpec(
        "scatter_sub", 3, _UPDATE_RULES["scatter_sub"], None,
        "Subtract operand 2 from the rows at operand 1; duplicates add up; the new value.",
        traits=_UPDATE,
    ),
    OpSpec(
        "scatter_update", 3, _UPDATE_RULES["scatter_update"], None,
        "Replace the rows at operand 1; of duplicates the last stays; the new value.",
        traits=_UPDATE,
    ),
    OpSpec(
        "read_open", 1, _read_open_type, None,
        "As read, of a variable whose shape may change; its sizes depend on values.",
        SIZES, frozenset({"host", "reads_state", "no_fold", "no_cse"}),
    ),
    OpSpec(
        "assign_open", 2, _assign_open_type, None,
        "As assign, of a variable whose shape may change: it has that of operand 1 then.",
        traits=frozenset({"host", "writes_state", "no_fold", "no_cse", "no_dce"}),
    ),
    OpSpec(
        "update_open", None, _update_open_type, None,
        "As the update that `update` names, of a variable whose shape may change; it keeps it.",
        {"update": AttrSpec("str"), **SIZES}, _UPDATE | {"host"},
    ),
    OpSpec(
        "is_initialized", 1, _is_initialized_type, None,
        "Whether the variable has a value at this point of the effect order.", traits=_ASKS,
    ),
    OpSpec(
        "assert_initialized", None, _assert_initialized_type, None,
        "An error that names those of the variables that have no value; a token if all have.",
        traits=_ASKS | {"no_dce"},
    ),
    OpSpec(
        "report_uninitialized", None, _report_type, None,
        "The `names` of those of the variables that have no value.",
        {"names": AttrSpec("strs"), "sizes": AttrSpec("strs", ())}, _ASKS,
    ),
    OpSpec(
        "count_up_to", 1, _count_up_to_type, None,
        "Add 1 to the variable unless it has reached `limit`, an error; the value before.",
        {"limit": AttrSpec("int")}, _UPDATE | {"host"},
    ),
)  # fmt: skip
