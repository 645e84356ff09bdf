"""benchmarks/paper/table1.py: the nets are those that were published, a step is a training step,
and the program sets the paper's figures beside its own."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks" / "paper"))
import table1
import table1_nets as nets
import table1_steps as steps

#: One layer of each kind, so small that a finite difference of the whole is cheap.
SMALL = nets.Net(
    "small",
    (
        nets.Conv(12, 5, 2, 2),
        nets.Lrn(bias=0.5, alpha=0.3),
        nets.MaxPool(3, 2, "SAME"),
        nets.inception(8, (6, 8), (6, 8), 6),
        nets.MaxPool(2, 2),
        nets.Dense(16),
        nets.Dense(nets.CLASSES, last=True),
    ),
    batch=8,
    image=16,
)


@pytest.mark.parametrize(
    ("name", "parameters", "multiply_adds"),
    [  # torchvision's alexnet and vgg11; Overfeat's fast model; GoogLeNet without auxiliary parts
        ("AlexNet", 61_100_840, 0.714e9),
        ("Overfeat", 145_920_872, 2.80e9),
        ("OxfordNet", 132_863_336, 7.61e9),
        ("GoogLeNet", 6_998_552, 1.58e9),
    ],
)
def test_nets_have_the_parameters_that_were_published(
    name: str, parameters: int, multiply_adds: float
) -> None:
    for lrn in (False, True):
        found = nets.net(name, lrn)
        shapes = nets.Shapes(found.image, 3).walk(found.layers)
        assert sum(int(np.prod(shape)) for shape in shapes.weights) == parameters
        assert shapes.work / 2 == pytest.approx(multiply_adds, rel=0.01)
    count = sum(isinstance(layer, nets.Lrn) for layer in nets.net(name, True).layers)
    assert count == (2 if name in table1.WITH_LRN else 0)
    assert not any(isinstance(layer, nets.Lrn) for layer in nets.net(name).layers)


def test_an_image_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="an image of 1 is too small for a window of 3"):
        nets.problem(nets.net("AlexNet"), 1, 40)


def doubled(given: nets.Problem) -> nets.Problem:
    """The same in float64, with biases that are not 0."""
    rng = np.random.default_rng(1)
    params = [p.astype(np.float64) + 0.01 * rng.standard_normal(p.shape) for p in given.params]
    return replace(given, params=params, x=given.x.astype(np.float64))


def test_a_step_is_forward_backward_and_the_update() -> None:
    """Losses along the direction in which a step went fall by RATE times the gradient's square."""
    given = doubled(nets.problem(SMALL, SMALL.batch, SMALL.image))
    contestant = steps.weft_step(given)
    loss = float(contestant.step())
    moves = [a - b for a, b in zip(contestant.params(), given.params, strict=True)]
    assert all(np.linalg.norm(m) > 0 for m in moves)
    slope = -sum(float((m**2).sum()) for m in moves) / steps.RATE

    def at(share: float) -> float:
        params = [p + share * m for p, m in zip(given.params, moves, strict=True)]
        return float(steps.weft_step(replace(given, params=params)).step())

    assert at(0.0) == loss
    assert (at(1e-3) - at(-1e-3)) / 2e-3 == pytest.approx(slope, rel=1e-6)
    assert float(contestant.step()) == pytest.approx(at(1.0), rel=1e-12)


@pytest.mark.parametrize("peer", ["jax", "torch", "torch nchw"])
def test_peers_compute_the_same(peer: str) -> None:
    """The small net with local response normalisation, by each peer that is installed."""
    pytest.importorskip(peer.split()[0])
    given = nets.problem(SMALL, SMALL.batch, SMALL.image)
    wanted = table1.updates(given, steps.weft_step(given))
    table1.check(given, peer, table1.updates(given, steps.MAKERS[peer](given)), wanted)


def test_a_side_that_computes_something_else_is_not_timed() -> None:
    given = nets.problem(SMALL, SMALL.batch, SMALL.image)
    losses, moves = table1.updates(given, steps.weft_step(given))
    table1.check(given, "weft", (losses, moves), (losses, moves))
    with pytest.raises(table1.Disagreement, match="losses of peer"):
        table1.check(given, "peer", ([*losses[:2], losses[2] + 0.1], moves), (losses, moves))
    other = [*moves[:2], moves[2] * 1.1, *moves[3:]]
    with pytest.raises(table1.Disagreement, match="peer moves parameter 2 elsewhere"):
        table1.check(given, "peer", (losses, other), (losses, moves))
    still = [np.zeros_like(moves[0]), *moves[1:]]
    with pytest.raises(table1.Disagreement, match="weft does not move parameter 0"):
        table1.check(given, "weft", (losses, still), (losses, still))


@pytest.mark.slow
def test_the_program_writes_what_it_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(name: str, lrn: bool = False) -> Any:
        return replace(SMALL, name=f"{name} + LRN" if lrn else name)

    monkeypatch.setattr(table1, "net", small)
    argv = ["--only", "GoogLeNet", "--peers", "--rounds", "1", "--batch", "8", "--image", "16"]
    result = table1.main([*argv, "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "445" in said  # TensorFlow's GoogLeNet in the paper
    assert "4.35, 0.61, 1.06" in said  # Caffe, Neon and Torch over it
    written = json.loads((tmp_path / "table1.json").read_text())
    assert written == result
    assert [row["net"] for row in written["rows"]] == ["GoogLeNet", "GoogLeNet + LRN"]
    assert all(row["seconds"]["weft"]["minimum"] > 0 for row in written["rows"])
    assert (tmp_path / "table1.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        table1.main(["--full", "--batch", "2"])
