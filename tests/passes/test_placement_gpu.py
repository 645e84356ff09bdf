"""Placement over the CPU and the GPUs of a process: what is feasible, what goes where by default,
soft placement, costs; golden cases in tests/cases/place_gpu.txt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_op_lists import names_after
from example_counts import examples
from golden_cases import Case, read_cases, rewrite
from hypothesis import given
from hypothesis import strategies as st
from paths import CASES, ROOT
from structured_programs import programs

import weft as wf
from weft.codegen.cuda.lowerings import gpu_ops
from weft.frontend.tools.main import main
from weft.ir.analysis.verify import verify
from weft.ir.device import DeviceSpec
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, WeftError
from weft.ir.graph import Graph
from weft.ir.ops import OPS
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.passes.placement import CostModel, Device, Links, Placement, PlacementError, Rates, place
from weft.passes.placement.constraints import Constraint, uses_handle
from weft.passes.placement.timeline import Network
from weft.runtime.device.backends import registry
from weft.runtime.device.backends.placement import gpu_device, place_step

GOLDEN = CASES / "place_gpu.txt"
CPU, GPU0, GPU1 = (f"/job:localhost/task:0/{d}" for d in ("cpu:0", "gpu:0", "gpu:1"))
NAMES = (CPU, GPU0, GPU1)
#: What Python does beside a variable, wherever that is.
BESIDE = {"is_initialized", "assert_initialized", "count_up_to", "report_uninitialized"}


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "2")


# ------------------------------------------------------------------------------------------- golden


def run_case(case: Case) -> str:
    """The placed graph, what was given up, and why each op is where it is; or the error."""
    try:
        graph = parse_graph(case.source, "case")
        verify(graph)
        placed = place_step(graph, soft="// soft" in case.head, spread="// spread" in case.head)
    except WeftError as error:
        return "".join(f"// error: {line}".rstrip() + "\n" for line in str(error).splitlines())
    verify(placed.graph)
    lines = [print_graph(placed.graph, locations=False).rstrip(), *placed.fallbacks]
    lines += [f"{op.name}: {text}" for op, text in placed.reasons.items()]
    return "\n".join(lines) + "\n"


CASES_HERE = read_cases(GOLDEN.read_text("utf-8"))[1]


@pytest.mark.parametrize("case", CASES_HERE, ids=[c.name for c in CASES_HERE])
def test_case(case: Case, update: bool) -> None:
    found = run_case(case)
    if update:
        rewrite(GOLDEN, case, found)
    else:
        assert found == case.expected, f"{case.name} (pytest --update rewrites it)"


# ------------------------------------------------------------------------------------------ kernels


def test_the_table_of_placement_is_that_of_the_page() -> None:
    """What runs on the CPU only is what the page says, but for what needs no kernel there."""
    made_later = {"fused", "unrolled", "arena_push", "arena_pop", "arena_add"}
    made_later |= {"attention", "attention_grad"}
    made_later |= {"sparse_matmul", "quantized_matmul", *COLLECTIVES}
    assert set(OPS) - gpu_ops() - made_later == names_after("On the CPU only") - BESIDE - made_later


def test_the_error_on_the_page_is_that_of_a_case() -> None:
    page = ROOT / "docs" / "guide" / "placement.md"
    (shown,) = re.findall(r"```text\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    found = next(c.expected for c in CASES_HERE if "does_not_move_silently" in c.name)
    assert shown in found.replace("// error: ", "")


def test_a_kernel_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.codegen.cuda import lowerings

    mark = 'device("/gpu:0") loc("m.py":1:1)'
    text = _unary("argmax", mark).replace("(%x) : f32[3]", "(%x) {axis=0} : i64[]")
    text = text.replace("-> (f32[3])", "-> (i64[])")
    assert next(iter(place_step(parse_graph(text)).graph.ops)).device == GPU0
    monkeypatch.delitem(lowerings.GPU_LOWERINGS, "argmax")
    with pytest.raises(PlacementError, match=r"op 'argmax' has no kernel for gpu at m\.py:1:1"):
        place_step(parse_graph(text))


# ------------------------------------------------------------------------------------ what there is


def test_a_gpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph(_unary("exp", 'device("/gpu:5") loc("m.py":7:1)'))
    with pytest.raises(PlacementError, match="no such device") as caught:
        place_step(graph)
    assert GPU1 in str(caught.value)
    assert next(iter(place_step(graph, soft=True).graph.ops)).device == CPU

    def none() -> object:
        raise FailedPreconditionError("there is no GPU to use: none is in", hint="buy one")

    monkeypatch.setenv("WEFT_EMULATE_GPU", "0")
    monkeypatch.setattr(registry, "Driver", none)
    with pytest.raises(InvalidArgumentError) as error:
        place_step(graph)
    for word in ("no device '/gpu:5'", CPU, "none is in", "m.py:7:1", "buy one"):
        assert word in str(error.value)
    soft = place_step(graph, soft=True)
    assert next(iter(soft.graph.ops)).device == CPU
    assert "no such device" in soft.fallbacks[0]
    assert (
        next(iter(place_step(parse_graph(_unary("exp", "")), spread=True).graph.ops)).device == CPU
    )


def _unary(name: str, mark: str, t: str = "f32[3]") -> str:
    return f"graph @g(%x: {t}) -> ({t}) stage=traced {{\n%y = {name}(%x) : {t} {mark}\nreturn %y }}"


def test_errors_list_the_gpus() -> None:
    with (
        wf.device("/gpu:2"),
        pytest.raises(InvalidArgumentError, match=f"the devices are: {CPU}, {GPU0}, {GPU1}"),
    ):
        wf.exp(wf.asarray(1.0))
    with wf.device("/gpu:1"), pytest.raises(InvalidArgumentError, match="runs on the CPU"):
        wf.exp(wf.asarray(1.0))


def test_devices_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [d.name for d in wf.devices()] == list(NAMES)
    assert [(d.kind, d.index, d.emulated, d.cc) for d in wf.devices("gpu")] == [
        ("gpu", k, True, (9, 0)) for k in (0, 1)
    ]
    assert [d.name for d in wf.devices("CPU")] == [CPU]
    with pytest.raises(InvalidArgumentError, match="tpu"):
        wf.devices("tpu")
    assert main(["devices"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows if row[0] == "/"] == ["/cpu:0", "/gpu:0", "/gpu:1"]
    assert "emulated with NumPy, as sm_90" in rows[2]
    monkeypatch.setenv("WEFT_EMULATE_GPU", "0")

    def old() -> object:
        raise FailedPreconditionError("the NVIDIA driver is too old", hint="install a newer one")

    monkeypatch.setattr(registry, "Driver", old)
    assert [d.name for d in wf.devices()] == [CPU]
    assert wf.devices("gpu") == []
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "no GPU: the NVIDIA driver is too old\n  install a newer one\n" in out
    assert main(["devices", "--json"]) == 0
    assert '"no_gpu": "the NVIDIA driver is too old"' in capsys.readouterr().out
    monkeypatch.setenv("WEFT_EMULATE_GPU", "many")
    with pytest.raises(InvalidArgumentError, match="WEFT_EMULATE_GPU"):
        wf.devices()


def test_a_devices_file_may_name_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.json").write_text('["/job:a/task:0/cpu:0", "/job:a/task:0/gpu:0"]')
    (tmp_path / "g.weft").write_text(_unary("exp", 'device("/gpu:0")'))
    arguments = ["place", str(tmp_path / "g.weft"), "--devices", str(tmp_path / "d.json")]
    assert main(arguments) == 0
    assert 'device("/job:a/task:0/gpu:0")' in capsys.readouterr().out
    (tmp_path / "g.weft").write_text(_unary("exp", 'device("/gpu:0")', "c64[3]"))
    assert main(arguments) == 2
    assert "has no kernel for gpu on c64[3]" in capsys.readouterr().err


# --------------------------------------------------------------------------------------- simulation


def _product(n: int) -> Graph:
    return parse_graph(
        f"graph @g(%x: f32[{n},{n}], %w: f32[{n},{n}]) -> (f32[{n},{n}]) stage=traced {{\n"
        f"%a = matmul(%x, %w) {{transpose_a=false, transpose_b=false}} : f32[{n},{n}]\n"
        f"%b = tanh(%a) : f32[{n},{n}]\n"
        f"%c = matmul(%b, %w) {{transpose_a=false, transpose_b=false}} : f32[{n},{n}]\n"
        "return %c }"
    )


def _where(placed: Placement) -> list[str]:
    return [op.device for op in placed.graph.walk()]


def test_work_goes_to_the_gpu_if_that_pays() -> None:
    large = place_step(_product(2048), spread=True)
    assert set(_where(large)) == {GPU0}
    assert large.predict().seconds < large.predict().compared["where the session is"] / 10
    assert set(_where(place_step(_product(8), spread=True))) == {CPU}
    far = CostModel(Links(bus_bytes_per_s=1e8))  # a slow bus: moving costs more than computing
    assert set(_where(place_step(_product(2048), spread=True, costs=far))) == {CPU}
    moved = parse_graph(_unary("exp", "", "f32[10000000]"))  # bytes there and back, little to do
    assert set(_where(place_step(moved, spread=True))) == {CPU}


def test_without_spread_nothing_leaves_the_cpu() -> None:
    assert set(_where(place_step(_product(2048)))) == {CPU}
    tasks = [f"/job:w/task:{k}/{d}" for k in (0, 1) for d in ("cpu:0", "gpu:0")]
    devices = [gpu_device(t) if "gpu" in t else Device(t) for t in tasks]
    assert set(_where(place(_product(2048), devices, spread=False))) == {tasks[0]}
    assert set(_where(place(_product(2048), devices))) == {tasks[1]}
    other = parse_graph(
        print_graph(_product(2048)).replace(
            "f32[2048,2048]\n", 'f32[2048,2048] device("/task:1")\n'
        )
    )
    assert set(_where(place(other, devices, spread=False))) == {tasks[2]}
    assert set(_where(place(other, devices))) == {tasks[3]}


def test_independent_work_uses_both_gpus() -> None:
    n = 4096
    rows = "\n".join(
        f"%{k} = matmul(%x, %w{k}) {{transpose_a=false, transpose_b=false}} : f32[{n},{n}]\n"
        f"%{k}s = sum(%{k}) {{axes=[0, 1]}} : f32[]"
        for k in "ab"
    )
    graph = parse_graph(
        f"graph @g(%x: f32[{n},{n}], %wa: f32[{n},{n}], %wb: f32[{n},{n}]) -> (f32[], f32[]) "
        f"stage=traced {{\n{rows}\nreturn %as, %bs }}"
    )
    slow = Rates(flops=1e12)
    devices = [Device(CPU), *(replace(gpu_device(d), rates=slow) for d in (GPU0, GPU1))]
    placed = place(graph, devices)
    assert {GPU0, GPU1} <= set(_where(placed))
    sent = [s for s in placed.predict().timeline if s.where == f"{CPU} -> {GPU0}"]
    assert sent
    assert sent[0].end - sent[0].begin == pytest.approx(10e-6 + 4 * n * n / 20e9)


def test_messages_of_gpus_go_over_their_buses_too() -> None:
    links = Links()
    bus = links.bus_latency_s + 1e6 / links.bus_bytes_per_s
    plain = Network(links).arrival("a", "b", 1e6, 0.5)
    for buses in (0, 1, 2):
        network = Network(links)
        assert network.arrival("a", "b", 1e6, 0.5, buses) == pytest.approx(plain + buses * bus)
        assert network.send("a", "b", 1e6, 0.5, buses)[1] == pytest.approx(plain + buses * bus)
    assert Network(links).arrival("a", "a", 1e6, 0.5, 1) == pytest.approx(0.5 + bus)


def test_rates() -> None:
    (op,) = parse_graph(_unary("exp", "", "f32[1000]")).ops
    rates = Rates(flops=1e12, bytes_per_s=1e9, used=0.5, launch_s=1e-6)
    assert rates.nanoseconds(op, 0.0) == pytest.approx(1000 + 8000 / 0.5)  # its bytes
    product = _product(512).ops[0]
    taken = rates.nanoseconds(product, 0.0)
    assert taken == pytest.approx(1000 + max(2 * 512**3 / 1e3, 12 * 512**2) / 0.5)
    wide = parse_graph(print_graph(_product(512)).replace("f32", "f64")).ops[0]
    fast = replace(rates, bytes_per_s=1e15)
    assert fast.nanoseconds(wide, 0.0) - 1000 == pytest.approx(
        2 * (fast.nanoseconds(product, 0.0) - 1000)
    )
    for bad in ({"flops": 0.0}, {"used": -1.0}, {"launch_s": -1.0}):
        with pytest.raises(InvalidArgumentError, match="rates"):
            Rates(**bad)


def test_a_loop_that_the_host_drives_costs_its_decisions() -> None:
    text = """graph @g(%x: f32[3], %n: i64[]) -> (i64[], f32[3]) stage=traced {
  %z = constant() {value=i64[] 0} : i64[]
  %r, %s = while(%z, %x, %n) {carries=2} : i64[], f32[3] {
    ^(%i: i64[], %a: f32[3], %m: i64[])
    %p = less(%i, %m) : bool[]
    yield %p
  } {
    ^(%i: i64[], %a: f32[3], %m: i64[])
    %k = constant() {value=i64[] 1} : i64[]
    %j = add(%i, %k) : i64[]
    %b = exp(%a) : f32[3]
    yield %j, %b
  }
  return %r, %s
}"""
    graph = parse_graph(text)
    costs = CostModel().costs_of(graph)
    (loop,) = (op for op in graph.ops if op.name == "while")
    quick, slow = Rates(read_s=0.0), Rates(read_s=1e-3)
    trips = costs.trips(loop)
    extra = costs.nanoseconds(loop, slow) - costs.nanoseconds(loop, quick)
    assert extra == pytest.approx(trips * 1e6)
    assert costs.nanoseconds(loop, quick) == pytest.approx(trips * 3 * 3000, rel=0.01)


# --------------------------------------------------------------------------------------- properties

SPECS = ("/cpu:0", "/gpu:0", "/gpu:1", "/gpu:*", "/gpu:7", "/job:localhost/gpu:1")


@st.composite
def constrained(draw: st.DrawFn) -> Graph:
    """A random program with random constraints on some of its ops; some on complex numbers."""
    program = draw(programs(effects=draw(st.booleans())))
    chance = draw(st.randoms(use_true_random=False))
    ops = list(program.graph.walk())
    if ops:
        for op in chance.choices(ops, k=chance.choice((0, 1, 3, 6, 12))):
            op.device = chance.choice(SPECS)
        for op in chance.choices(ops, k=chance.choice((0, 2, 4))):
            op.group = chance.choice(("g", "h"))
    return program.graph


def _possible(constraints: Sequence[Constraint]) -> bool:
    """Whether all can hold: by going over them until nothing changes."""
    masks: dict[int, int] = {}
    while True:
        before = dict(masks)
        for c in constraints:
            if c.anchor < 0:
                masks[c.op] = masks.get(c.op, 7) & c.mask
            else:
                both = masks.get(c.op, 7) & masks.get(c.anchor, 7)
                masks[c.op] = masks[c.anchor] = both
        if masks == before:
            return all(masks.values())


HOST_ONLY = names_after("On the CPU only") - BESIDE


def _check(graph: Graph, placed: Placement, *, hard: bool) -> None:
    verify(placed.graph)
    wanted = [DeviceSpec.parse(op.device) for op in graph.walk() if op.device]
    # a device that is not there can only be asked for where a variable's own is what counts
    asked = (f"/job:localhost/task:0/gpu:{s.index or 0}" for s in wanted if s.kind == "gpu")
    first = next((name for name in asked if not hard or name in NAMES), "")
    for old, new in zip(graph.walk(), placed.graph.walk(), strict=True):
        assert new.device in NAMES
        assert new.device == CPU or old.name not in HOST_ONLY
        assert placed.reasons[new]
        if not hard:
            continue
        if old.device and not uses_handle(old):
            assert DeviceSpec.parse(old.device).matches(DeviceSpec.parse(new.device))
        plain = old.operands and not (old.device or old.group or old.regions or uses_handle(old))
        if plain and not old.name.startswith("stack_") and old.name in gpu_ops():
            assert new.device == (first or CPU)
    if not first:
        assert {op.device for op in placed.graph.walk()} <= {CPU}


@examples(40, deadline=None)
@given(constrained())
def test_a_placement_is_legal_or_the_error_names_a_true_conflict(graph: Graph) -> None:
    try:
        placed = place_step(graph)
    except PlacementError as error:
        found = error.constraints
        assert not _possible(found)
        for i in range(len(found)):
            assert _possible([*found[:i], *found[i + 1 :]])
        placed = place_step(graph, soft=True)
        assert placed.fallbacks
        _check(graph, placed, hard=False)
        return
    assert not placed.fallbacks
    _check(graph, placed, hard=True)
    assert print_graph(place_step(graph).graph) == print_graph(placed.graph)
    assert print_graph(place_step(graph, soft=True).graph) == print_graph(placed.graph)


def test_steps_of_a_session_are_placed_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The words of the error, and of `explain`, reach who uses a session."""
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [2, 2])
        with wf.device("/gpu:0"):
            y = x * 2.0
        z = wf.linalg.det(y)
        feed = {x: np.array([[0, 1], [2, 0]], np.float32)}
        with wf.Session() as session, pytest.raises(wf.errors.WeftError) as caught:
            session.run(z, feed)
        assert "op 'lu' has no GPU kernel" in str(caught.value)
        assert "test_placement_gpu.py" in str(caught.value)
        with wf.Session(soft_placement=True) as session:
            np.testing.assert_allclose(session.run(z, feed), -8, rtol=1e-6)
            text = session.explain(z, feed)
        assert "not held (soft placement): op 'lu' names no device" in text
        assert "since op 'lu' has no kernel for gpu" in text
