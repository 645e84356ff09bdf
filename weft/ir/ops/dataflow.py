"""Control flow as dataflow: `switch`, `merge` and the ops around the frames of loops.

These are the primitives of the paper's section 3.4 (from Arvind and Culler's tagged-token
machines; frames and iterations as in TensorFlow's white paper, section 4.4). The value that a
`switch` does not choose is *dead*; an op with a dead operand or control operand does nothing, and
its results are dead; a `merge` gives the one of its operands that is live.

A loop's back edge is an op that names the merge that it feeds, `next_iteration(value, merged)`, so
that a graph stays acyclic as SSA. What the ops of one graph must have in common (frames, one enter
and one next_iteration for each merge of a loop) is checked by `ir.frames`, what may be dead by
`ir.deadness`; `ir.interpreter_dataflow` says how they run.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.attributes import Attrs, AttrSpec
from weft.ir.dtypes import bool_, int32
from weft.ir.errors import TypeRuleError
from weft.ir.graph import Block
from weft.ir.rules import int_attr
from weft.ir.spec import OpSpec, tensors
from weft.ir.types import TOKEN, TensorType, TokenType, Type

#: The ops of this module.
DATAFLOW = frozenset({"switch", "merge", "enter", "exit", "next_iteration", "loop_cond"})

_BOOL = TensorType(bool_)


def _no_token(op: str, value: Type) -> None:
    if isinstance(value, TokenType):
        raise TypeRuleError(
            f"op '{op}' takes a tensor or a handle, got a token",
            hint="order effects by control operands: identity(%x) after(%token)",
        )


def _check_predicate(op: str, pred: Type) -> None:
    if pred != _BOOL:
        raise TypeRuleError(f"op '{op}': the predicate must be a bool[], got {pred}")


def _switch_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    data, pred = types
    _no_token("switch", data)
    _check_predicate("switch", pred)
    return [data, data]


def _merge_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    given = tensors("merge", types)
    if not given:
        raise TypeRuleError("op 'merge' needs at least one operand")
    if attrs["loop"] and len(given) != 1:
        raise TypeRuleError(
            f"op 'merge' with loop=true takes one operand, the loop's enter; got {len(given)}",
            hint="its other input is the next_iteration that names it",
        )
    if any(t != given[0] for t in given):
        listed = ", ".join(map(str, given))
        raise TypeRuleError(f"op 'merge' needs operands of one type, got ({listed})")
    return [given[0], TensorType(int32)]


def _enter_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _no_token("enter", types[0])
    if not attrs["frame"]:
        raise TypeRuleError("op 'enter': the frame needs a name")
    if int_attr(attrs, "parallel_iterations") < 1:
        raise TypeRuleError(
            f"op 'enter': parallel_iterations={attrs['parallel_iterations']}, must be at least 1"
        )
    return [types[0]]


def _exit_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    return [*tensors("exit", types)]


def _next_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    value, merged = tensors("next_iteration", types)
    if value != merged:
        raise TypeRuleError(f"op 'next_iteration': a {value} cannot feed a merge of {merged}")
    return [TOKEN]


def _loop_cond_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_predicate("loop_cond", types[0])
    return [types[0]]


_NO_FOLD = frozenset({"no_fold"})

TABLE = (
    OpSpec(
        "switch",
        2,
        _switch_type,
        None,
        "(output_false, output_true): the data on the side that the predicate chooses; the other "
        "one is dead.",
        traits=_NO_FOLD,
    ),
    OpSpec(
        "merge",
        None,
        _merge_type,
        None,
        "(the operand that is live, its number); dead if all are. With loop=true the operand is an "
        "enter's, number 0, in the first iteration, and a next_iteration's, number 1, later.",
        {"loop": AttrSpec("bool", False)},
        frozenset({"no_fold", "no_cse"}),
    ),
    OpSpec(
        "enter",
        1,
        _enter_type,
        None,
        "The operand in the first iteration of the frame, or with constant=true in every one; at "
        "most `parallel_iterations` of them are under way at once.",
        {
            "frame": AttrSpec("str"),
            "constant": AttrSpec("bool", False),
            "parallel_iterations": AttrSpec("int", 10),
        },
        _NO_FOLD,
    ),
    OpSpec(
        "exit",
        1,
        _exit_type,
        None,
        "The operand outside of the frame, from the one iteration in which it is live.",
        traits=_NO_FOLD,
    ),
    OpSpec(
        "next_iteration",
        2,
        _next_type,
        None,
        "Operand 0 in the next iteration, as the input of the loop's merge that has output "
        "operand 1; if dead, it starts none.",
        traits=frozenset({"no_fold", "no_cse", "no_dce"}),
    ),
    OpSpec(
        "loop_cond",
        1,
        _loop_cond_type,
        None,
        "The operand, marked as the predicate by which the frame's loop goes on.",
        traits=_NO_FOLD,
    ),
)
