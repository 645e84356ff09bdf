"""Control-flow ops: structured branches and loops, stacks, dataflow primitives, send and recv.

Structured ops, `cond`, `while` and `scan`, hold their bodies as regions. A region sees only its own
arguments: what it uses from outside comes in as an operand, which may also be a handle or a ref
(not a carry, nor a sequence). Regions that hold ops of the host, or reads and writes of state, run
on the dataflow executor; in compiled steps the frontend carries the values of variables through
them.

Stacks are what the gradient of a loop of unknown length keeps of every iteration, as values.
Pushing makes a new stack and leaves the old one as it is, so stacks need no order of effects, and
their cotangents are stacks again: that of a push is a pop. Below its last element a stack holds
zeros without end; so a stack without elements is the zero of all stacks, and popping never fails.
For code generation `lower_stacks` turns stacks into handles, i64[] (0: no element), and these ops
into the `arena_` ops on them; elements live in the arena of the running step. (Stacks that steps
share are resources of the host: `resources.py`.)

Dataflow primitives, `switch`, `merge` and the ops around the frames of loops, are those of the
paper's section 3.4 (from Arvind and Culler's tagged-token machines; frames and iterations as in
TensorFlow's white paper, section 4.4). The value that a `switch` does not choose is *dead*; an op
with a dead operand or control operand does nothing, and its results are dead; a `merge` gives the
one of its operands that is live. A loop's back edge is an op that names the merge that it feeds,
`next_iteration(value, merged)`, so that a graph stays acyclic as SSA. What the ops of one graph
must have in common (frames, one enter and one next_iteration for each merge of a loop) is checked
by `ir/analysis/frames.py`, what may be dead by `ir/analysis/deadness.py`;
`ir/interpreter/dataflow.py` says how they run.

Messages: a graph that was cut over devices has `send` in one part and `recv` in another. The pair
of a tensor and a device that needs it has a `key`, a small number of its own in the whole program.
In loops both ops take the iteration numbers of the frames around them, outermost first, so (step,
key, iterations) names one message, and one pair serves all iterations. A `send` runs whether or not
its data are dead, and sends a dead value as dead (the paper, section 3.4): so each message that is
waited for comes. It does not run if an iteration number is dead, nor does its `recv` then."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.dims import Dim, format_dim, same
from weft.ir.dtypes import DType, bool_, int32, int64
from weft.ir.errors import ShapeError, TypeRuleError
from weft.ir.graph import Block
from weft.ir.spec import (
    Attrs,
    AttrSpec,
    OpSpec,
    dim_attr,
    dtype_attr,
    int_attr,
    shape_attr,
    tensors,
)
from weft.ir.types import TOKEN, HandleType, RefType, StackType, TensorType, TokenType, Type

#: The ops of this module.
CONTROL = frozenset({"cond", "while", "scan"})
_PREDICATE = TensorType(bool_)


def length_attr(attrs: Attrs) -> Dim:
    """The attribute `length` of a scan: an int, or a symbolic dimension before specialisation."""
    return dim_attr(attrs, "length")


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


def _check_region(op: str, what: str, got: Sequence[Type], wanted: Sequence[Type]) -> None:
    """Raise TypeRuleError unless the two lists of types are the same."""
    if list(got) != list(wanted):
        raise TypeRuleError(f"op '{op}': {what} {_listed(got)}, needs {_listed(wanted)}")


def _check_arguments(
    op: str, names: Sequence[str], regions: Sequence[Block], wanted: Sequence[Type]
) -> None:
    for name, region in zip(names, regions, strict=True):
        _check_region(
            op, f"the arguments of region '{name}' are", [a.type for a in region.args], wanted
        )


def _results(region: Block) -> list[Type]:
    return [v.type for v in region.results]


def _count(op: str, attrs: Attrs, name: str, most: int) -> int:
    count = int_attr(attrs, name)
    if not 0 <= count <= most:
        raise TypeRuleError(f"op '{op}': {name}={count}, but there are {most} operands for it")
    return count


def _cond_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _no_tokens("cond", types)
    if not types or types[0] != _PREDICATE:
        given = str(types[0]) if types else "nothing"
        raise TypeRuleError(f"op 'cond': the predicate must be a bool[], got {given}")
    _check_arguments("cond", ("then", "orelse"), regions, types[1:])
    then, orelse = map(_results, regions)
    _check_region("cond", "region 'orelse' returns", orelse, then)
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
    _check_region("while", "region 'test' returns", test, [_PREDICATE])
    _check_region("while", "region 'body' returns", body, types[:carries])
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
    _check_region("scan", "region 'body' carries", found[:carries], types[:carries])
    stacked = tensors("scan", found[carries:])
    return [*found[:carries], *(TensorType(t.dtype, (length, *t.shape)) for t in stacked)]


STRUCTURED_TABLE = (
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


#: A stack in compiled code.
HANDLE = TensorType(int64)


def element_type(attrs: Attrs) -> TensorType:
    """The tensor that the attributes `dtype` and `shape` tell of."""
    return TensorType(dtype_attr(attrs, "dtype"), shape_attr(attrs, "shape"))


def _stack(op: str, given: Type) -> StackType:
    if not isinstance(given, StackType):
        raise TypeRuleError(f"op '{op}' takes a stack, got {given}")
    return given


def _new_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    depth = int_attr(attrs, "depth")
    if depth < 1:
        raise TypeRuleError(f"op 'stack_new': depth={depth}, must be at least 1")
    made = StackType(element_type(attrs))
    for _ in range(depth - 1):
        made = StackType(made)
    return [made]


def _stack_push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    stack = _stack("stack_push", types[0])
    if types[1] != stack.element:
        raise TypeRuleError(f"op 'stack_push': a {types[1]} does not go onto a {stack}")
    return [stack]


def _stack_pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    stack = _stack("stack_pop", types[0])
    return [stack, stack.element]


def _add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    stack = _stack("stack_add", types[0])
    if types[1] != stack or not stack.tensor.dtype.is_numeric:
        raise TypeRuleError(f"op 'stack_add': takes two stacks of numbers of one type, got {types}")
    return [stack]


def _handles(op: str, types: Sequence[Type]) -> None:
    for given in types:
        if given != HANDLE:
            raise TypeRuleError(f"op '{op}' takes the handle of a stack, i64[], got {given}")


def _arena_push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _handles("arena_push", types[:1])
    if not isinstance(types[1], TensorType):
        raise TypeRuleError(f"op 'arena_push' takes a tensor, got {types[1]}")
    return [HANDLE]


def _arena_pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _handles("arena_pop", types)
    return [HANDLE, element_type(attrs)]


def _arena_add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _handles("arena_add", types)
    return [HANDLE]


_ELEMENT = {"dtype": AttrSpec("dtype"), "shape": AttrSpec("shape")}
_LIMIT = {"limit": AttrSpec("int", -1)}
_STACK_TRAITS = frozenset({"no_fold"})

STACK_TABLE = (
    OpSpec(
        "stack_new", 0, _new_type, None,
        "A stack without elements: of tensors, or with depth > 1 of stacks.",
        {**_ELEMENT, "depth": AttrSpec("int", 1)}, _STACK_TRAITS,
    ),
    OpSpec(
        "stack_push", 2, _stack_push_type, None,
        "The stack with the value on top; with limit >= 0 an error where it takes more bytes.",
        _LIMIT, _STACK_TRAITS,
    ),
    OpSpec(
        "stack_pop", 1, _stack_pop_type, None,
        "(the stack without its top, the top); of a stack without elements itself and zeros.",
        traits=_STACK_TRAITS,
    ),
    OpSpec(
        "stack_add", 2, _add_type, None,
        "The sums of the elements of two stacks, beginning with their tops.", traits=_STACK_TRAITS,
    ),
    OpSpec(
        "arena_push", 2, _arena_push_type, None,
        "Push on the stack that a handle stands for; nested: the value is a handle, too.",
        {**_LIMIT, "nested": AttrSpec("bool", False)}, _STACK_TRAITS,
    ),
    OpSpec(
        "arena_pop", 1, _arena_pop_type, None,
        "Pop from the stack that a handle stands for; nested: the element is a handle, too.",
        {**_ELEMENT, "nested": AttrSpec("bool", False)}, _STACK_TRAITS,
    ),
    OpSpec(
        "arena_add", 2, _arena_add_type, None,
        "Add two stacks that handles stand for, with `depth` levels of stacks in all.",
        {**_ELEMENT, "depth": AttrSpec("int", 1)}, _STACK_TRAITS,
    ),
)  # fmt: skip

#: The ops of this module.
STACK_OPS = frozenset(spec.name for spec in STACK_TABLE)


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


_DATAFLOW_TRAITS = frozenset({"no_fold"})

DATAFLOW_TABLE = (
    OpSpec(
        "switch",
        2,
        _switch_type,
        None,
        "(output_false, output_true): the data on the side that the predicate chooses; the other "
        "one is dead.",
        traits=_DATAFLOW_TRAITS,
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
        _DATAFLOW_TRAITS,
    ),
    OpSpec(
        "exit",
        1,
        _exit_type,
        None,
        "The operand outside of the frame, from the one iteration in which it is live.",
        traits=_DATAFLOW_TRAITS,
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
        traits=_DATAFLOW_TRAITS,
    ),
)


#: The ops of this module.
COMMUNICATION = frozenset({"send", "recv"})

_COUNTER = TensorType(int64)


def _check_message(op: str, counters: Sequence[Type], attrs: Attrs) -> None:
    for i, t in enumerate(counters):
        if t != _COUNTER:
            raise TypeRuleError(f"op '{op}': iteration number {i} must be an i64[], got {t}")
    if int_attr(attrs, "key") < 0:
        raise TypeRuleError(f"op '{op}': key={attrs['key']}, must be at least 0")
    for name in ("src", "dst"):
        if not attrs[name]:
            raise TypeRuleError(f"op '{op}': {name} must name a device")


def _send_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    if not types or not isinstance(types[0], TensorType):
        given = types[0] if types else "nothing"
        raise TypeRuleError(
            f"op 'send' sends a tensor, got {given}",
            hint="state, queues and stacks stay on one device; an effect is sent as a tensor "
            "without elements that comes after it",
        )
    _check_message("send", types[1:], attrs)
    return [TOKEN]


def _recv_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> list[Type]:
    _check_message("recv", types, attrs)
    dtype, shape = attrs["dtype"], attrs["shape"]
    assert isinstance(dtype, DType)
    assert isinstance(shape, tuple)
    for name, least in (("live", 0), ("depth", 1)):
        if int_attr(attrs, name) < least:
            raise TypeRuleError(f"op 'recv': {name}={attrs[name]}, must be at least {least}")
    return [TensorType(dtype, shape)]


_PAIR = {
    "key": AttrSpec("int"),
    "tensor": AttrSpec("str", ""),
    "src": AttrSpec("str"),
    "dst": AttrSpec("str"),
}
_HOST = frozenset({"host", "no_fold", "no_cse", "no_dce"})

COMMUNICATION_TABLE = (
    OpSpec(
        "send",
        None,
        _send_type,
        None,
        "Sends operand 0, or that it is dead, from device `src` to `dst` under `key` and the "
        "iteration numbers, the other operands.",
        _PAIR,
        _HOST,
    ),
    OpSpec(
        "recv",
        None,
        _recv_type,
        None,
        "What was sent under `key` and the iteration numbers; dead if that was. live: 0 if it "
        "never is dead; of two with one other number both are, or neither. depth: how many "
        "messages, one after the other, at most come up to it.",
        {
            **_PAIR,
            "dtype": AttrSpec("dtype"),
            "shape": AttrSpec("shape"),
            "live": AttrSpec("int", 0),
            "depth": AttrSpec("int", 1),
        },
        _HOST,
    ),
)
