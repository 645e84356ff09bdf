"""Core ops: constants, identities, groups of control operands, custom gradients, fused regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.dtypes import bool_
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import Array, Attrs, AttrSpec, ConstArray, OpSpec, tensors
from weft.ir.types import TOKEN, TensorType, Type


def _constant_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    value = attrs["value"]
    assert isinstance(value, ConstArray)
    return [TensorType(value.dtype, value.array.shape)]


def _constant(arrays: Sequence[Array], attrs: Attrs) -> Array:
    value = attrs["value"]
    assert isinstance(value, ConstArray)
    return value.array


def _identity_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return tensors("identity", types)  # type: ignore[return-value]


def _row_guard_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    x, flags = tensors("row_guard", types)
    if flags.dtype is not bool_ or flags.shape != x.shape[: len(flags.shape)]:
        raise TypeRuleError(
            f"op 'row_guard': the flags are {flags}, not bools for the first axes of a {x}"
        )
    return [x]


def _group_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [TOKEN]


def _region_types(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    (region,) = regions
    expected = [a.type for a in region.args]
    if list(types) != expected:
        raise TypeRuleError(
            f"op 'fused': operands ({', '.join(map(str, types))}) do not fit the "
            f"region's arguments ({', '.join(map(str, expected))})"
        )
    return [v.type for v in region.results]


def _custom_gradient_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> list[Type]:
    # operands: outputs of the function, its inputs, values captured by the gradient function;
    # region: (cotangents of the outputs, captures) -> cotangents of the inputs
    outputs, inputs = attrs["outputs"], attrs["inputs"]
    assert isinstance(outputs, int)
    assert isinstance(inputs, int)
    (region,) = regions
    wanted = [*types[:outputs], *types[outputs + inputs :]]
    if [a.type for a in region.args] != wanted:
        raise TypeRuleError("op 'custom_gradient': the region's arguments do not fit the operands")
    if [v.type for v in region.results] != list(types[outputs : outputs + inputs]):
        raise TypeRuleError("op 'custom_gradient': the region's results do not fit the inputs")
    return list(types[:outputs])


class CustomRule(str):
    """The name of a rule for a gradient, with what traces it: a block for operands of these
    types."""

    __slots__ = ("block",)
    block: Callable[[Sequence[Type]], Block]

    def __new__(cls, name: str, block: Callable[[Sequence[Type]], Block]) -> CustomRule:
        made = super().__new__(cls, name)
        made.block = block
        return made


def _custom_rule_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    like = attrs["like"]
    assert isinstance(like, tuple)
    if not all(0 <= k < len(types) for k in like):
        raise TypeRuleError(f"op 'custom_rule': like {like} does not name operands")
    return [types[k] for k in like]


def _passing_on(name: str, doc: str) -> OpSpec:
    return OpSpec(name, 1, _identity_type, lambda arrays, attrs: arrays[0], doc, {}, _VIEW)


def _first_operands(arrays: Sequence[Array], attrs: Attrs) -> list[Array]:
    outputs = attrs["outputs"]
    assert isinstance(outputs, int)
    return list(arrays[:outputs])


_VIEW = frozenset({"view"})

TABLE = (
    OpSpec(
        "constant",
        0,
        _constant_type,
        _constant,
        "A compile-time array.",
        {"value": AttrSpec("array")},
    ),
    _passing_on("identity", "The operand itself."),
    _passing_on("stop_gradient", "The operand itself, through which no gradient flows."),
    OpSpec(
        "tap",
        1,
        _identity_type,
        lambda arrays, attrs: arrays[0],
        "The operand itself, which has a name for people.",
        {"name": AttrSpec("str")},
        _VIEW,
    ),
    OpSpec(
        "optimization_barrier",
        1,
        _identity_type,
        lambda arrays, attrs: arrays[0],
        "The operand itself, which no pass merges with what it is: what follows is computed again.",
        {},
        _VIEW | {"no_cse", "no_fold"},
    ),
    OpSpec(
        "row_guard",
        2,
        _row_guard_type,
        lambda arrays, attrs: arrays[0],
        "The first operand itself, which gets no cotangent where a flag for its first axes is "
        "false, not even NaN.",
        {},
        _VIEW | {"no_cse", "no_fold"},
    ),
    OpSpec(
        "loop_mark",
        1,
        _identity_type,
        lambda arrays, attrs: arrays[0],
        "The operand itself, in the body of a loop that rows of a batch may leave one by one: "
        "`live`, and only for rows that are still in it; else a carry that goes on for all rows.",
        {"live": AttrSpec("bool")},
        _VIEW | {"no_cse", "no_fold"},
    ),
    OpSpec(
        "group",
        0,
        _group_type,
        None,
        "A token that comes after all control operands (TF1's tf.group; without any, no_op).",
        traits=frozenset({"no_fold", "no_cse"}),
    ),
    OpSpec(
        "custom_gradient",
        None,
        _custom_gradient_type,
        _first_operands,
        "Passes the first `outputs` operands on; its gradient is its region.",
        {"outputs": AttrSpec("int"), "inputs": AttrSpec("int")},
        frozenset({"no_cse"}),
        regions=1,
    ),
    OpSpec(
        "custom_rule",
        None,
        _custom_rule_type,
        None,
        "In the region of a custom_gradient: what a rule computes that is traced with the next "
        "derivative; its results have the types of the operands `like`.",
        {"rule": AttrSpec("str"), "like": AttrSpec("ints")},
        frozenset({"no_cse", "no_fold"}),
    ),
    OpSpec(
        "fused",
        None,
        _region_types,
        None,
        "The ops of its region as one loop nest.",
        {"kind": AttrSpec("str", "loop")},
        regions=1,
    ),
    OpSpec(
        "unrolled",
        None,
        _region_types,
        None,
        "The ops of its region on small arrays, with a register for each element.",
        regions=1,
    ),
)
