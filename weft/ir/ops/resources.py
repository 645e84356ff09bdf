"""Resource ops: queues, hash tables, barriers, accumulators and stacks of the host, which steps
share and may wait for (the paper, sections 3.1 and 4.4).

An op without operands names an object and gives its handle; ops of the host work on it. As other
steps use it too, nothing orders two of them but operands and control operands. `runtime.resources`
holds the objects, `runtime.dataflow.host_ops` carries the ops out.

The kinds are TensorFlow's: hash tables are its LookupTable ops (keys to values of one shape);
in a Barrier components arrive by key and complete elements leave; a ConditionalAccumulator or
SparseConditionalAccumulator gives the gradients of several workers when enough are there; a Stack
is last in, first out (what gradients of loops use is the type `stack`: `control_flow.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from weft.ir.dims import Dim, SymbolicDim
from weft.ir.dtypes import ALL, bool_, int32, int64, string
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.ops.dynamic import SIZES, fill_sizes, size_names
from weft.ir.spec import Array, Attrs, AttrSpec, ConstArray, OpSpec, fits, int_attr, tensors
from weft.ir.types import TOKEN, HandleType, TensorType, Type

#: The kinds of queues, by the attribute `kind`.
QUEUE_KINDS = ("fifo", "padding", "shuffle", "priority")
_PART = re.compile(r"(\w+)\[(?:\.\.\.(\d+)|((?:\?|\d+)(?:,(?:\?|\d+))*)?)\]")
_DTYPES = {d.short: d for d in ALL}
#: The traits of an op on a resource.
HOST = frozenset({"host", "no_fold", "no_cse", "no_dce"})
#: The traits of an op that names one.
NAMES = frozenset({"handle", "no_fold"})


def part_type(text: str) -> TensorType:
    """The type of a component as the attribute `parts` has it: "f32[3,?]". Raises TypeRuleError.

    "f32[...2]" is a component whose elements may have any shape, and have two axes in this graph.
    """
    found = _PART.fullmatch(text)
    if found is None or found[1] not in _DTYPES:
        raise TypeRuleError(f"{text!r} is no type of a component, as f32[3,?] is")
    sizes = ["?"] * int(found[2]) if found[2] else found[3].split(",") if found[3] else []
    return TensorType(_DTYPES[found[1]], tuple(None if s == "?" else int(s) for s in sizes))


def declared_part(text: str) -> str:
    """A component as it was declared: "f32[...]" for one of "f32[...2]", else the same."""
    found = _PART.fullmatch(text)
    return f"{found[1]}[...]" if found is not None and found[2] else text


#: The name of a size that depends on values, one for the whole op (see `ir.ops.dynamic`).
_COUNT_SIZES = {"sizes": AttrSpec("strs", ())}


def count_dim(op: str, attrs: Attrs) -> Dim:
    """The size that the attribute `sizes` names; None if it names none."""
    names = attrs["sizes"]
    assert isinstance(names, tuple)
    if len(names) > 1:
        raise TypeRuleError(f"op '{op}' has one size that depends on values, got {list(names)}")
    return SymbolicDim.symbol(str(names[0])) if names else None


def declared_parts(op: str, attrs: Attrs, count: int | None = None) -> tuple[TensorType, ...]:
    """The types in the attribute `parts`: `count` of them, or at least one."""
    given = attrs["parts"]
    assert isinstance(given, tuple)
    parts = tuple(part_type(str(p)) for p in given)
    if not parts or count not in (None, len(parts)):
        raise TypeRuleError(f"op '{op}' declares {count or 'at least 1'} parts, got {len(parts)}")
    return parts


def parts_of(op: str, types: Sequence[Type], *kinds: str) -> tuple[TensorType, ...]:
    """The parts of the handle that is the first operand. TypeRuleError if it is of none of these
    kinds."""
    handle = types[0] if types else None
    if not isinstance(handle, HandleType) or handle.kind not in kinds:
        wanted = " or ".join(f"a {kind}" for kind in kinds)
        raise TypeRuleError(f"op '{op}' takes {wanted} as its first operand, got {handle}")
    return handle.parts


def given_tensors(op: str, types: Sequence[Type], *names: str) -> list[TensorType]:
    """The operands after the handle, one for each name. TypeRuleError for another number."""
    values = tensors(op, types[1:])
    if len(values) != len(names):
        raise TypeRuleError(
            f"op '{op}' takes {len(names)} operands after the handle ({', '.join(names)}), got "
            f"{len(values)}"
        )
    return values


def check_operand(op: str, what: str, given: TensorType, wanted: TensorType) -> None:
    """TypeRuleError or ShapeError unless `given` can be a `wanted`."""
    if given.dtype is not wanted.dtype:
        raise TypeRuleError(f"op '{op}': {what} is {wanted}, got {given}")
    if not fits(given.shape, wanted.shape):
        raise ShapeError(f"op '{op}': {what} is {wanted}, got {given}")


def nothing_more(op: str, types: Sequence[Type], *kinds: str) -> tuple[TensorType, ...]:
    """`parts_of` for an op whose only operand is the handle."""
    parts = parts_of(op, types, *kinds)
    given_tensors(op, types)
    return parts


def asks(
    op: str, kinds: Sequence[str], result: Type, doc: str,
    attrs: Mapping[str, AttrSpec] | None = None, traits: frozenset[str] = HOST,
) -> OpSpec:  # fmt: skip
    """The row of an op whose only operand is the handle, and whose result has one type."""

    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        nothing_more(op, types, *kinds)
        return [result]

    return OpSpec(op, 1, rule, None, doc, attrs or {}, traits)


def _queue_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    parts = attrs["parts"]
    assert isinstance(parts, tuple)
    if attrs["kind"] not in QUEUE_KINDS:
        raise TypeRuleError(
            f"op 'queue': there is no kind {attrs['kind']!r}",
            hint=f"the kinds are {', '.join(QUEUE_KINDS)}",
        )
    if not parts:
        raise TypeRuleError("op 'queue': there must be at least one component")
    return [HandleType("queue", tuple(part_type(str(p)) for p in parts))]


def _batched(part: TensorType, size: int | None) -> TensorType:
    return TensorType(part.dtype, (size, *part.shape))


def _check_values(op: str, parts: Sequence[TensorType], given: Sequence[Type]) -> None:
    values = tensors(op, given)
    if len(values) != len(parts):
        raise TypeRuleError(
            f"op '{op}': elements of this queue have {len(parts)} components, got {len(values)}"
        )
    for i, (part, value) in enumerate(zip(parts, values, strict=True)):
        if value.dtype is not part.dtype:
            raise TypeRuleError(f"op '{op}': component {i} is {part}, got {value}")
        if not fits(value.shape, part.shape):
            raise ShapeError(f"op '{op}': component {i} is {part}, got {value}")


def _enqueue_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_values("enqueue", parts_of("enqueue", types, "queue"), types[1:])
    return [TOKEN]


def _enqueue_many_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    parts = parts_of("enqueue_many", types, "queue")
    values = tensors("enqueue_many", types[1:])
    if any(not v.rank for v in values):
        raise ShapeError("op 'enqueue_many': the values need a first axis that counts the elements")
    if len({v.shape[0] for v in values if isinstance(v.shape[0], int)}) > 1:
        raise ShapeError(
            "op 'enqueue_many': the components have different numbers of elements: "
            + ", ".join(map(str, values))
        )
    _check_values("enqueue_many", parts, [TensorType(v.dtype, v.shape[1:]) for v in values])
    return [TOKEN]


def _dequeue_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return fill_sizes("dequeue", parts_of("dequeue", types, "queue"), attrs)


def _dequeue_many_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    n = int_attr(attrs, "n")
    if n < 0:
        raise ShapeError(f"op 'dequeue_many': n={n} is negative")
    return fill_sizes(
        "dequeue_many", [_batched(p, n) for p in parts_of("dequeue_many", types, "queue")], attrs
    )


def _dequeue_up_to_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    parts, n = parts_of("dequeue_up_to", types, "queue"), int_attr(attrs, "n")
    if n < 0:
        raise ShapeError(f"op 'dequeue_up_to': n={n} is negative")
    names = size_names(attrs)
    count = SymbolicDim.symbol(names[0]) if names else None  # all components have one count
    batches = [TensorType(p.dtype, (count, *p.shape)) for p in parts]
    return fill_sizes("dequeue_up_to", batches, {**attrs, "sizes": names[1:]})


QUEUE_TABLE = (
    OpSpec(
        "queue",
        0,
        _queue_type,
        None,
        "A handle to the queue called `name`, which steps share; made when a step first needs it.",
        {
            "name": AttrSpec("str"),
            "kind": AttrSpec("str", "fifo"),
            "capacity": AttrSpec("int", -1),
            "parts": AttrSpec("strs"),
            "min_after_dequeue": AttrSpec("int", 0),
            "seed": AttrSpec("int", -1),
        },
        NAMES,
    ),
    OpSpec(
        "enqueue", None, _enqueue_type, None,
        "Append one element, its components the operands after the handle; waits for room.",
        traits=HOST,
    ),
    OpSpec(
        "enqueue_many", None, _enqueue_many_type, None,
        "Append the elements that lie along the first axis of the operands; waits for room.",
        traits=HOST,
    ),
    OpSpec(
        "dequeue", 1, _dequeue_type, None,
        "Take one element: its components; waits for it.", SIZES, HOST,
    ),
    OpSpec(
        "dequeue_many", 1, _dequeue_many_type, None,
        "Take `n` elements, stacked along a new first axis; waits for them.",
        {"n": AttrSpec("int"), **SIZES}, HOST,
    ),
    OpSpec(
        "dequeue_up_to", 1, _dequeue_up_to_type, None,
        "Take `n` elements, or what is left of a closed queue, stacked along a new first axis.",
        {"n": AttrSpec("int"), **SIZES}, HOST,
    ),
    asks("queue_size", ["queue"], TensorType(int32), "How many elements it holds now."),
    asks(
        "queue_close", ["queue"], TOKEN,
        "Accept no more elements; with cancel_pending not from those that wait either.",
        {"cancel_pending": AttrSpec("bool", False)},
    ),
    asks("queue_is_closed", ["queue"], TensorType(bool_), "Whether it was closed."),
)  # fmt: skip


#: The kinds of tables, by the attribute `kind`.
TABLE_KINDS = ("mutable", "static", "vocabulary")


def _table_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    key, value = declared_parts("table", attrs, 2)
    if key.shape or not (key.dtype.is_integer or key.dtype is string):
        raise TypeRuleError(f"op 'table': keys are integers or strings without axes, got {key}")
    if not value.is_static:
        raise ShapeError(f"op 'table': the shape of the values must be known, got {value}")
    kind = attrs["kind"]
    if kind not in TABLE_KINDS:
        raise TypeRuleError(
            f"op 'table': there is no kind {kind!r}", hint=f"they are {', '.join(TABLE_KINDS)}"
        )
    if kind == "vocabulary" and (int_attr(attrs, "buckets") < 1 or value != TensorType(int64)):
        raise TypeRuleError(
            "op 'table': one of kind 'vocabulary' has buckets, and ids of type i64[]"
        )
    _check_held("default", attrs, value)
    if kind != "mutable":
        count = _check_held("keys", attrs, TensorType(key.dtype, (None,))).shape[0]
        _check_held("values", attrs, TensorType(value.dtype, (count, *value.shape)))
    return [HandleType("table", (key, value))]


def _check_held(name: str, attrs: Attrs, wanted: TensorType) -> Array:
    """The array that the attribute is. TypeRuleError if it is none of that type."""
    held = attrs[name]
    array = held.array if isinstance(held, ConstArray) else None
    if array is None or array.dtype != wanted.dtype.numpy or not fits(array.shape, wanted.shape):
        given = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise TypeRuleError(f"op 'table': {name} are {wanted}, got {given}")
    return array


def _takes_pairs(op: str, doc: str) -> OpSpec:
    def rule(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
        key, value = parts_of(op, types, "table")
        keys, values = given_tensors(op, types, "keys", "values")
        check_operand(op, "keys", keys, TensorType(key.dtype, keys.shape))
        check_operand(op, "values", values, TensorType(value.dtype, (*keys.shape, *value.shape)))
        return [TOKEN]

    return OpSpec(op, 3, rule, None, doc, traits=HOST)


def _lookup_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "table_lookup"
    key, value = parts_of(op, types, "table")
    if len(types) == 2:
        (keys,) = given_tensors(op, types, "keys")
    else:
        keys, defaults = given_tensors(op, types, "keys", "defaults")
        if not fits(defaults.shape, value.shape):
            wanted = TensorType(value.dtype, (*keys.shape, *value.shape))
            check_operand(op, "defaults", defaults, wanted)
        check_operand(op, "defaults", defaults, TensorType(value.dtype, defaults.shape))
    check_operand(op, "keys", keys, TensorType(key.dtype, keys.shape))
    return [TensorType(value.dtype, (*keys.shape, *value.shape))]


def _remove_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    key, _ = parts_of("table_remove", types, "table")
    (keys,) = given_tensors("table_remove", types, "keys")
    check_operand("table_remove", "keys", keys, TensorType(key.dtype, keys.shape))
    return [TOKEN]


def _export_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    key, value = nothing_more("table_export", types, "table")
    n = count_dim("table_export", attrs)
    return [TensorType(key.dtype, (n,)), TensorType(value.dtype, (n, *value.shape))]


HASH_TABLE_TABLE = (
    OpSpec(
        "table", 0, _table_type, None,
        "A handle to the hash table called `name`, which steps share; parts: of keys and values, "
        "which one that never changes has as attributes.",
        {
            "name": AttrSpec("str"),
            "parts": AttrSpec("strs"),
            "default": AttrSpec("array"),
            "kind": AttrSpec("str", "mutable"),
            "keys": AttrSpec("array", None, optional=True),
            "values": AttrSpec("array", None, optional=True),
            "buckets": AttrSpec("int", 0),
        },
        NAMES,
    ),
    OpSpec(
        "table_lookup", None, _lookup_type, None,
        "The values of the keys; a key that is not there has the default value, or that of a third "
        "operand.",
        traits=HOST,
    ),
    _takes_pairs("table_insert", "Store values for keys; the last of a duplicate key stays."),
    OpSpec(
        "table_remove", 2, _remove_type, None,
        "Forget keys; those that are not there are skipped.", traits=HOST,
    ),
    OpSpec(
        "table_export", 1, _export_type, None,
        "All keys and all values, in the order in which the keys came.",
        _COUNT_SIZES, HOST,
    ),
    _takes_pairs("table_import", "Hold exactly these keys and values."),
    asks("table_size", ["table"], TensorType(int64), "How many keys there are."),
)  # fmt: skip


def _barrier_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [HandleType("barrier", declared_parts("barrier", attrs))]


def _barrier_insert_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    op = "barrier_insert_many"
    parts = parts_of(op, types, "barrier")
    number = int_attr(attrs, "component")
    if not 0 <= number < len(parts):
        raise TypeRuleError(f"op '{op}': component={number}, but there are {len(parts)}")
    keys, values = given_tensors(op, types, "keys", "values")
    if not values.rank:
        raise ShapeError(f"op '{op}': the values need a first axis that counts the elements")
    part = parts[number]
    check_operand(op, "keys", keys, TensorType(string, values.shape[:1]))
    check_operand(
        op, f"component {number}", values, TensorType(part.dtype, (values.shape[0], *part.shape))
    )
    return [TOKEN]


def _taken(op: str, types: Sequence[Type], n: Dim, names: Sequence[str]) -> list[Type]:
    parts = nothing_more(op, types, "barrier")
    values = [TensorType(p.dtype, (n, *p.shape)) for p in parts]
    if names:
        values = tensors(op, fill_sizes(op, values, {"sizes": tuple(names)}))
    return [TensorType(int64, (n,)), TensorType(string, (n,)), *values]


def _take_many_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "barrier_take_many"
    return _taken(op, types, _count(op, attrs), size_names(attrs))


def _take_up_to_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op, names = "barrier_take_up_to", size_names(attrs)
    _count(op, attrs)
    return _taken(op, types, SymbolicDim.symbol(names[0]) if names else None, names[1:])


def _count(op: str, attrs: Attrs) -> int:
    n = int_attr(attrs, "n")
    if n < 0:
        raise ShapeError(f"op '{op}': n={n} is negative")
    return n


BARRIER_TABLE = (
    OpSpec(
        "barrier", 0, _barrier_type, None,
        "A handle to the barrier called `name`, which steps share; parts: of its components "
        "(of one of any shape that nothing is known of yet, as if it had no axes).",
        {"name": AttrSpec("str"), "parts": AttrSpec("strs")}, NAMES,
    ),
    OpSpec(
        "barrier_insert_many", 3, _barrier_insert_type, None,
        "Give one component of the elements of some keys their values.",
        {"component": AttrSpec("int")}, HOST,
    ),
    OpSpec(
        "barrier_take_many", 1, _take_many_type, None,
        "Take `n` complete elements: indices, keys and the components, stacked; waits for them.",
        {"n": AttrSpec("int"), **_COUNT_SIZES}, HOST,
    ),
    OpSpec(
        "barrier_take_up_to", 1, _take_up_to_type, None,
        "As barrier_take_many; those that are left when it is closed will do.",
        {"n": AttrSpec("int"), **_COUNT_SIZES}, HOST,
    ),
    asks(
        "barrier_close", ["barrier"], TOKEN,
        "Accept no new keys; with cancel_pending those that miss components are dropped.",
        {"cancel_pending": AttrSpec("bool", False)},
    ),
    asks(
        "barrier_ready_size", ["barrier"], TensorType(int32), "How many elements are complete now."
    ),
    asks(
        "barrier_incomplete_size", ["barrier"], TensorType(int32),
        "How many keys miss components now.",
    ),
)  # fmt: skip


_KINDS = ("accumulator", "sparse_accumulator")
_STEP = TensorType(int64)


def _declared(op: str, attrs: Attrs) -> TensorType:
    (part,) = declared_parts(op, attrs, 1)
    if not part.dtype.is_inexact:
        raise TypeRuleError(f"op '{op}': gradients are floats or complex, got {part}")
    if attrs["reduction"] not in ("MEAN", "SUM"):
        raise TypeRuleError(f'op \'{op}\': reduction is "MEAN" or "SUM"')
    return part


def _dense_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    part = _declared("accumulator", attrs)
    return [HandleType("accumulator", (part,))]


def _sparse_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    part = _declared("sparse_accumulator", attrs)
    if not part.rank:
        raise ShapeError(f"op 'sparse_accumulator': an array without axes has no rows, got {part}")
    return [HandleType("sparse_accumulator", (part,))]


def _apply_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "accumulator_apply_gradient"
    (part,) = parts_of(op, types, "accumulator")
    step, gradient = given_tensors(op, types, "local_step", "gradient")
    check_operand(op, "local_step", step, _STEP)
    check_operand(op, "gradient", gradient, part)
    return [TOKEN]


def _apply_rows_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "sparse_accumulator_apply_gradient"
    (part,) = parts_of(op, types, "sparse_accumulator")
    step, indices, values = given_tensors(op, types, "local_step", "indices", "values")
    check_operand(op, "local_step", step, _STEP)
    if indices.rank != 1:
        raise ShapeError(f"op '{op}': indices have one axis, got {indices}")
    check_operand(op, "indices", indices, TensorType(int64, indices.shape))
    rows = TensorType(part.dtype, (indices.shape[0], *part.shape[1:]))
    check_operand(op, "values", values, rows)
    return [TOKEN]


def _take_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "accumulator_take_gradient"
    (part,) = parts_of(op, types, "accumulator")
    (required,) = given_tensors(op, types, "num_required")
    check_operand(op, "num_required", required, _STEP)
    return fill_sizes(op, [part], attrs)


def _take_rows_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "sparse_accumulator_take_gradient"
    (part,) = parts_of(op, types, "sparse_accumulator")
    (required,) = given_tensors(op, types, "num_required")
    check_operand(op, "num_required", required, _STEP)
    names = size_names(attrs)  # the number of rows, then the sizes of a row that are not known
    n = SymbolicDim.symbol(names[0]) if names else None
    rows = fill_sizes(op, [TensorType(part.dtype, part.shape[1:])], {"sizes": names[1:]})
    (row,) = tensors(op, rows)
    return [TensorType(int64, (n,)), TensorType(part.dtype, (n, *row.shape))]


def _set_step_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    op = "accumulator_set_global_step"
    parts_of(op, types, *_KINDS)
    (step,) = given_tensors(op, types, "new_global_step")
    check_operand(op, "new_global_step", step, _STEP)
    return [TOKEN]


_ACCUMULATOR_ATTRS = {
    "name": AttrSpec("str"),
    "parts": AttrSpec("strs"),
    "reduction": AttrSpec("str", "MEAN"),
}

ACCUMULATOR_TABLE = (
    OpSpec(
        "accumulator", 0, _dense_type, None,
        "A handle to the accumulator called `name`, which steps share; parts: of its gradients.",
        _ACCUMULATOR_ATTRS, NAMES,
    ),
    OpSpec(
        "sparse_accumulator", 0, _sparse_type, None,
        "A handle to an accumulator of rows; parts: of the whole array.", _ACCUMULATOR_ATTRS, NAMES,
    ),
    OpSpec(
        "accumulator_apply_gradient", 3, _apply_type, None,
        "Add a gradient, unless local_step is before the global step.", traits=HOST,
    ),
    OpSpec(
        "sparse_accumulator_apply_gradient", 4, _apply_rows_type, None,
        "Add rows at indices, unless local_step is before the global step.", traits=HOST,
    ),
    OpSpec(
        "accumulator_take_gradient", 2, _take_type, None,
        "Wait for so many gradients; the mean or sum of all that are there.", _COUNT_SIZES, HOST,
    ),
    OpSpec(
        "sparse_accumulator_take_gradient", 2, _take_rows_type, None,
        "Wait for so many gradients; the rows that are there: indices, ascending, and values.",
        _COUNT_SIZES, HOST,
    ),
    OpSpec(
        "accumulator_set_global_step", 2, _set_step_type, None,
        "Drop gradients of earlier steps from now on.", traits=HOST,
    ),
    asks(
        "accumulator_num_accumulated", _KINDS, TensorType(int32),
        "How many gradients were added since the last take.",
    ),
)  # fmt: skip


def _stack_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (part,) = declared_parts("host_stack", attrs, 1)
    return [HandleType("host_stack", (part,))]


def _push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (part,) = parts_of("host_stack_push", types, "host_stack")
    (value,) = given_tensors("host_stack_push", types, "value")
    check_operand("host_stack_push", "value", value, part)
    return [value]


def _pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return fill_sizes("host_stack_pop", nothing_more("host_stack_pop", types, "host_stack"), attrs)


HOST_STACK_TABLE = (
    OpSpec(
        "host_stack", 0, _stack_type, None,
        "A handle to the stack of the host called `name`, which steps share; parts: of its values.",
        {"name": AttrSpec("str"), "parts": AttrSpec("strs"), "max_size": AttrSpec("int", -1)},
        NAMES,
    ),
    OpSpec(
        "host_stack_push", 2, _push_type, None,
        "Put a value on top, and give it back.", traits=HOST,
    ),
    OpSpec("host_stack_pop", 1, _pop_type, None, "Take the value on top.", _COUNT_SIZES, HOST),
    asks("host_stack_size", ["host_stack"], TensorType(int32), "How many values it holds now."),
    asks("host_stack_close", ["host_stack"], TOKEN, "Free the values; later ops on it fail."),
)  # fmt: skip


RESOURCE_TABLE = (
    *HASH_TABLE_TABLE,
    *BARRIER_TABLE,
    *ACCUMULATOR_TABLE,
    *HOST_STACK_TABLE,
)
