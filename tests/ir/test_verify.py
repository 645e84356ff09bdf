"""The verifier: every kind of fault is found, named and shown under its op; sound graphs pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from weft.ir import dtypes
from weft.ir.analysis.effects import accesses, unordered
from weft.ir.analysis.verify import LEGALITY, find_faults, verify
from weft.ir.errors import VerifyError
from weft.ir.graph import STAGES, Block, Graph, Operation, Value
from weft.ir.locations import Location, Locations
from weft.ir.ops import OPS
from weft.ir.ops.builder import Builder
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.control_flow import COMMUNICATION, DATAFLOW
from weft.ir.ops.state import UPDATES
from weft.ir.spec import AttrValue, ConstArray
from weft.ir.text.parser import parse_graph
from weft.ir.types import TOKEN, RefType, StackType, TensorType, Type, tensor_type

F2 = tensor_type(dtypes.float32, 2)
F3 = tensor_type(dtypes.float32, 3)
B0 = tensor_type(dtypes.bool_)
I0 = tensor_type(dtypes.int32)
HERE: Locations = (Location("model.py", 7, 3),)


def op(
    name: str,
    operands: Sequence[Value] = (),
    types: Sequence[Type] = (F2,),
    attrs: Mapping[str, AttrValue] | None = None,
    regions: Sequence[Block] = (),
    control: Sequence[Value] = (),
    locations: Locations = (),
) -> Operation:
    """An op that nobody checked."""
    return Operation(name, operands, attrs or {}, types, regions, control, locations)


def graph(
    args: Sequence[Value], ops: Sequence[Operation], results: Sequence[Value], stage: str = "traced"
) -> Graph:
    """A graph that nobody checked; inputs are called x0, x1, ..."""
    names = tuple(f"x{i}" for i in range(len(args)))
    return Graph("g", Block(tuple(args), tuple(ops), tuple(results)), names, stage)


def arg(index: int = 0, type: Type = F2) -> Value:
    return Value(type, None, index)


def message(g: Graph) -> str:
    """What verify says about a broken graph."""
    with pytest.raises(VerifyError) as caught:
        verify(g)
    return str(caught.value)


def under(text: str, start: str) -> str:
    """The remarks under the one line of the printed graph that starts with `start`."""
    lines = text.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.strip().startswith(start)]
    end = at + 1
    while lines[end].strip().startswith("// ^ "):
        end += 1
    return "\n".join(line.strip().removeprefix("// ^ ") for line in lines[at + 1 : end])


# -- sound graphs ----------------------------------------------------------------------------------

SOUND = [
    "graph @empty() -> () stage=traced {\n  return\n}",
    """graph @pure(%x: f32[b,2]) -> (f32[b,2]) stage=optimized {
         %0 = exp(%x) : f32[b,2] loc("m.py":1:1)
         %1 = add(%0, %x) : f32[b,2] loc("m.py":1:1, "m.py":2:1)
         return %1
       }""",
    """graph @nest(%x: f32[2]) -> (f32[2]) stage=planned {
         %0 = fused(%x) {kind="loop"} : f32[2] {
           ^(%a0: f32[2])
           %0 = exp(%a0) : f32[2]
           yield %0
         }
         return %0
       }""",
    # a handle on another variable and two handles on one; many reads need no order
    """graph @state(%x: f32[2]) -> (f32[2], token) stage=fused {
         %0 = variable() {name="v", dtype=f32, shape=[2]} : ref<f32[2]>
         %1 = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]>
         %2 = variable() {name="w", dtype=f32, shape=[2]} : ref<f32[2]>
         %3 = read(%1) : f32[2]
         %4 = read(%2) : f32[2]
         %5 = assign(%0, %x) : token
         %6 = add(%3, %4) : f32[2]
         %7 = assign(%2, %6) : token
         %8 = group() after(%5, %7) : token
         %9 = read(%1) after(%8) : f32[2]
         return %9, %8
       }""",
]


@pytest.mark.parametrize("text", SOUND)
def test_sound_graphs_pass(text: str) -> None:
    g = parse_graph(text)
    verify(g)
    assert find_faults(g) == []


def test_a_block_may_be_the_region_of_two_ops() -> None:
    """Builder.clone shares regions: they are isolated, so nothing can go wrong between them."""
    inner = Builder([F2])
    region = inner.block([inner.emit1("exp", *inner.args)])
    b = Builder([F2])
    (once,) = b.emit("fused", b.args, regions=[region])
    (twice,) = b.emit("fused", [once], regions=[region])
    verify(b.graph("g", ["x"], [twice], "fused"))


# -- how a fault is shown --------------------------------------------------------------------------


def test_message_shows_the_graph_with_the_fault_under_the_op() -> None:
    x = arg()
    good = op("exp", [x], locations=HERE)
    bad = op("abs", good.results, [F3], locations=HERE)
    text = message(graph([x], [good, bad], bad.results))
    assert text.splitlines() == [
        "graph 'g' breaks a rule of the IR: op 'abs': "
        "the type rule gives (f32[2]), the op has (f32[3])",
        "graph @g(%x0: f32[2]) -> (f32[3]) stage=traced {",
        '  %0 = exp(%x0) : f32[2] loc("model.py":7:3)',
        '  %1 = abs(%0) : f32[3] loc("model.py":7:3)',
        "  // ^ the type rule gives (f32[2]), the op has (f32[3])",
        "  return %1",
        "}",
        "  at model.py:7:3",
    ]


def test_every_fault_is_shown() -> None:
    x = arg()
    first = op("exp", [x], [F3])
    second = op("abs", [x], [F3], control=[x])
    text = message(graph([x], [first, second], []))
    assert "(and 2 more): op 'exp'" in text
    assert "the type rule gives" in under(text, "%0")
    assert under(text, "%1").splitlines() == [
        "control operand 0 is a block argument, which orders nothing",
        "the type rule gives (f32[2]), the op has (f32[3])",
    ]

    region_arg = arg()
    inner = op("exp", [region_arg], [F3])
    region = Block((region_arg,), (inner,), inner.results)
    outer = op("fused", [x], [F3], {"kind": "loop"}, [region])
    text = message(graph([x], [outer], outer.results, "fused"))
    assert "the type rule gives (f32[2])" in under(text, "%0 = exp")


# -- SSA -------------------------------------------------------------------------------------------


def test_use_before_definition() -> None:
    x = arg()
    late = op("exp", [x])
    early = op("abs", late.results)
    text = message(graph([x], [early, late], early.results))
    assert under(text, "%0 = abs(%undefined)") == "operand 0 is used before it is defined"


def test_use_of_its_own_result() -> None:
    x = arg()
    loop = op("add", [x, x])
    loop.operands = (x, loop.result)
    text = message(graph([x], [loop], []))
    assert "operand 1 is used before it is defined" in text


def test_value_of_another_graph() -> None:
    x = arg()
    stranger = op("exp", [arg()])
    bad = op("add", [x, stranger.result])
    text = message(graph([x], [bad], bad.results))
    wanted = "operand 1 belongs to another graph: <result of exp 0: f32[2]>"
    assert under(text, "%0 = add(%x0, %undefined)") == wanted


def test_results_are_defined() -> None:
    x = arg()
    text = message(graph([x], [], [x, op("exp", [x]).result]))
    assert "result 1 belongs to another graph" in under(text, "graph @g")


def fused(operands: Sequence[Value], region: Block) -> Operation:
    return op("fused", operands, [v.type for v in region.results], {"kind": "loop"}, [region])


def test_regions_are_isolated() -> None:
    x = arg()
    before = op("exp", [x])
    a = arg()
    inside = op("add", [a, before.result])
    nest = fused([x], Block((a,), (inside,), inside.results))
    text = message(graph([x], [before, nest], nest.results, "fused"))
    assert under(text, "%0 = add") == (
        "operand 1 is defined outside the region: regions are isolated, pass it as an operand"
    )


def test_region_results_are_its_own() -> None:
    x = arg()
    nest = fused([x], Block((arg(),), (), (x,)))
    text = message(graph([x], [nest], nest.results, "fused"))
    assert "op 'fused': result of the region 0 is defined outside the region" in text


def test_values_do_not_leave_regions() -> None:
    x, a = arg(), arg()
    inside = op("exp", [a])
    nest = fused([x], Block((a,), (inside,), inside.results))
    for leak in (inside.result, a):
        after = op("abs", [leak])
        text = message(graph([x], [nest, after], after.results, "fused"))
        assert under(text, "%1 = abs") == "operand 0 is defined inside another region"


def test_an_op_stands_once() -> None:
    x = arg()
    twice = op("exp", [x])
    text = message(graph([x], [twice, twice], twice.results))
    assert "op 'exp': stands twice in the graph, so its results are defined twice" in text


def test_an_op_of_the_graph_is_not_in_a_region_too() -> None:
    x = arg()
    free = op("group", [], [TOKEN])
    nest = fused([x], Block((arg(),), (free,), ()))
    text = message(graph([x], [free, nest], [], "fused"))
    assert "op 'group': stands twice in the graph" in text


def test_results_know_their_op() -> None:
    x = arg()
    first, second = op("exp", [x]), op("exp", [x])
    second.results = first.results
    text = message(graph([x], [second], second.results))
    assert "result 0 says that it is another value: <result of exp 0: f32[2]>" in text


@pytest.mark.parametrize(
    "args",
    [(arg(0), arg(2)), (op("exp", [arg()]).result,), (shared := arg(0), shared)],
    ids=["index", "op result", "twice"],
)
def test_arguments_are_values_of_their_own(args: tuple[Value, ...]) -> None:
    assert "is not a value of its own" in message(graph(args, [], []))


# -- the interface ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"stage": "cooked"}, f"there is no stage 'cooked', only {', '.join(STAGES)}"),
        ({"arg_names": ("x",)}, "2 inputs have 1 names"),
        ({"arg_names": ("x", "x")}, "two inputs are called 'x'"),
    ],
)
def test_interface(fields: dict[str, Any], wanted: str) -> None:
    sound = graph([arg(0), arg(1)], [], [])
    verify(sound)
    text = message(replace(sound, **fields))
    assert under(text, "graph @g") == wanted


def test_refs_and_tokens_do_not_come_in() -> None:
    text = message(graph([arg(0, RefType(F2)), arg(1, TOKEN)], [], []))
    assert "input 0 is a ref<f32[2]>; inputs of a graph are tensors" in text
    assert "input 1 is a token; inputs of a graph are tensors" in text


def variable(name: str = "w", held: TensorType = F2) -> Operation:
    attrs: dict[str, AttrValue] = {"name": name, "dtype": held.dtype, "shape": held.shape}
    return op("variable", (), [RefType(held)], attrs)


def test_refs_do_not_leave() -> None:
    w = variable()
    text = message(graph([], [w], w.results))
    assert "result 0 is a ref<f32[2]>; read the variable and return that" in text


# -- the op table ----------------------------------------------------------------------------------


def table_faults() -> list[tuple[Operation, str]]:
    x = arg()
    a = arg()
    region = Block((a,), (), (a,))
    return [
        (op("exq", [x]), "there is no op 'exq'; did you mean 'exp'"),
        (op("add", [x]), "takes 2 operands, got 1"),
        (op("exp", [x], regions=[region]), "takes 0 regions, got 1"),
        (op("fused", [x], attrs={"kind": "loop"}), "takes 1 regions, got 0"),
        (op("reshape", [x]), "op 'reshape' needs the attribute 'shape' (shape)"),
        (op("reshape", [x], attrs={"shape": 2}), "attribute 'shape' must be of kind shape, got 2"),
        (op("exp", [x], attrs={"axis": 0}), "op 'exp' has no attribute 'axis'"),
        (op("sum", [x], attrs={"axes": ()}), "attributes must be [axes, keepdims] in that order"),
        (
            op("sum", [x], attrs={"keepdims": False, "axes": ()}),
            "attributes must be [axes, keepdims] in that order, got [keepdims, axes]",
        ),
        (op("reshape", [x], attrs={"shape": (3,)}), "f32[2] has 2 elements, shape [3] has 3"),
        (op("exp", [x], [TensorType(dtypes.float64, (2,))]), "gives (f32[2]), the op has (f64[2])"),
        (op("exp", [x], [F2, F2]), "the type rule gives (f32[2]), the op has (f32[2], f32[2])"),
        (op("exp", [x], [tensor_type(dtypes.float32, "b")]), "gives (f32[2]), the op has (f32[b])"),
    ]


@pytest.mark.parametrize(("bad", "wanted"), table_faults(), ids=lambda v: getattr(v, "name", None))
def test_op_table(bad: Operation, wanted: str) -> None:
    (x,) = bad.operands
    text = message(graph([x], [bad], [], "fused"))
    (line,) = [s for s in text.splitlines() if s.startswith("  // ^")]
    assert wanted in line


def test_two_types_of_one_variable() -> None:
    text = message(graph([], [variable("w", F2), variable("w", F3)], []))
    assert under(text, "%1") == "variable 'w' is f32[3] here and f32[2] above"


# -- control operands ------------------------------------------------------------------------------


def test_control_operands_are_defined() -> None:
    x = arg()
    late = op("group", [], [TOKEN])
    early = op("exp", [x], control=late.results)
    text = message(graph([x], [early, late], early.results))
    assert under(text, "%0 = exp(%x0) after(%undefined)") == (
        "control operand 0 is used before it is defined"
    )


def test_control_operands_stand_once() -> None:
    first = op("group", [], [TOKEN])
    second = op("group", [], [TOKEN], control=[first.result, first.result])
    text = message(graph([], [first, second], []))
    assert under(text, "%1") == "control operand 1 stands twice"


# -- effects ---------------------------------------------------------------------------------------


def read(ref: Operation, *control: Value) -> Operation:
    return op("read", ref.results, [F2], control=control)


def assign(ref: Operation, value: Value, *control: Value) -> Operation:
    return op("assign", [ref.result, value], [TOKEN], control=control)


def test_unordered_read_and_write() -> None:
    x, w = arg(), variable()
    r, a = read(w), assign(w, x)
    text = message(graph([x], [w, r, a], r.results))
    assert under(text, "%2 = assign") == (
        "writes variable 'w', and op 'read' (%1) reads it, but no path of operands or control "
        "operands says which comes first"
    )
    assert under(text, "%1 = read") == ("reads variable 'w', unordered with op 'assign' (%2) below")
    verify(graph([x], [w, r, assign(w, x, r.result)], r.results))


def test_unordered_writes_through_two_handles() -> None:
    x, w, other = arg(), variable(), variable()
    a, b = assign(w, x), assign(other, x)
    text = message(graph([x], [w, other, a, b], []))
    assert "writes variable 'w', and op 'assign' (%2) writes it" in under(text, "%3")
    verify(graph([x], [w, other, a, assign(other, x, a.result)], []))


def test_write_before_read_needs_a_path_too() -> None:
    x, w = arg(), variable()
    a, r = assign(w, x), read(w)
    text = message(graph([x], [w, a, r], r.results))
    assert "reads variable 'w', and op 'assign' (%1) writes it" in under(text, "%2 = read")


def test_paths_lead_through_data_and_groups() -> None:
    """read -> exp -> assign is ordered by data; assign -> group -> read by control."""
    x, w = arg(), variable()
    first = read(w)
    value = op("exp", first.results)
    a = assign(w, value.result)
    gate = op("group", [], [TOKEN], control=a.results)
    last = read(w, gate.result)
    verify(graph([x], [w, first, value, a, gate, last], last.results))


def test_a_common_successor_orders_nothing() -> None:
    x, w = arg(), variable()
    a, b = assign(w, x), assign(w, x)
    gate = op("group", [], [TOKEN], control=[a.result, b.result])
    assert "says which comes first" in message(graph([x], [w, a, b, gate], []))


def test_effects_in_regions() -> None:
    """A region that writes a ref passed to it is an access at the op that runs it."""
    x, w = arg(), variable()
    ref, value = arg(0, RefType(F2)), arg(1)
    inside = op("assign", [ref, value], [TOKEN])
    region = Block((ref, value), (inside,), (value,))
    nest = op("fused", [w.result, x], [F2], {"kind": "loop"}, [region])
    (found,) = accesses(nest)
    assert (found.op, found.key, found.writes) == (nest, "w", True)
    r = read(w)
    ((first, second),) = unordered(Block((x,), (w, nest, r), r.results))
    assert (first.op, second.op) == (nest, r)
    ordered = read(w, nest.result)
    assert not unordered(Block((x,), (w, nest, ordered), ordered.results))
    other = arg(2, RefType(F2))
    (inner,) = unordered(
        Block((ref, value, other), (inside, op("read", [ref], [F2]), op("read", [other], [F2])), ())
    )
    assert [a.key for a in inner] == [ref, ref]


def test_gradient_regions_do_not_run() -> None:
    x, w = arg(), variable()
    a = arg()
    inner_w = variable()
    region = Block((a,), (inner_w, op("read", inner_w.results, [F2])), (a,))
    holder = op("custom_gradient", [x, x], [F2], {"outputs": 1, "inputs": 1}, [region])
    verify(graph([x], [w, holder, assign(w, x)], holder.results))


# -- locations -------------------------------------------------------------------------------------


def test_locations_are_all_or_none() -> None:
    x = arg()
    located, lost = op("exp", [x], locations=HERE), op("abs", [x])
    verify(graph([x], [located], []))
    verify(graph([x], [lost], []))
    text = message(graph([x], [located, lost], []))
    assert under(text, "%1 = abs").startswith(
        "has no source location, though other ops of the graph"
    )
    assert under(text, "%0 = exp") == ""


def test_locations_in_regions_count() -> None:
    x, a = arg(), arg()
    lost = op("exp", [a])
    region = Block((a,), (lost,), lost.results)
    nest = op("fused", [x], [F2], {"kind": "loop"}, [region], locations=HERE)
    text = message(graph([x], [nest], nest.results, "fused"))
    assert "has no source location" in under(text, "%0 = exp")


# -- stages ----------------------------------------------------------------------------------------


def same(type: Type) -> Block:
    """A region that returns its argument."""
    a = arg(0, type)
    return Block((a,), (), (a,))


def example(name: str) -> tuple[list[Value], list[Operation]]:
    """Inputs and ops of a sound graph whose last op is the op `name` of the legality table."""
    x, w = arg(), variable()
    region = same(F2)
    truth = op("constant", [], [B0], {"value": ConstArray(np.array(True))})
    yes = truth.result
    rows = op("constant", [], [TensorType(dtypes.int64, (2,))], {"value": ConstArray(np.arange(2))})
    last = {
        "variable": w,
        "read": read(w),
        "assign": assign(w, x),
        **{n: op(n, [w.result, x], [F2]) for n in ("assign_add", "assign_sub")},
        **{n: op(n, [w.result, rows.result, x], [F2]) for n in UPDATES if "scatter" in n},
        "group": op("group", [], [TOKEN]),
        "tap": op("tap", [x], [F2], {"name": "h"}),
        "loop_mark": op("loop_mark", [x], [F2], {"live": True}),
        "row_guard": op("row_guard", [x, truth.result], [F2]),
        "optimization_barrier": op("optimization_barrier", [x], [F2]),
        **{n: example_collective(n, x) for n in COLLECTIVES},
        "fused": fused([x], region),
        "unrolled": op("unrolled", [x], [F2], {}, [region]),
        "custom_rule": op("custom_rule", [x, x], [F2], {"rule": "f", "like": (1,)}),
        "custom_gradient": op(
            "custom_gradient", [x, x], [F2], {"outputs": 1, "inputs": 1}, [region]
        ),
        "cond": op("cond", [yes, x], [F2], {}, [same(F2), same(F2)]),
        "while": op("while", [yes], [B0], WHILE, [same(B0), same(B0)]),
        "scan": op(
            "scan",
            [x],
            [F2],
            {"carries": 1, "sequences": 0, "length": 2, "reverse": False},
            [region],
        ),
    }.get(name) or op(name, [x])
    if "scatter" in name:
        return [x], [w, rows, last]
    if name.startswith(("stack_", "arena_")):
        return [x], example_stack(name, x)
    if name in DATAFLOW:
        return [x], example_dataflow(name, x, truth)
    if name in COMMUNICATION:
        return [x], [example_communication(name, x)]
    return [x], [truth, w, last] if last is not w else [w]


WHILE = {
    "carries": 1, "limit": -1, "parallel_iterations": 10, "gradient_memory": -1, "recompute": False,
}  # fmt: skip


def example_stack(name: str, x: Value) -> list[Operation]:
    """The ops of a sound graph up to an op on stacks, or on their handles."""
    kind = {"dtype": dtypes.float32, "shape": (2,)}
    handles = name.startswith("arena_")
    held = TensorType(dtypes.int64) if handles else StackType(F2)
    zero = {"value": ConstArray(np.array(0))}
    new = op("stack_new", [], [held], {**kind, "depth": 1})
    if handles:
        new = op("constant", [], [held], zero)
    nested = {"nested": False} if handles else {}
    push = op(name, [new.result, x], [held], {"limit": -1, **nested})
    pop = op(name, [new.result], [held, F2], {**kind, **nested} if handles else {})
    add = op(name, [new.result] * 2, [held], {**kind, "depth": 1} if handles else {})
    last = {"push": push, "pop": pop, "add": add}.get(name.split("_")[1])
    return [new] if last is None else [new, last]


def example_collective(name: str, x: Value) -> Operation:
    """A collective of `x`, over an axis of one row or, of what it has for each, two."""
    attrs: dict[str, Any] = {"axis_name": "i"}
    if name == "axis_index":
        return op(name, [], [TensorType(dtypes.int64)], attrs)
    if name in ("all_gather", "psum_scatter", "all_to_all"):
        attrs["size"] = 2
    if name == "ppermute":
        attrs["sources"] = (0,)
    made = {
        "all_gather": TensorType(dtypes.float32, (2, 2)),
        "psum_scatter": TensorType(dtypes.float32),
    }
    return op(name, [x], [made.get(name, F2)], attrs)


def example_communication(name: str, x: Value) -> Operation:
    """A send of `x`, or a receive."""
    pair = {"key": 1, "tensor": "x", "src": "/job:a/task:0/cpu:0", "dst": "/job:b/task:0/cpu:0"}
    if name == "send":
        return op(name, [x], [TOKEN], pair)
    kind = {"dtype": dtypes.float32, "shape": (2,), "live": 0, "depth": 1}
    return op(name, [], [F2], {**pair, **kind})


def example_dataflow(name: str, x: Value, truth: Operation) -> list[Operation]:
    """The ops of a sound graph up to a switch, merge or an op of a frame."""
    attrs = {"frame": "f", "constant": False, "parallel_iterations": 1}
    enter, yes = op("enter", [x], [F2], attrs), op("enter", [truth.result], [B0], attrs)
    merge = op("merge", [enter.result], [F2, I0], {"loop": True})
    following = op("next_iteration", [merge.results[0]] * 2, [TOKEN])
    return {
        "switch": [truth, op("switch", [x, truth.result], [F2, F2])],
        "merge": [op("merge", [x], [F2, I0], {"loop": False})],
        "enter": [enter],
        "exit": [enter, op("exit", [enter.result], [F2])],
        "next_iteration": [enter, merge, following],
        "loop_cond": [truth, yes, op("loop_cond", [yes.result], [B0])],
    }[name]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", LEGALITY)
def test_legality_table(name: str, stage: str) -> None:
    args, ops = example(name)
    g = graph(args, ops, [], stage)
    allowed = LEGALITY[name].stages
    if stage in allowed:
        verify(g)
    else:
        wanted = f"op '{name}': is not legal at stage '{stage}', only at: {', '.join(allowed)}"
        assert wanted in map(str, find_faults(g))


def test_legality_by_stage() -> None:
    """The table itself, written out once more: a change of it is a change of the contract."""
    where = {name: rule.stages for name, rule in LEGALITY.items() if rule.stages != STAGES}
    traced = ("traced", "dataflow", "partitioned")
    assert where == {
        "identity": traced,
        "stop_gradient": traced,
        "tap": traced,
        "loop_mark": traced,
        "row_guard": traced,
        "custom_gradient": traced,
        "custom_rule": traced,
        **dict.fromkeys(("fused", "unrolled"), ("fused", "planned", "dataflow", "partitioned")),
        **dict.fromkeys(sorted(UPDATES), traced),
        **dict.fromkeys(TRACED_STACKS, traced),
        **dict.fromkeys(sorted(DATAFLOW), ("dataflow", "partitioned")),
        **dict.fromkeys(sorted(COMMUNICATION), ("partitioned",)),
        **dict.fromkeys(sorted(COLLECTIVES), ("traced",)),
    }
    assert set(LEGALITY) <= set(OPS)


TRACED_STACKS = {"stack_new", "stack_push", "stack_pop", "stack_add"}
GRADIENT_ONLY = {
    *("identity", "stop_gradient", "tap", "custom_gradient", "custom_rule"),
    *("loop_mark", "row_guard"),
    *UPDATES,
    *TRACED_STACKS,
}
NOT_IN_A_NEST = "inside the region of a 'fused' op"


@pytest.mark.parametrize("name", sorted(LEGALITY))
def test_a_nest_is_pure(name: str) -> None:
    args, ops = example(name)
    region = Block(tuple(args), tuple(ops), tuple(args))
    x = arg()
    found = find_faults(graph([x], [fused([x], region)], [], "fused"))
    faults = [fault.what for fault in found if fault.op is ops[-1]]
    only = dict.fromkeys(DATAFLOW, "dataflow, partitioned")
    only |= dict.fromkeys(GRADIENT_ONLY, "traced, dataflow, partitioned")
    only |= dict.fromkeys(COMMUNICATION, "partitioned")
    only |= dict.fromkeys(COLLECTIVES, "traced")
    where = f"at stage 'fused', only at: {only[name]}" if name in only else NOT_IN_A_NEST
    assert faults == [f"is not legal {where}"]
