"""benchmarks/paper/figure{6,7,8}.py: Inception-v3 is the published one, a replica of it trains over
servers, the simulated cluster has the paper's steps, and small runs write what they measured."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "paper"))
sys.path.insert(0, str(ROOT / "benchmarks"))
import figure6
import figure7
import figure7_worker
import figure8
import inception
import simulated
import table1_nets as nets
import windows
from table1_steps import Weft

import weft as wf

SMALL = nets.Net(
    "small",
    (
        nets.Conv(6, (1, 3), norm=True),
        nets.Conv(6, (3, 1), norm=True),
        nets.MeanPool(3),
        nets.Average(),
        nets.Dense(5, last=True),
    ),
    batch=4,
    image=8,
)


def test_inception_is_the_one_that_was_published() -> None:
    """Keras's InceptionV3 has 23,851,784 parameters, of which 34,432 are moving averages; 5.7
    billion multiplications and additions; the maps of table 1 of the net's paper."""
    net = inception.net()
    shapes = nets.Shapes(inception.IMAGE, 3).walk(net.layers)
    assert sum(int(np.prod(s)) for s in shapes.weights) == 23_851_784 - 34_432
    assert sum(len(s) == 4 for s in shapes.weights) == 94
    assert shapes.work / 2 == pytest.approx(5.71e9, rel=0.01)
    walk, found = nets.Shapes(inception.IMAGE, 3), []
    for layer in net.layers[:-2]:
        walk.walk([layer])
        found.append((walk.size, walk.channels))
    assert found == [
        (149, 32), (147, 32), (147, 64), (73, 64), (73, 80), (71, 192), (35, 192),
        (35, 256), (35, 288), (35, 288),
        *[(17, 768)] * 5,
        (8, 1280), (8, 2048), (8, 2048),
    ]  # fmt: skip
    small = nets.Shapes(inception.LEAST_IMAGE, 3).walk(inception.net(0.25, 10).layers[:-2])
    assert (small.size, small.channels) == (1, 512)
    with pytest.raises(ValueError, match="too small for a window"):
        nets.Shapes(inception.LEAST_IMAGE - 1, 3).walk(net.layers)
    with pytest.raises(ValueError, match="not be square"):
        nets.Shapes(8, 3).walk([nets.Conv(1, (1, 3), pad="VALID")])


