"""examples/language_model.py: it learns with either softmax, goes on from a checkpoint bit by bit,
and is the same model on parameter servers and on the processes of a mesh."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from event_files import events, values
from example_programs import load_example, run

import weft as wf

example = load_example("language_model")
SIZES = example.Sizes(vocabulary=24, units=16, projection=12, batch=8, length=6, parts=1, sampled=0)


@pytest.fixture(autouse=True)
def float32_only() -> Iterator[None]:
    """No program computes in float64 by accident."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", wf.Float64Warning)
        yield


@pytest.fixture(scope="module")
def text() -> Any:
    """Of 23 words each is followed by one of two, at random: no model has a perplexity below 2, and
    one that knows only how frequent words are has 23."""
    rng = np.random.default_rng(0)
    files = []
    for _ in range(20):
        words = [int(rng.integers(23))]
        while len(words) < 600:
            words.append((words[-1] * 5 + int(rng.integers(2))) % 23)
        files.append([f"w{k}" for k in words])
    return example.Text.of(files, 24)


def learned(text: Any, sizes: Any, mesh: wf.Mesh | None = None, **plan: Any) -> Any:
    """A run of the training program."""
    return example.train(text, sizes, example.Plan(quiet=True, **plan), mesh)


def test_the_text_and_its_pieces() -> None:
    files = [["a", "b", "a"]] * 9 + [["a", "c"]]
    text = example.Text.of(files, 3)
    assert text.names == ["a", "b", example.UNKNOWN]
    assert text.learn.tolist() == [0, 1, 0] * 9
    assert text.held_out.tolist() == [0, 2]  # the tenth file; c is rare
    ids = np.arange(100, dtype=np.int32)
    found = list(example.pieces(ids, 3, 8))
    assert len(found) == 4
    joined = np.concatenate([piece[:, :-1] for piece in found], axis=1)
    np.testing.assert_array_equal(joined, joined[:, :1] + np.arange(32))  # streams go on
    assert joined[:, 0].tolist() == [0, 33, 66]
    for one, two in itertools.pairwise(found):
        np.testing.assert_array_equal(one[:, -1], two[:, 0])
    with pytest.raises(SystemExit, match="5 words are too few for 3 streams of 9"):
        example.pieces(ids[:5], 3, 8)


@pytest.mark.share(2)
@pytest.mark.parametrize("sampled", [0, 8])
def test_learns_what_follows(text: Any, sampled: int) -> None:
    result = learned(text, replace(SIZES, sampled=sampled), steps=600)
    before, after = result.perplexities
    assert before == pytest.approx(24, rel=0.02)  # every word as likely
    assert 2 < after < (2.4 if not sampled else 3.0)
    assert np.mean(result.losses[-50:]) < np.mean(result.losses[:50])


def test_a_state_goes_on_from_piece_to_piece(text: Any) -> None:
    """Two short pieces cost what one piece of their length does."""
    whole = replace(SIZES, length=12)
    found = []
    for sizes, count in ((SIZES, 2), (whole, 1)):
        pieces = list(example.pieces(text.held_out, 8, sizes.length).take(count))
        runner = example.OnSession(sizes, 0, 3, 0, "")
        with runner.session:
            found.append(example.perplexity(runner, sizes, pieces))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.slow
def test_goes_on_from_a_checkpoint_bit_by_bit(text: Any, tmp_path: Path) -> None:
    sizes = replace(SIZES, sampled=8)  # which words are drawn depends on the step
    whole = learned(text, sizes, steps=30)
    folder, logs = tmp_path / "asked", tmp_path / "logs"
    one = learned(text, sizes, steps=30, until=13, checkpoint=folder)
    two = learned(text, sizes, steps=30, checkpoint=folder, logdir=logs)
    assert (one.first, two.first) == (0, 13)
    assert one.losses + two.losses == whole.losses
    assert two.perplexities == (one.perplexities[1], whole.perplexities[1])
    done = learned(text, sizes, steps=30, checkpoint=folder)
    assert (done.first, done.losses) == (30, [])
    none = learned(text, sizes, steps=30, until=0)
    assert (none.losses, none.perplexities[1]) == ([], whole.perplexities[0])
    logged = values(logs)
    steps, losses = zip(*logged["loss"], strict=True)
    assert steps == tuple(range(13, 30))
    assert losses == tuple(np.float32(two.losses))
    assert [step for step, _ in logged["perplexity"]] == [13, 30]
    assert any(event.graph for event in events(logs))


