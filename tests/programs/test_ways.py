"""The corpus of programs (`corpus.py`) by all the ways to run them (`ways.py`), and random programs
by the ways for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import dynamic_programs
import numpy as np
import pytest
from corpus import corpus
from example_counts import examples, share
from graphs import Case
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layer_programs import programs as layers
from program_forms import Call, Outcome, Program, near, of_case
from resource_programs import LOOP_AFTER_BRANCH, PROGRAMS, program
from sized_layers import LAYERS
from structured_programs import PAIR, programs
from ways import ON_GPU, REAL, TRAITS, WAYS, check, outcome, traits

import weft as wf
from weft.ir.dtypes import as_dtype
from weft.passes.autodiff.reverse_mode import differentiate
from weft.passes.pipelines import STANDARD
from weft.passes.rewriting.rewrite import extend
from weft.runtime.step import Kind

#: Each way runs at least so many programs, and so do the ways of each kind of step.
LEAST = 15
#: Of each sort of random programs the default suite tries at least so many.
LEAST_EXAMPLES = 2

# ------------------------------------------------------------------------------------- the corpus
#: Prime to all shares: programs that the default suite leaves out are not neighbours.
SPREAD = 17


def chosen(name: str, fast: bool) -> list[str]:
    """The ways that the default suite runs a program by, or those that it leaves to slow tests."""
    program, number = corpus()[name], list(corpus()).index(name)
    rows = enumerate((w, r) for w, r in WAYS.items() if not r.reason(program))
    turn = SPREAD * number
    return [w for k, (w, r) in rows if ((turn + k) % (r.share * program.weight) == 0) == fast]


def run(name: str, ways: Sequence[str]) -> None:
    if not ways:
        pytest.skip("its ways are in the slow tests")
    program, known = corpus()[name], dict[str, Outcome]()
    failed = []
    for way in ways:
        try:
            check(program, way, known)
        except Exception as error:
            error.add_note(f"{name}, by way of {way!r}")
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{name} differs", failed)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", corpus())
def test_program(name: str) -> None:
    run(name, chosen(name, fast=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", corpus())
def test_program_by_the_other_ways(name: str) -> None:
    run(name, chosen(name, fast=False))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", corpus())
def test_program_on_a_real_gpu(name: str) -> None:
    real = REAL.set(True)
    try:
        run(name, [way for way in ON_GPU if not WAYS[way].reason(corpus()[name])])
    finally:
        REAL.reset(real)


# ------------------------------------------------------------------------------------------ gates
@cache
def runs() -> list[tuple[str, str]]:
    """The pairs of a way and a program that it does not refuse."""
    return [(w, p.name) for w, row in WAYS.items() for p in corpus().values() if not row.reason(p)]


def test_every_way_and_kind_of_step_runs_programs() -> None:
    ways = Counter(way for way, _ in runs())
    assert not {way: ways[way] for way in WAYS if ways[way] < LEAST}
    kinds = Counter(WAYS[way].kind for way, _ in runs())
    assert not {kind: kinds[kind] for kind in get_args(Kind) if kinds[kind] < LEAST}
    assert len(runs()) >= 6500


@pytest.mark.share(4)
@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"parts"}))  # whose sizes values decide
@pytest.mark.parametrize(
    "way", ["session, open sizes", pytest.param("cluster", marks=pytest.mark.slow)]
)
def test_open_sizes_are_filled_in(name: str, way: str) -> None:
    steps = outcome(corpus()[f"sized/{name}"], way, 0).steps
    assert any(step.kind == "sized" for step in steps)


def test_every_trait_is_that_of_a_program() -> None:
    """So each reason why a way refuses programs is one that counts."""
    held = frozenset().union(*map(traits, corpus().values()))
    assert held | {"no steps"} == TRAITS.keys()  # which random graphs are
    assert all(row.refuses.keys() <= TRAITS.keys() for row in WAYS.values())


def test_there_are_fifty_that_say_what_branches_and_loops_mean() -> None:
    assert sum(name.startswith("semantics/") for name in corpus()) >= 50


# --------------------------------------------------------------------------------- random programs
@dataclass(frozen=True)
class Random:
    """Random programs: what draws one, the ways for it, and how many are tried."""

    drawn: st.SearchStrategy[Program]
    ways: Sequence[str]
    count: int


def graphs(**options: bool) -> st.SearchStrategy[Program]:
    """Branches and loops of all kinds."""
    return programs(**options).map(of_case)


@st.composite
def slopes(draw: Any) -> Program:
    """The sum of all pairs that a program gives, and its gradient."""
    case = draw(programs())
    pairs = [v for v in case.graph.results if v.type == PAIR]
    assume(pairs)
    builder = extend(case.graph.block)
    builder.ops = list(case.graph.ops)
    total = pairs[0]
    for pair in pairs[1:]:
        total = builder.emit("add", [total, pair])[0]
    loss = builder.emit("sum", [total], {"axes": (0,), "keepdims": False})[0]
    graph = differentiate(builder.graph("loss", case.graph.arg_names, [loss]), [2])
    return of_case(Case(graph, case.inputs, {}), near=1e-4)


@st.composite
def in_layers(draw: Any) -> Program:
    """Layers in branches and loops, many with their gradients, some of two bytes."""
    function, args, described = draw(layers())
    half = draw(st.sampled_from(["", "", "", "float16", "bfloat16"]))
    if half:
        args = [a.astype(as_dtype(half).numpy) for a in args]
    made = function
    if draw(st.booleans()):
        made = wf.value_and_grad(lambda x, w: wf.sum(function(x, w) * x), argnums=(0, 1))
    try:
        wf.compile(made).trace(*args)
    except wf.errors.TypeRuleError:
        assume(not half)  # else a body gives float32
        raise
    return Program(described, call=lambda: Call(made, [args]), near=1e-3)


ORDERS = (
    "text", "lowered", "lowered where needed", "any order", "any order, where needed",
    "any order, without dead code",
)  # fmt: skip
PARTS = ("parts", "parts of Switch and Merge", "placed")
EXECUTED = ("executor", "session", "session, dataflow")
RANDOM = {
    "values": Random(graphs(), (*ORDERS, *PARTS), 150),
    "state": Random(graphs(effects=True), (*ORDERS, *PARTS), 150),
    "state in parts": Random(graphs(effects=True), ("parts",), 500),
    "queues": Random(graphs(hosts=True), (*ORDERS, "parts", *EXECUTED), 100),
    "queues and state": Random(
        graphs(hosts=True, effects=True), (*ORDERS, "parts", *EXECUTED), 120
    ),
    "values, compiled": Random(graphs(), ("native", *EXECUTED), 90),
    "state, compiled": Random(graphs(effects=True), ("native", *EXECUTED, "saved"), 100),
    "gradients": Random(slopes(), ("native", "executor", "parts"), 200),
    "layers": Random(in_layers(), ("executor", "reproducible, executor"), 300),
    "layers in parts": Random(in_layers(), ("reproducible, parts",), 120),
    "reproducible state in parts": Random(
        graphs(effects=True), ("reproducible, parts", "reproducible, executor"), 100
    ),
    "parts on the executor": Random(
        st.one_of(graphs(), graphs(effects=True)), ("parts on the executor",), 72
    ),
    "devices": Random(st.one_of(graphs(), graphs(effects=True)), ("devices",), 72),
    "open sizes": Random(
        dynamic_programs.programs(),
        ("structured", "eager", "any order", *EXECUTED, "saved", "compiled for a GPU, with a host"),
        100,
    ),
    "slopes of open sizes": Random(dynamic_programs.slopes(), ("session", "eager"), 40),
    "resources": Random(
        PROGRAMS, ("structured", "any order", "session", "session, dataflow"), 160
    ),
}  # fmt: skip


def random_check(name: str) -> Callable[[Program, int], None]:
    def test(program: Program, seed: int) -> None:
        known: dict[str, Outcome] = {}
        with np.errstate(all="ignore"):
            for way in RANDOM[name].ways:
                if not WAYS[way].reason(program):
                    check(program, way, known, seed)

    return test


SEEDS = st.integers(0, 2**32)


@pytest.mark.examples
@pytest.mark.parametrize("name", RANDOM)
def test_random_programs(name: str) -> None:
    row = RANDOM[name]
    count = max(LEAST_EXAMPLES, share(row.count, 120))
    run = given(row.drawn, SEEDS)(random_check(name))
    settings(max_examples=count, deadline=None, database=None)(run)()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("way", ["GPU", "devices"])
def test_random_programs_on_a_real_gpu(way: str) -> None:
    real = REAL.set(True)
    try:

        def test(program: Program, seed: int) -> None:
            if not WAYS[way].reason(program):
                check(program, way, {}, seed)

        run = given(st.one_of(graphs(), graphs(effects=True)), SEEDS)(test)
        settings(max_examples=60, deadline=None, database=None)(run)()
    finally:
        REAL.reset(real)


def test_a_loop_that_waits_for_a_branch() -> None:
    """In the body of a loop: a branch with a loop in it, and a loop with ops of the host."""
    random_check("resources")(program(LOOP_AFTER_BRANCH, 63), 0)


@given(programs(hosts=True), st.booleans())
@examples(60)
def test_passes_neither_drop_nor_repeat(case: Case, together: bool) -> None:
    """One pass after another, or each on the program as it was written."""
    wanted, graph = outcome(of_case(case), "structured", 0), case.graph
    for apply in STANDARD:
        made = apply(graph)
        near(
            outcome(of_case(replace(case, graph=made)), "structured", 0),
            wanted,
            1e-5,
            apply.__name__,
        )
        graph = made if together else graph