def test_a_normalised_convolution() -> None:
    """Each channel has the mean 0 and the variance 1 over the batch, before the offset."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(4, 6, 6, 3)), rng.normal(size=(1, 3, 3, 5))
    found = Weft.conv_norm(wf.asarray(x), wf.asarray(w), wf.ones(5) * 2, (1, 3), 1, "SAME").numpy()
    np.testing.assert_allclose(found.mean((0, 1, 2)), np.full(5, 2.0), atol=1e-6)
    np.testing.assert_allclose(found.var((0, 1, 2)), np.ones(5), rtol=1e-3)
    plain = Weft.conv(wf.asarray(x), wf.asarray(w), 0.0, (1, 3), 1, "SAME").numpy()
    wide = plain.std((0, 1, 2)) * (found - 2) + plain.mean((0, 1, 2))
    np.testing.assert_allclose(wide, plain, rtol=1e-2, atol=1e-2)


@contextmanager
def replicas(
    folder: Path, workers: int, synchronous: bool
) -> Iterator[list[tuple[Any, wf.Session]]]:
    """Workers of figure 7 over two servers, all in this process."""
    names = {job: [f"ipc://{folder}/{job}{k}" for k in range(n)] for job, n in
             (("ps", 2), ("worker", workers))}  # fmt: skip
    given = figure7_worker.Settings(1.0, 5, 8, 4, workers if synchronous else 0)
    with ExitStack() as stack:
        for k in range(2):
            stack.callback(wf.train.Server(names, "ps", k).stop)
        servers = [wf.train.Server(names, "worker", k) for k in range(workers)]
        made = []
        for k, server in enumerate(servers):
            stack.callback(server.stop)
            replica = figure7_worker.Replica(given, k, names)
            session = wf.Session(server.target, graph=replica.graph)
            made.append((replica, stack.enter_context(session)))
        yield made


@pytest.mark.slow
def test_asynchronous_and_synchronous_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two workers with the same batch: two asynchronous steps are two steps of one worker, a
    synchronous one, of the mean of equal gradients, is one."""
    monkeypatch.setattr(inception, "net", lambda width, classes: SMALL)
    problem = nets.problem(SMALL, 4, 8)
    params = [wf.Variable(p) for p in problem.params]
    optimizer = wf.train.SGD(figure7_worker.RATE)

    @wf.compile
    def step(x: Any, labels: Any) -> Any:
        optimizer.minimize(nets.loss_of(Weft, SMALL)(params, x, labels))

    after = []
    for _ in range(2):
        step(problem.x, problem.labels)
        after.append([p.numpy() for p in params])

    def held(replica: Any, session: wf.Session) -> list[Any]:
        with replica.graph.as_default():
            return session.run([v for v in wf.trainable_variables() if v.name.startswith("p")])

    with replicas(tmp_path, 2, synchronous=False) as made:
        made[0][1].run(made[0][0].init)
        for replica, session in made:
            replica.step(session)()
        for a, b in zip(held(*made[0]), after[1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    with replicas(tmp_path, 1, synchronous=True) as made:
        replica, session = made[0]
        for op in (*replica.init, replica.begin):
            session.run(op)
        with ThreadPoolExecutor(1) as chief:
            done = chief.submit(session.run, replica.chief)
            replica.step(session)()
            done.result(60)
        for a, b in zip(held(replica, session), after[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_worker_obeys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[int] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("warm up\n0.0\n0.001\nend\n"))
    windows.obey(lambda: runs.append(1), 0.0, skip=1)
    ready, warm, first, second = capsys.readouterr().out.splitlines()
    assert (ready, warm) == ("ready", "warm")
    assert len(json.loads(first)) == 1  # there is no other
    assert len(json.loads(second)) == len(runs) - 3


@pytest.mark.share(2)
@pytest.mark.parametrize("kind", ["scalar", "dense 100 MB", "dense 1 GB"])
def test_the_simulated_cluster_has_the_papers_null_steps(kind: str) -> None:
    """What it was fitted to, and those of 100 workers within 15 %."""
    (_, one), (workers, many) = simulated.NULL[kind]
    cluster = simulated.paper_cluster()
    got = simulated.simulate(simulated.null_workload(kind), workers, cluster, steps=1).median
    assert got == pytest.approx(many, rel=0.15)
    if kind != "dense 100 MB":
        alone = simulated.simulate(simulated.null_workload(kind), 1, cluster, steps=3).median
        assert alone == pytest.approx(one, rel=0.03)


BASE = {
    "name": "asynchronous", "workers": 1, "servers": 2, "median": 0.1, "own": 0.5, "others": 0.1,
    "worker_app": 0.09, "worker_io": 0.0, "server_app": 0.01, "server_io": 0.01,
    "quantiles": [0.1] * 21, "images_per_second": 40.0,
}  # fmt: skip


def test_predictions_share_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker takes its own time and its servers'; four on two processors twice theirs."""
    monkeypatch.setattr(figure7, "cores", lambda: 2)
    for scheme in figure7.SCHEMES:
        base = {**BASE, "name": scheme}
        one, many = (figure7.predicted(base, n)[1] for n in (1, 4))
        assert one == pytest.approx(0.1, rel=0.05)
        assert many == pytest.approx(0.22, rel=0.15)
    rows = figure7.with_predictions([{**BASE, "name": s} for s in figure7.SCHEMES])
    assert [row["ratio"] for row in rows] == pytest.approx([1.0, 1.0], rel=0.05)


@pytest.mark.slow
def test_the_report_of_figure_7(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the processes: the simulation has the paper's shape, and the files are written."""

    def steps(given: Any, servers: int, counts: Any, options: Any) -> list[dict[str, Any]]:
        return [
            {**BASE, "name": scheme, "workers": n} for scheme in figure7.SCHEMES for n in counts
        ]

    monkeypatch.setattr(figure7, "measured", steps)
    monkeypatch.setattr(figure7, "predicted", lambda base, workers: [0.1, 0.1, 0.2])
    monkeypatch.setattr(figure7, "SIMULATED_WORKERS", (4, 8))
    monkeypatch.setattr(simulated, "GROUPS", 2)
    result = figure7.main(["--workers", "1", "2", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "figure7.json").read_text()) == result
    assert (tmp_path / "figure7.png").read_bytes().startswith(b"\x89PNG")
    assert "images/s" in capsys.readouterr().out
    found = {(r["name"], r["load"], r["workers"]): r for r in result["simulated"]}
    assert len(found) == 16
    for load in (figure7.LAYERS, figure7.ALONE, figure7.WHOLE, figure7.HERE_VARIED):
        assert result["synchronous_over_asynchronous"][load]["8"] > 0.99
        for scheme in figure7.SCHEMES:
            few, many = (found[scheme, load, n]["images_per_second"] for n in (4, 8))
            assert few < many < 2.2 * few
    assert result["parameters"] == 1_369_042


@pytest.mark.slow
def test_a_small_run_of_figure_6(tmp_path: Path) -> None:
    small = ["--only", "scalar", "--servers", "2", "--workers", "1", "--no-prediction"]
    result = figure6.main([*small, "--out", str(tmp_path)])
    assert json.loads((tmp_path / "figure6.json").read_text()) == result
    assert (tmp_path / "figure6.png").read_bytes().startswith(b"\x89PNG")
    (row,) = result["measured"]
    assert (row["curve"], row["workers"], set(row["seconds"])) == ("scalar", 1, {"weft", "zmq"})
    assert all(0 < s["minimum"] <= s["median"] for s in row["seconds"].values())


@pytest.mark.slow
def test_a_small_run_of_figure_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["--workers", "2", "--backups", "1", "--steps", "4", "--compute", "0.005"]
    monkeypatch.setattr(figure8, "PAPER_BACKUPS", (0, 3, 4))
    result = figure8.main([*small, "--paper-steps", "2", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "figure8.json").read_text())
    assert written == json.loads(json.dumps(result))
    assert (tmp_path / "figure8.png").read_bytes().startswith(b"\x89PNG")
    for row, (backups, seconds, _) in zip(result["measured"], result["simulated"], strict=True):
        assert len(row["times"]) == 4
        assert row["backups"] == backups
        assert row["ratio"] == pytest.approx(seconds / row["median"])
    assert result["measured"][0]["speedup"] == 1