LAST = re.compile(
    r"steps 1 to 12: first \d+\.\d\d s, then \d+\.\d ms a step, \d+ words/s\n"
    r"held-out perplexity: (\d+\.\d) before, (\d+\.\d) after\n$"
)


@pytest.mark.slow
@pytest.mark.parametrize(("softmax", "ps"), [("full", 2), ("sampled", 1)])
def test_parameter_servers_train_the_same_model(
    softmax: str, ps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command with servers, against one process."""
    small = ["--quick", "--softmax", softmax, "--steps", "12", "--units", "8", "--projection", "8"]
    there = [*small, "--ps", str(ps), "--checkpoint", str(tmp_path / "asked")]
    found = LAST.search(run("language_model", *there))
    assert found
    before, after = map(float, found.groups())
    assert after < 0.9 * before
    one = example.main(small)
    assert LAST.search(capsys.readouterr().out)
    # with one part the first values and the draws are the same, parts begin with other values
    assert (before, after) == pytest.approx(one.perplexities, rel=1e-3 if ps == 1 else 0.1)
    again = run("language_model", *there)
    assert "steps" not in again  # it was done
    assert again.endswith(f"held-out perplexity: {after} before, {after} after\n")


@pytest.mark.share(2)
@pytest.mark.parametrize("sampled", [0, 8])
def test_shards_have_the_losses_of_one_process(text: Any, sampled: int, tmp_path: Path) -> None:
    """Sums over a batch are of the shards' sums then, so the last bits differ; and a run goes on
    from a checkpoint with the same bits."""
    sizes, mesh = replace(SIZES, sampled=sampled), wf.Mesh({"data": 2})
    whole, cut = (learned(text, sizes, m, steps=12) for m in (None, mesh))
    np.testing.assert_allclose(cut.losses, whole.losses, rtol=1e-5)
    assert cut.perplexities == pytest.approx(whole.perplexities, rel=1e-5)
    if not sampled:
        return
    one = learned(text, sizes, mesh, steps=12, until=5, checkpoint=tmp_path)
    two = learned(text, sizes, mesh, steps=12, checkpoint=tmp_path)
    assert (one.first, two.first) == (0, 5)
    assert one.losses + two.losses == cut.losses


def test_what_does_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong, what in (
        (["--workers", "2"], "several share parameter servers"),
        (["--processes", "3"], "a number that divides --batch"),
        (["--processes", "2", "--ps", "1"], "without --ps"),
    ):
        with pytest.raises(SystemExit):
            example.main(wrong)
        assert what in capsys.readouterr().err


@pytest.mark.slow
def test_processes_train_as_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command, beside the same in one process."""
    small = ["--quick", "--steps", "12", "--units", "8", "--projection", "8"]
    found = LAST.search(run("language_model", *small, "--processes", "2"))
    assert found
    one = example.main(small)
    assert LAST.search(capsys.readouterr().out)
    assert tuple(map(float, found.groups())) == pytest.approx(one.perplexities, rel=1e-3)


@pytest.mark.slow
def test_workers_share_parameter_servers() -> None:
    """And the steps: what each of them learns, all have."""
    small = ["--quick", "--steps", "12", "--units", "8", "--projection", "8"]
    found = LAST.search(run("language_model", *small, "--ps", "1", "--workers", "2"))
    assert found
    before, after = map(float, found.groups())
    assert after < 0.9 * before
