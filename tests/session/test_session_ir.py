"""`Session.ir`: the step after each pass, on every kind of session: text that parses and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import weft as wf
from weft.ir.analysis.verify import verify_program
from weft.ir.errors import NotFoundError, PassError
from weft.ir.interpreter.partitioned import interpret_program
from weft.ir.text.parser import parse_program
from weft.ir.text.printer import print_program
from weft.runtime.cluster.server import Server

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def built(device: str = "") -> tuple[wf.Graph, Any, Any, Any]:
    """A graph, its placeholder, a loss with a branch, and an effect of the host's."""
    graph = wf.Graph()
    with graph.as_default():
        x = wf.placeholder(wf.float32, [None, 4], name="x")
        with wf.device(device or None):
            y = wf.sum(wf.nn.softmax(x) * x) + x.shape[0]
        z = wf.cond(y > 3, lambda: y * 2, lambda: -y)
        put = wf.FIFOQueue(9, [wf.float32], [[]]).enqueue([z])
    return graph, x, z, put


def check(text: str, wanted: Any | None) -> None:
    """The text is that of a sound program, and gives what the session gives."""
    program = parse_program(text)
    verify_program(program)
    assert print_program(program) == text
    if wanted is not None:
        (got,) = interpret_program(program, [X])
        assert_allclose(got, wanted, rtol=1e-5)


def test_a_native_step_after_each_pass() -> None:
    graph, x, z, _ = built()
    with wf.Session(graph=graph) as session:
        wanted = session.run(z, {x: X})
        assert "loc(test_session_ir:" in session.ir(z, {x: X})
        assert "loc(" not in session.ir(z, {x: X}, loc=False)
        for after in ("prune", "specialize", "tie_sizes", "fold", "cse", "fuse", None):
            check(session.ir(z, {x: X}, after=after), wanted)
        assert "enqueue" in session.ir(z, {x: X}, after="traced")
        assert "enqueue" not in session.ir(z, {x: X}, after="prune")
        assert "f32[x_0,4]" in session.ir(z, {x: X}, after="prune")
        assert "f32[3,4]" in session.ir(z, {x: X}, after="specialize")
        assert "stage=fused" in session.ir(z, {x: X})


def test_a_step_of_the_executor() -> None:
    graph, x, z, put = built()
    with wf.Session(graph=graph, control_flow="dataflow") as session:
        wanted = session.run(z, {x: X})
        text = session.ir(z, {x: X})
        assert "switch" in text
        check(text, wanted)
        assert text == session.ir(z, {x: X}, after="lower_control_flow")
        assert "cond" in session.ir(z, {x: X}, after="unroll")
    with wf.Session(graph=graph) as session:
        text = session.ir(put, {x: X})
        assert "enqueue" in text
        check(text, None)
        assert session.run(graph.get_operation_by_name(put.name), {x: X}) is None  # it ran once


def test_a_step_on_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    graph, x, z, _ = built("/gpu:0")
    with graph.as_default(), wf.device("/cpu:0"):
        on_host = z + 1
    with wf.Session(graph=graph) as session:
        wanted = session.run(on_host, {x: X})
        text = session.ir(on_host, {x: X})
        assert text.count("\npart ") + text.startswith("part ") == 2
        check(text, wanted)
        placed = session.ir(on_host, {x: X}, after="place")
        assert "part " not in placed
        assert "/gpu:0" in placed
        for after in ("strip_marks", "fold", "simplify", "cse"):  # of the whole step
            whole = session.ir(on_host, {x: X}, after=after)
            assert "part " not in whole
            check(whole, wanted)


@pytest.mark.net
def test_a_step_on_a_cluster() -> None:
    graph, x, z, _ = built("/job:worker/task:0")
    servers = Server.create_local_cluster({"ps": 1, "worker": 1})
    try:
        with wf.Session(servers[0].target, graph=graph) as session:
            wanted = session.run(z, {x: X})
            text = session.ir(z, {x: X}, after="partition")
            assert "/job:worker/task:0" in text
            check(text, wanted)
            for after in ("tie_sizes", "strip_marks", "fold", "simplify", "cse", "place"):
                check(session.ir(z, {x: X}, after=after), wanted)
    finally:
        for server in servers:
            server.stop()


def dumped(folder: Path) -> list[str]:
    """The files of a step's folder in their order, numbers aside."""
    return [path.name.removesuffix(".weft")[3:] for path in sorted(folder.glob("*.weft"))]


def test_each_step_dumps_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, z, put = built()
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    with wf.Session(graph=graph) as session:
        wanted = session.run(z, {x: X})
        native, *others = tmp_path.iterdir()
        assert not others
        names = dumped(native)
        assert names[:4] == ["traced", "prune", "specialize", "step"]
        assert "fuse" in names[4:]
        assert (native / "plan.txt").exists()
    with wf.Session(graph=graph, control_flow="dataflow") as session:
        session.run(put, {x: X})
        (executor,) = set(tmp_path.iterdir()) - {native}
        assert dumped(executor)[-2:] == ["step", "lower_control_flow"]
        assert "enqueue" in (executor / "plan.txt").read_text()
        regions = [*executor.glob("region*/plan.txt")]
        assert regions
        assert all(dumped(plan.parent)[0] == "traced" for plan in regions)
        before = len([*tmp_path.rglob("*")])
        session.explain(put, {x: X})
        session.ir(put, {x: X})  # run passes again, for people
        assert len([*tmp_path.rglob("*")]) == before
    for file in native.glob("*.weft"):
        check(file.read_text(), None if "traced" in file.name else wanted)


def test_regions_of_open_sizes_dump_into_the_folder_of_their_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
    with wf.Graph().as_default(), wf.Session() as session:
        x = wf.placeholder(wf.float32, [6])
        kept = wf.exp(wf.boolean_mask(x, x > 0)) * 2
        for least in (-2, 1):
            session.run(kept, {x: np.arange(6, dtype=np.float32) + least})
        (folder,) = tmp_path.iterdir()
        assert len([*folder.glob("region*/00-traced.weft")]) > 1


@pytest.mark.net
def test_a_step_on_a_cluster_dumps_into_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, x, z, _ = built("/job:worker/task:0")
    (server,) = Server.create_local_cluster({"worker": 1})
    try:
        monkeypatch.setenv("WEFT_DUMP", str(tmp_path))
        with wf.Session(server.target, graph=graph) as session:
            session.run(z, {x: X})
        (client,) = tmp_path.glob("*/*-partition.weft")
        names = dumped(client.parent)
        assert names[:4] == ["traced", "prune", "specialize", "step"]
        assert names[-2:] == ["place", "partition"]
        monkeypatch.delenv("WEFT_DUMP")
    finally:
        server.stop()


def test_what_is_refused() -> None:
    graph, x, z, _ = built()
    with wf.Session(graph=graph) as session:
        with pytest.raises(PassError, match=r"has no pass 'fuze'.*did you mean 'fuse'") as caught:
            session.ir(z, {x: X}, after="fuze")
        assert caught.value.locations[0].file == __file__
        with pytest.raises(NotFoundError):
            session.ir("nothing")
