"""Every page of README.md and docs/: its code runs and prints what the page shows, and it is short
enough to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import event_files
import numpy as np
import pages
import pytest
from paths import ROOT

from weft.comm.endpoint import Endpoint
from weft.comm.protocol import Message
from weft.frontend.extend.ops import unregister_op
from weft.ir.ops.scalar_function import REPLACED

MOST_WORDS = 1500
#: Pages that may be longer: those that are written by a program.
GENERATED = {"docs/internals/folders.md"}

Names = Mapping[str, Any]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.docs
@pytest.mark.parametrize("page", pages.pages(), ids=name_of)
def test_code_runs(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "0")  # a page may set it: this sets it back
    names = pages.run(page)
    printed = capsys.readouterr().out
    missing = [line for line in pages.shown_lines(page) if line not in printed]
    assert missing == [], printed
    check = CHECKS.get(name_of(page).removeprefix("docs/"))
    if check is not None:
        check(names, printed)


def test_checks_are_of_pages() -> None:
    known = {name_of(page).removeprefix("docs/") for page in pages.pages()}
    assert set(CHECKS) <= known, set(CHECKS) - known


@pytest.mark.parametrize("page", sorted(pages.DOCS.rglob("*.md")), ids=name_of)
def test_length(page: Path) -> None:
    words = len(page.read_text(encoding="utf-8").split())
    assert words <= MOST_WORDS or name_of(page) in GENERATED


# ------------------------------------------------------------------- what is not seen in the output
def coming_from(names: Names, printed: str) -> None:
    losses = names["losses"]
    assert len(losses) == 251
    assert losses[0] > 0.1
    assert max(losses[199], losses[-1]) < 1e-3  # each way of the three has learnt it


def index(names: Names, printed: str) -> None:
    said = printed.splitlines()
    losses = [float(line) for line in said[:3]]
    assert losses[2] < losses[0]
    assert "kernel calls" in said[3]
    assert said[4].startswith("graph @step")


def arrays(names: Names, printed: str) -> None:
    for line in ("(2, 3) weft.float32", "Tensor([5., 7., 9.], dtype=float32)", "1.0 9.0",
                 "Tensor([19., 49.], dtype=float32)"):  # fmt: skip
        assert line in printed
    assert "<compiled normalized(x): 2 signatures>" in printed
    assert "wf.where(condition, x, y)" in printed
    assert names["total"].cache_info().made == 1


def training(names: Names, printed: str) -> None:
    assert printed.count("Tensor(12., dtype=float64, weak)") == 2
    assert "<Variable 'variable' i64[]: 2>" in printed
    assert names["accuracy"] > 0.9
    assert printed.rstrip().endswith("True")


def inside(names: Names, printed: str) -> None:
    assert "fused" in printed
    assert "compiled because" in printed
    assert "lines of LLVM IR\nTrue\n" in printed
    assert names["slowest"].name in str(names["cost"])


def loops(names: Names, printed: str) -> None:
    np.testing.assert_allclose(names["square_root"](2.0), np.sqrt(2), rtol=1e-6)
    assert names["losses"][-1] < names["losses"][0] / 10
    assert printed.rstrip().endswith("True\n100")


def sessions_tutorial(names: Names, printed: str) -> None:
    assert "runs as one native plan" in printed
    assert float(printed.split()[0]) < 1e-3


def processes(names: Names, printed: str) -> None:
    assert "/job:ps/task:0/cpu:0" in printed
    np.testing.assert_allclose(names["results"][0], [1, 2, 3], atol=0.3)


def checkpoints(names: Names, printed: str) -> None:
    assert "missing: more" in str(names["report"])


def cluster(names: Names, printed: str) -> None:
    assert "/job:ps/task:1/cpu:0" in printed


def data(names: Names, printed: str) -> None:
    assert len(names["losses"]) == 60
    assert names["losses"][-1] < 1e-6


def devices(names: Names, printed: str) -> None:
    assert "group" in names["text"]


def engines(names: Names, printed: str) -> None:
    assert names["here"].job == "worker"


def gpu(names: Names, printed: str) -> None:
    assert "/gpu:0: emulated" in printed
    assert "kernels, for sm_90" in printed


def elementwise(names: Names, printed: str) -> None:
    x = np.array([1.0, -3.0]) / (1 + np.exp([-1.0, 3.0])) - [0.5, 4.0]
    wanted = np.where(np.abs(x) < 1, x * x / 2, np.abs(x) - 0.5).mean()
    np.testing.assert_allclose(names["bent"].numpy(), wanted, rtol=1e-6)
    assert names["slopes"].numpy().tolist() == [0.25, -1]
    assert names["rows"].numpy().tolist() == [-7, -5]


def extending(names: Names, printed: str) -> None:
    assert names["losses"].numpy().tolist() == [0.125, 6.5]
    try:
        assert names["soft_sign"]([1.0, -3.0]).numpy().tolist() == [0.5, -0.75]
        assert names["values"].numpy().tolist() == [10, 8]
        assert names["where"].numpy().tolist() == [1, 0]
        x = np.eye(2, dtype=np.float32)
        np.testing.assert_allclose(names["layer"](x, 3 * x).numpy(), 0.75 * x)
        assert names["top"](np.array([[1.0, 5.0], [4.0, 2.0]]))[0].numpy().tolist() == [10, 8]
        assert names["slope"](np.array([1.0, -3.0])).numpy().tolist() == [0.25, 0.0625]
        assert names["totals"] == [6, 15]
    finally:
        for name in ("soft_sign", "largest"):
            unregister_op(name)


def placement(names: Names, printed: str) -> None:
    assert names["placed"].predict().seconds > 0
    assert names["costs"].measured


def queues(names: Names, printed: str) -> None:
    assert names["queue"].is_closed()
    assert names["coordinator"].joined


def replicas(names: Names, printed: str) -> None:
    for thread in names["threads"]:
        thread.join(20)
        assert not thread.is_alive()


def tensorboard(names: Names, printed: str) -> None:
    runs = {p.name for p in Path("runs").iterdir()}
    assert runs == {"sgd", "activations", "session", "monitored"}
    found = {run: event_files.values(Path("runs") / run) for run in runs}
    losses = [loss for _, loss in found["sgd"]["loss"]]
    assert len(losses) == 20
    assert losses[-1] < losses[0] / 10
    assert {"weights", "about", "noise"} <= found["sgd"].keys()
    assert [step for step, _ in found["activations"]["activations"]] == [7]
    assert len(found["session"]["loss"]) == 10
    assert [step for step, _ in found["monitored"]["loss"]] == [0, 5, 10, 15]
    (tagged,) = [e for e in event_files.events(Path("runs") / "session") if e.tag]
    (times,) = event_files.node_micros(tagged.run_metadata).values()
    assert "layer1/matmul" in times


def sessions(names: Names, printed: str) -> None:
    assert names["value"] < 1e-3
    np.testing.assert_allclose(names["w"].numpy(), [1, 2, 3], atol=0.05)


def comm(names: Names, printed: str) -> None:
    for end in names.values():
        if isinstance(end, Endpoint):
            end.close()
    received = names["received"]
    (message,) = (x for x in received if isinstance(x, Message))
    (tensor,) = (x for x in received if isinstance(x, np.ndarray))
    assert (message.kind, message.meta) == (3, {"loss": 0.5})
    assert tensor.tolist() == [1.0, 2.0]


def numba(names: Names, printed: str) -> None:
    said = printed.splitlines()
    assert any(line.startswith("# from ") for line in said)
    assert "  on the step's arguments: the same, within the tolerance" in said
    ratio = next(line for line in said if "the generated kernel's time (min)" in line)
    assert float(ratio.split()[3]) < 0.9  # by hand it is several times as fast
    assert any("by `weft kernel use`" in line for line in said)
    assert any("the generated kernel is used again" in line for line in said)
    assert "matmul" in said[-1]


def replay(names: Names, printed: str) -> None:
    try:
        assert names["command"].startswith("weft replay verify-native-")
    finally:
        REPLACED.clear()


CHECKS: dict[str, Callable[[Names, str], None]] = {
    "coming-from.md": coming_from,
    "guide/replay.md": replay,
    "index.md": index,
    "tutorial/1-arrays.md": arrays,
    "tutorial/2-training.md": training,
    "tutorial/3-inside.md": inside,
    "tutorial/4-loops.md": loops,
    "tutorial/5-sessions.md": sessions_tutorial,
    "tutorial/6-processes.md": processes,
    "guide/checkpoints.md": checkpoints,
    "guide/cluster.md": cluster,
    "guide/data.md": data,
    "guide/devices.md": devices,
    "guide/numba.md": numba,
    "guide/engines.md": engines,
    "guide/gpu.md": gpu,
    "guide/elementwise.md": elementwise,
    "guide/extending.md": extending,
    "guide/placement.md": placement,
    "guide/queues.md": queues,
    "guide/replicas.md": replicas,
    "guide/sessions.md": sessions,
    "guide/tensorboard.md": tensorboard,
    "internals/comm.md": comm,
}
