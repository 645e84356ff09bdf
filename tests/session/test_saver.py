"""`wf.train.Saver`: names, subsets, optimizers, random state, what is kept, and errors."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from paths import ROOT

import weft as wf
from weft.ir.dtypes import ALL, string

ERRORS = wf.errors


def values(*variables: wf.Variable) -> list[Any]:
    return [v.numpy().tolist() for v in variables]


# ------------------------------------------------------------------------------------ round trip
def test_list_and_dict(tmp_path: Path) -> None:
    w, b = wf.Variable([1.0, 2.0], name="w"), wf.Variable(3, name="b")
    path = wf.train.Saver([w, b]).save(None, tmp_path / "model")
    assert path == str(tmp_path / "model.safetensors")
    assert wf.train.list_variables(path) == [("b", []), ("w", [2])]
    np.testing.assert_array_equal(wf.train.load_variable(tmp_path, "w"), [1.0, 2.0])
    w.assign([0.0, 0.0])
    b.assign(0)
    report = wf.train.Saver([w, b]).restore(None, path)
    assert values(w, b) == [[1.0, 2.0], 3]
    assert sorted(report.restored) == ["b", "w"]
    assert (report.missing, report.unexpected, report.mismatched) == ((), (), {})
    assert report.verified
    assert "restored 2" in str(report)
    other = wf.Variable([0.0, 0.0])
    report = wf.train.Saver({"w": other}).restore(None, tmp_path / "model")  # without the suffix
    assert values(other) == [[1.0, 2.0]]
    assert report.unexpected == ("b",)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_every_dtype(tmp_path: Path, dtype: wf.DType) -> None:
    if dtype is string:
        start: Any = np.array([b"a\0", b"", b"bc"], object)
    else:
        start = np.array([0, 1, 1]).astype(dtype.numpy)
    v = wf.Variable(start, name="v")
    assert v.dtype is dtype
    saver = wf.train.Saver([v])
    saver.save(None, tmp_path / "m")
    v.assign(np.flip(start))
    saver.restore(None, tmp_path / "m")
    np.testing.assert_array_equal(v.numpy(), start)
    assert v.numpy().dtype == start.dtype


def test_nested_names(tmp_path: Path) -> None:
    model = {"layers": [{"w": wf.Variable(1.0)}, {"w": wf.Variable(2.0)}], "scale": wf.Variable(3)}
    path = wf.train.Saver(model).save(None, tmp_path / "m")
    names = [name for name, _ in wf.train.list_variables(path)]
    assert names == ["layers/0/w", "layers/1/w", "scale"]


def test_global_step_and_paths(tmp_path: Path) -> None:
    step = wf.Variable(7, name="step")
    saver = wf.train.Saver(step)
    assert saver.save(None, f"{tmp_path}/new/m", step).endswith("/new/m-7.safetensors")
    assert saver.save(None, f"{tmp_path}/new/m.safetensors", 8).endswith("/m-8.safetensors")
    assert saver.save(None, f"{tmp_path}/new/m", np.int64(9)).endswith("/m-9.safetensors")
    assert saver.save(None, f"{tmp_path}/new/m", wf.constant(10)).endswith("/m-10.safetensors")
    assert wf.train.latest_checkpoint(tmp_path / "new") == f"{tmp_path}/new/m-10.safetensors"
    assert len(saver.last_checkpoints) == 4
    assert wf.train.checkpoint_exists(tmp_path / "new/m-7")
    assert not wf.train.checkpoint_exists(tmp_path / "new/m-6")
    assert saver.restore(None, tmp_path / "new/m-9").step == 9


# ---------------------------------------------------------------------------------------- graphs
def test_in_a_graph(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        w = wf.Variable(wf.ones([2]), name="w")
        step = wf.Variable(0, name="step")
        x = wf.placeholder(wf.float32, [2])
        train = wf.train.Adam(0.1).minimize(wf.sum((w - x) ** 2), global_step=step)
        noise = wf.random_normal([2])
        saver = wf.train.Saver()
        with pytest.raises(ERRORS.FailedPreconditionError, match="'w', 'step' not initialised"):
            saver.save(session, tmp_path / "m")
        assert not list(tmp_path.iterdir())
        init = wf.global_variables_initializer()
        assert saver.restore_or_initialize(session, tmp_path, init) is None
        session.run(train, {x: [3.0, 4.0]})
        session.run(noise)
        path = saver.save(session, tmp_path / "m", global_step=step)
        assert path.endswith("m-1.safetensors")
        names = dict(wf.train.list_variables(path))
        assert {"w", "step", "Adam/step", "w/Adam/m", "w/Adam/v"} <= names.keys()

        def go_on() -> list[Any]:
            return [session.run([train, w, noise], {x: [3.0, 4.0]})[1:] for _ in range(3)]

        first = go_on()
        report = saver.restore_or_initialize(session, tmp_path, init)
        assert report is not None
        assert report.step == 1
        for a, b in zip(first, go_on(), strict=True):
            np.testing.assert_array_equal(a, b)
        fresh = wf.Variable(wf.zeros([2]), name="fresh")  # restoring initialises
        wf.train.Saver({"w": fresh}).restore(session, path)
        assert np.all(session.run(fresh) > 1)


def test_a_tensor_of_the_graph_as_global_step(tmp_path: Path) -> None:
    with wf.Graph().as_default(), wf.Session() as session:
        v = wf.Variable(4)
        session.run(wf.global_variables_initializer())
        assert wf.train.Saver().save(session, tmp_path / "m", v * 2).endswith("m-8.safetensors")


# ------------------------------------------------------------------- optimizers and random state
def make_training(optimizer: Any, include: Any = "random") -> tuple[Any, wf.train.Saver]:
    w = wf.Variable(np.ones((3, 2), np.float32), name="w")
    b = wf.Variable(np.zeros(2, np.float32), name="b")
    step = wf.Variable(0, name="step")
    generator = wf.random.Generator(5)

    @wf.compile
    def train() -> Any:
        x = generator.uniform([4, 3])
        noise = wf.random_normal([4, 2]) + wf.random_uniform([4, 2], seed=11)
        loss = wf.mean((x @ w + b - noise) ** 2)
        optimizer.minimize(loss, [w, b], global_step=step)
        return loss

    return train, wf.train.Saver([w, b, step, optimizer, generator], include=include)


@pytest.mark.share(4)
@pytest.mark.parametrize("make", [
    wf.train.Adam, wf.train.AdamW, lambda: wf.train.Momentum(0.1, 0.9), wf.train.Adagrad,
    wf.train.Adadelta, lambda: wf.train.RMSProp(centered=True), lambda: wf.train.SGD(0.1),
    lambda: wf.train.LBFGS(0.1, history=3),
])  # fmt: skip
def test_training_goes_on_bit_by_bit(tmp_path: Path, make: Any) -> None:
    """Restored into fresh objects, whose slots and generators are yet to be made."""
    wf.set_random_seed(3)
    train, saver = make_training(make())
    for _ in range(3):
        train()
    saver.save(None, tmp_path / "m")
    expected = [train().numpy().tobytes() for _ in range(4)]
    wf.set_random_seed(99)
    train, saver = make_training(make())
    saver.restore(None, tmp_path / "m")
    assert [train().numpy().tobytes() for _ in range(4)] == expected
    saver.restore(None, tmp_path / "m")  # and into used ones
    assert [train().numpy().tobytes() for _ in range(4)] == expected


def test_generators_made_after_the_checkpoint_start_as_they_did(tmp_path: Path) -> None:
    wf.set_random_seed(3)
    v = wf.Variable(0.0, name="v")
    saver = wf.train.Saver([v], include=["random"])
    wf.random_normal([2])
    saver.save(None, tmp_path / "m")
    expected = wf.random_normal([2], seed=123456).numpy()
    wf.set_random_seed(4)
    wf.random_normal([2], seed=123456)
    saver.restore(None, tmp_path / "m")
    np.testing.assert_array_equal(wf.random_normal([2], seed=123456).numpy(), expected)


def test_random_state_that_was_not_saved(tmp_path: Path) -> None:
    v = wf.Variable(0.0, name="v")
    wf.train.Saver([v]).save(None, tmp_path / "m")
    saver = wf.train.Saver([v], include="random")
    with pytest.raises(ERRORS.NotFoundError, match=r"weft\.random is not in the file"):
        saver.restore(None, tmp_path / "m")
    report = saver.restore(None, tmp_path / "m", strict=False)
    assert report.missing == ("weft.random",)
    assert report.restored == ("v",)


def test_a_failed_restore_makes_no_slots(tmp_path: Path) -> None:
    wf.train.Saver({"w": wf.Variable([1.0]), "w/Adagrad/accumulator": wf.Variable([5.0])}).save(
        None, tmp_path / "m"
    )
    w, optimizer = wf.Variable([0.0], name="w"), wf.train.Adagrad()
    saver = wf.train.Saver([w, optimizer, wf.Variable(0, name="more")])
    with pytest.raises(ERRORS.NotFoundError, match="more is not in the file"):
        saver.restore(None, tmp_path / "m")
    assert optimizer.variables() == []
    wf.train.Saver([w, optimizer]).restore(None, tmp_path / "m")
    slot = optimizer.get_slot(w, "accumulator")
    assert slot is not None
    assert values(w, slot) == [[1.0], [5.0]]


def test_slots_missing_in_the_file_are_an_error(tmp_path: Path) -> None:
    w, optimizer = wf.Variable([1.0], name="w"), wf.train.Momentum(0.1, 0.9)
    wf.train.Saver([w]).save(None, tmp_path / "m")
    optimizer.minimize(lambda: wf.sum(w * w), [w])
    with pytest.raises(ERRORS.NotFoundError, match="w/Momentum/momentum is not in the file"):
        wf.train.Saver([w, optimizer]).restore(None, tmp_path / "m")


def test_lbfgs_of_another_history(tmp_path: Path) -> None:
    train, saver = make_training(wf.train.LBFGS(history=3))
    train()
    saver.save(None, tmp_path / "m")
    train, saver = make_training(wf.train.LBFGS(history=4))
    saver.restore(None, tmp_path / "m")
    with pytest.raises(ERRORS.InvalidArgumentError, match="the restored state 's' is"):
        train()


# ------------------------------------------------------------------------------- partial restore
def test_partial_restore(tmp_path: Path) -> None:
    a, b, c = wf.Variable([1.0]), wf.Variable([2.0, 2.0]), wf.Variable(3)
    wf.train.Saver({"a": a, "b": b, "c": c}).save(None, tmp_path / "m")
    mine = {"a": wf.Variable([0.0]), "b": wf.Variable([0.0]), "c": wf.Variable(0.0),
            "d": wf.Variable(9)}  # fmt: skip
    saver = wf.train.Saver(mine)
    with pytest.raises(ERRORS.InvalidArgumentError) as caught:
        saver.restore(None, tmp_path / "m")
    text = str(caught.value)
    assert "b: the file has f32[2], the variable is f32[1]" in text
    assert "c: the file has i64[], the variable is f32[]" in text
    assert "d is not in the file" in text
    assert "test_saver.py" in text
    assert values(*mine.values()) == [[0.0], [0.0], 0.0, 9]
    report = saver.restore(None, tmp_path / "m", strict=False)
    assert report.restored == ("a",)
    assert report.missing == ("d",)
    assert sorted(report.mismatched) == ["b", "c"]
    assert values(*mine.values()) == [[1.0], [0.0], 0.0, 9]
    with pytest.raises(ERRORS.NotFoundError, match="did you mean 'c'"):
        wf.train.Saver({"cc": wf.Variable(0)}).restore(None, tmp_path / "m")


def test_nothing_fits_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wf.train.Saver({"a": wf.Variable(0)}).save(None, tmp_path / "m")
    with caplog.at_level(logging.WARNING, "weft.checkpoint"):
        wf.train.Saver({"b": wf.Variable(0)}).restore(None, tmp_path / "m", strict=False)
    assert "nothing was restored" in caplog.text


def test_damage_changes_nothing(tmp_path: Path) -> None:
    a, b = wf.Variable(np.zeros(100), name="a"), wf.Variable(np.zeros(100), name="b")
    saver = wf.train.Saver([a, b])
    path = Path(saver.save(None, tmp_path / "m"))
    data = path.read_bytes()
    a.assign(np.ones(100))
    b.assign(np.ones(100))
    for at in (-1, -900):  # in the last array, and in the first
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at:][1:])
        with pytest.raises(ERRORS.DataLossError, match="checksum of") as caught:
            saver.restore(None, path)
        assert str(path) in str(caught.value)
        assert np.all(a.numpy() == 1)
        assert np.all(b.numpy() == 1)


def test_foreign_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = {"w": np.arange(3, dtype=np.float32), "f8": np.zeros(2, np.int8)}
    path = tmp_path / "theirs.safetensors"
    data = safetensors.numpy.save(theirs)
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(b'"I8"', b'"F8_E4M3"')
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    w = wf.Variable(np.zeros(3, np.float32), name="w")
    with caplog.at_level(logging.WARNING, "weft.checkpoint"):
        report = wf.train.Saver([w]).restore(None, path)
    assert not report.verified
    assert "has no checksums" in caplog.text
    assert report.unexpected == ("f8",)
    assert values(w) == [[0.0, 1.0, 2.0]]
    with pytest.raises(ERRORS.InvalidArgumentError, match=r"the file has F8_E4M3\[2\]"):
        wf.train.Saver({"f8": wf.Variable(np.zeros(2, np.int8))}).restore(None, path)
    with pytest.raises(ERRORS.UnsupportedError, match="F8_E4M3"):
        wf.train.load_variable(path, "f8")
    with pytest.raises(ERRORS.NotFoundError, match="has no variable 'f9'"):
        wf.train.load_variable(path, "f9")


# ------------------------------------------------------------------------------ what else has state
class Counter:
    """A stateful object; one that refuses what it is given, if told so."""

    def __init__(self, start: int = 0, refuses: bool = False) -> None:
        self.items: list[Any] = [np.full(2, start)]
        self.refuses = refuses

    def state_dict(self) -> dict[str, Any]:
        return {"items": list(self.items), "note": "n"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.refuses:
            raise ValueError("not this one")
        self.items = state["items"]


def test_stateful_objects(tmp_path: Path) -> None:
    v, first, second = wf.Variable(1, name="v"), Counter(1), Counter(2)
    wf.train.register_state("test/second", second)
    saver = wf.train.Saver({"v": v, "first": first}, include="test/second")
    saver.save(None, tmp_path / "m")
    v.assign(0)
    first.items, second.items = [], []
    saver.restore(None, tmp_path / "m")
    assert values(v) == [1]
    assert [c.items[0].tolist() for c in (first, second)] == [[1, 1], [2, 2]]
    report = wf.train.Saver([v]).restore(None, tmp_path / "m")
    assert report.unexpected == ("weft.state/first", "weft.state/test/second")
    with pytest.raises(ERRORS.NotFoundError, match=r"weft\.state/third is not in the file"):
        wf.train.Saver({"v": v, "third": Counter()}).restore(None, tmp_path / "m")


def test_an_object_that_refuses_its_state_changes_nothing(tmp_path: Path) -> None:
    v, first, second = wf.Variable(1, name="v"), Counter(1), Counter(2)
    saver = wf.train.Saver({"v": v, "first": first, "second": second})
    saver.save(None, tmp_path / "m")
    v.assign(0)
    first.items, second.refuses = ["changed"], True
    with pytest.raises(ValueError, match="not this one"):
        saver.restore(None, tmp_path / "m")
    assert values(v) == [0]
    assert first.items == ["changed"]


def test_queues_and_tables(tmp_path: Path) -> None:
    """What they hold goes on with the variables."""
    v = wf.Variable(0, name="v")
    fifo = wf.FIFOQueue(10, [wf.float32, wf.string], shapes=[[2], []])
    shuffled = wf.RandomShuffleQueue(10, 1, [wf.int64], shapes=[[]], seed=3)
    table = wf.MutableHashTable(wf.string, wf.int64, -1)
    for i in range(6):
        fifo.enqueue([[i, i + 0.5], f"name {i}"])
        shuffled.enqueue([i])
    fifo.dequeue()
    table.insert(["a", "b"], [1, 2])
    state = {"v": v, "fifo": fifo, "shuffled": shuffled, "table": table}
    saver = wf.train.Saver(state)
    saver.save(None, tmp_path / "m")

    def drain() -> list[Any]:
        rows = [[np.asarray(x).tolist() for x in fifo.dequeue()] for _ in range(5)]
        order = [int(np.asarray(shuffled.dequeue())) for _ in range(5)]
        return [rows, order, np.asarray(table.lookup(["a", "b", "c"])).tolist()]

    expected = drain()
    table.insert(["a", "c"], [7, 8])
    saver.restore(None, tmp_path / "m")
    assert drain() == expected
    assert expected[0][0] == [[1.0, 1.5], b"name 1"]
    assert expected[2] == [1, 2, -1]


def test_the_registry(tmp_path: Path) -> None:
    counter = Counter()
    wf.train.register_state("test/counter", counter)
    wf.train.register_state("test/counter", counter)
    for name in ("test/counter", "random"):
        with pytest.raises(ERRORS.AlreadyExistsError, match="registered as"):
            wf.train.register_state(name, Counter())
    with pytest.raises(ERRORS.TypeRuleError, match="has no state_dict"):
        wf.train.register_state("x", 3)  # type: ignore[arg-type]
    saver = wf.train.Saver([wf.Variable(0)], include=["test/counter"])
    saver.save(None, tmp_path / "m")
    del counter  # the registry does not keep it
    with pytest.raises(ERRORS.NotFoundError, match="no state registered as 'test/counter'"):
        saver.save(None, tmp_path / "m")


# --------------------------------------------------------------------------------------- keeping
def files(folder: Path) -> list[str]:
    return sorted(p.name.removesuffix(".safetensors") for p in folder.iterdir())


def test_keeping_the_last_and_the_best(tmp_path: Path) -> None:
    v = wf.Variable(0, name="v")
    saver = wf.train.Saver([v], max_to_keep=2, keep_best=1, best_mode="max")
    for step, metric in enumerate([0.1, 0.9, float("nan"), 0.3, None, 0.5]):
        saver.save(None, tmp_path / "m", step, metric=metric)
    assert files(tmp_path) == ["checkpoint", "m-1", "m-4", "m-5"]
    assert [Path(p).stem for p in saver.last_checkpoints] == ["m-1", "m-4", "m-5"]
    best = wf.train.best_checkpoint(tmp_path, "max")
    assert best == str(tmp_path / "m-1.safetensors")
    assert saver.restore(None, best).metric == 0.9
    again = wf.train.Saver([v], max_to_keep=1)  # the next start: the state file knows them
    again.save(None, tmp_path / "m", 6)
    assert files(tmp_path) == ["checkpoint", "m-6"]
    assert wf.train.best_checkpoint(tmp_path) is None


def test_two_prefixes_in_one_folder(tmp_path: Path) -> None:
    v = wf.Variable(0, name="v")
    often, rarely = wf.train.Saver([v], 1), wf.train.Saver([v], max_to_keep=None)
    for step in range(3):
        rarely.save(None, tmp_path / "rare", step)
        often.save(None, tmp_path / "often", step)
    assert files(tmp_path) == ["checkpoint", "often-2", "rare-0", "rare-1", "rare-2"]
    often.save(None, tmp_path / "own", 1, latest_filename="other")
    assert wf.train.latest_checkpoint(tmp_path) == str(tmp_path / "often-2.safetensors")
    assert wf.train.latest_checkpoint(tmp_path, "other") == str(tmp_path / "own-1.safetensors")


def test_get_checkpoint_state(tmp_path: Path) -> None:
    assert wf.train.get_checkpoint_state(tmp_path) is None
    assert wf.train.latest_checkpoint(tmp_path / "nowhere") is None
    saver = wf.train.Saver([wf.Variable(0)])
    paths = [saver.save(None, tmp_path / "m", step) for step in range(3)]
    state = wf.train.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.model_checkpoint_path == paths[-1]
    assert state.all_model_checkpoint_paths == paths
    moved = tmp_path.rename(tmp_path.with_name(tmp_path.name + "-moved"))
    assert wf.train.latest_checkpoint(moved) == str(moved / "m-2.safetensors")


def test_what_a_killed_process_did_not_remove_goes_with_the_next_save(tmp_path: Path) -> None:
    saver = wf.train.Saver([wf.Variable(0)], max_to_keep=1)
    first = Path(saver.save(None, tmp_path / "m", 1))
    data = first.read_bytes()
    saver.save(None, tmp_path / "m", 2)
    first.write_bytes(data)  # as if the process had been killed before it removed the file
    saver.save(None, tmp_path / "m", 3)
    assert files(tmp_path) == ["checkpoint", "m-3"]


def test_saving_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v = wf.Variable(0, name="v")
    saver = wf.train.Saver([v], every_n_steps=10)
    saved = [step for step in range(1, 36, 3) if saver.save_if_due(None, tmp_path / "m", step)]
    assert saved == [10, 22, 31]
    again = wf.train.Saver([v], every_n_steps=10)  # goes on where the state file ends
    assert again.save_if_due(None, tmp_path / "m", 39) is None
    assert again.save_if_due(None, tmp_path / "m", 40)
    now = 1000.0
    monkeypatch.setattr("weft.frontend.train.saver.time.monotonic", lambda: now)
    timed = wf.train.Saver([v], every_n_seconds=60)
    assert timed.save_if_due(None, tmp_path / "t", 1) is None
    now = 1060.0
    assert timed.save_if_due(None, tmp_path / "t", 2)
    assert timed.save_if_due(None, tmp_path / "t", 3) is None
    with pytest.raises(ERRORS.InvalidArgumentError, match="never due"):
        wf.train.Saver([v]).save_if_due(None, tmp_path / "m", 1)


# ------------------------------------------------------------------------- restoring at the start
def flip(path: str | Path, at: int = -1) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 1
    Path(path).write_bytes(data)


def three(tmp_path: Path) -> tuple[wf.Variable, wf.train.Saver, list[str]]:
    v = wf.Variable(0, name="v")
    saver = wf.train.Saver([v])
    paths = []
    for step in (1, 2, 3):
        v.assign(step)
        paths.append(saver.save(None, tmp_path / "m", step))
    v.assign(0)
    return v, saver, paths


def test_a_damaged_latest_is_an_error_unless_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    v, saver, paths = three(tmp_path)
    flip(paths[2])
    with pytest.raises(ERRORS.DataLossError, match=r"m-3\.safetensors"):
        saver.restore_or_initialize(None, tmp_path)
    assert values(v) == [0]
    with caplog.at_level(logging.WARNING, "weft.checkpoint"):
        report = saver.restore_or_initialize(None, tmp_path, or_previous=True)
    assert report is not None
    assert report.path == paths[1]
    assert values(v) == [2]
    assert "m-3.safetensors" in caplog.text
    os.remove(paths[1])
    report = saver.restore_or_initialize(None, tmp_path, or_previous=True)
    assert report is not None
    assert report.path == paths[0]
    flip(paths[0], 20)
    with pytest.raises(ERRORS.DataLossError, match="all checkpoints in"):
        saver.restore_or_initialize(None, tmp_path, or_previous=True)


def test_a_latest_that_is_gone(tmp_path: Path) -> None:
    _, saver, paths = three(tmp_path)
    os.remove(paths[2])
    with pytest.raises(ERRORS.DataLossError, match=r"m-3\.safetensors', which is not there"):
        saver.restore_or_initialize(None, tmp_path)


def test_a_damaged_state_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, saver, paths = three(tmp_path)
    good = (tmp_path / "checkpoint").read_bytes()
    for at in range(0, len(good), 5):
        flip(tmp_path / "checkpoint", at)
        with pytest.raises(ERRORS.DataLossError, match="the state file"):
            saver.restore_or_initialize(None, tmp_path)
        (tmp_path / "checkpoint").write_bytes(good)
    for text in (b"", b"[1]", b"null", good[:-9], b"{}", b"\xff"):
        (tmp_path / "checkpoint").write_bytes(text)
        with pytest.raises(ERRORS.DataLossError, match="the state file"):
            wf.train.latest_checkpoint(tmp_path)
    flip(paths[2], 9)
    report = saver.restore_or_initialize(None, tmp_path, or_previous=True)
    assert report is not None
    assert report.path == paths[1]
    assert "the folder is searched" in caplog.text
    saver.save(None, tmp_path / "m", 4)  # makes the state file anew
    state = wf.train.get_checkpoint_state(tmp_path)
    assert state is not None
    assert [Path(p).stem for p in state.all_model_checkpoint_paths] == ["m-1", "m-2", "m-4"]


def test_files_without_a_state_file_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    v, saver, _ = three(tmp_path)
    (tmp_path / "checkpoint").unlink()
    assert saver.restore_or_initialize(None, tmp_path) is None
    assert "no state file" in caplog.text
    assert values(v) == [0]


# ------------------------------------------------------------------------------------------ errors
def test_bad_arguments(tmp_path: Path) -> None:
    v = wf.Variable(0, name="v")
    cases: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ERRORS.InvalidArgumentError, "reshape and sharded", {"max_to_keep": True}),
        (ERRORS.InvalidArgumentError, "max_to_keep cannot be -1", {"max_to_keep": -1}),
        (ERRORS.InvalidArgumentError, "best_mode|mode must be", {"best_mode": "least"}),
        (ERRORS.InvalidArgumentError, "every_n_steps cannot be 0", {"every_n_steps": 0}),
        (ERRORS.InvalidArgumentError, "every_n_seconds cannot", {"every_n_seconds": -1}),
        (ERRORS.TypeRuleError, "must be a real number", {"every_n_seconds": "a"}),
    ]
    for kind, match, options in cases:
        with pytest.raises(kind, match=match):
            wf.train.Saver([v], **options)
    bad: list[tuple[type[Exception], str, Any]] = [
        (ERRORS.TypeRuleError, "var_list holds a int", [3]),
        (ERRORS.TypeRuleError, "must be a list", 3),
        (ERRORS.TypeRuleError, "must be a list", "w"),
        (ERRORS.TypeRuleError, "names of var_list are str", {3: v}),
        (ERRORS.InvalidArgumentError, "cannot be a name", {"__metadata__": v}),
        (ERRORS.InvalidArgumentError, "cannot be a name", {"weft.x": v}),
        (ERRORS.InvalidArgumentError, "cannot be a name", {"\udc80": v}),
        (ERRORS.InvalidArgumentError, "two different objects", [v, wf.Variable(1, name="v")]),
        (ERRORS.InvalidArgumentError, "has no name", [Counter()]),
    ]
    for kind, match, var_list in bad:
        with pytest.raises(kind, match=match):
            wf.train.Saver(var_list)
    saver = wf.train.Saver([v])
    with pytest.raises(ERRORS.TypeRuleError, match="the first argument is a session or None"):
        saver.save(str(tmp_path / "m"), 3)  # type: ignore[arg-type]
    for path in (tmp_path, f"{tmp_path}/x/"):
        with pytest.raises(ERRORS.InvalidArgumentError, match="is a folder"):
            saver.save(None, path)
    with pytest.raises(ERRORS.InvalidArgumentError, match="global_step"):
        saver.save(None, tmp_path / "m", True)
    with pytest.raises(ERRORS.TypeRuleError, match="metric must be"):
        saver.save(None, tmp_path / "m", metric="good")
    with pytest.raises(ERRORS.InvalidArgumentError, match="latest_filename"):
        saver.save(None, tmp_path / "m", latest_filename="a/b")
    with pytest.raises(ERRORS.NotFoundError, match="there is no checkpoint file"):
        saver.restore(None, tmp_path / "m")
    with pytest.raises(ERRORS.InvalidArgumentError, match="a path is expected, got None"):
        saver.restore(None, wf.train.latest_checkpoint(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ERRORS.InvalidArgumentError, match="is not a file"):
        saver.restore(None, tmp_path)
    with pytest.raises(ERRORS.InvalidArgumentError, match="init_op needs a session"):
        saver.restore_or_initialize(None, tmp_path, "init")
    assert not list(tmp_path.iterdir())


def test_no_variables(tmp_path: Path) -> None:
    with (
        wf.Graph().as_default(),
        pytest.raises(ERRORS.InvalidArgumentError, match="no variables to save"),
    ):
        wf.train.Saver().save(None, tmp_path / "m")


def test_inside_a_compiled_function(tmp_path: Path) -> None:
    v = wf.Variable(0.0)
    saver = wf.train.Saver([v])

    @wf.compile
    def step() -> Any:
        saver.save(None, tmp_path / "m")
        return v.assign_add(1.0)

    with pytest.raises(ERRORS.UnsupportedError, match="while 'step' is traced"):
        step()
    assert not list(tmp_path.iterdir())


def test_slots_of_two_optimizers_of_one_name() -> None:
    w = wf.Variable([1.0], name="w")
    optimizers = [wf.train.Adam(), wf.train.Adam()]
    with pytest.raises(ERRORS.InvalidArgumentError, match="two different objects named 'Adam'"):
        wf.train.Saver([w, *optimizers])
    named = {"w": w, "one": optimizers[0], "two": optimizers[1]}
    for optimizer in optimizers:
        optimizer.minimize(lambda: wf.sum(w * w), [w])
    names = wf.train.Saver(named)._items.now().variables
    assert sorted(names) == [
        "one/step", "two/step", "w", "w/one/m", "w/one/v", "w/two/m", "w/two/v",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------ asynchronous
def test_async_save_has_the_values_of_the_call(tmp_path: Path) -> None:
    v = wf.Variable(np.zeros(1 << 18), name="v")
    saver = wf.train.Saver([v], max_to_keep=3)
    paths = []
    for step in range(5):
        v.assign(np.full(1 << 18, float(step)))
        paths.append(saver.save(None, tmp_path / "m", step, wait=False))
        v.assign(np.full(1 << 18, -1.0))
    assert [Path(p).name for p in saver.last_checkpoints] == [
        f"m-{i}.safetensors" for i in (2, 3, 4)
    ]
    for step in (2, 3, 4):
        saver.restore(None, paths[step])
        assert np.all(v.numpy() == step)


def test_async_errors_come_with_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    v = wf.Variable(0, name="v")
    saver = wf.train.Saver([v])
    saver.save(None, tmp_path / "file/m", 1, wait=False)
    with pytest.raises(ERRORS.FailedPreconditionError, match="cannot write") as caught:
        saver.save(None, tmp_path / "m", 2)
    assert any("m-1.safetensors' that was begun before" in note for note in caught.value.__notes__)
    saver.save(None, tmp_path / "m", 3)
    saver.wait()


def test_a_program_that_ends_finishes_its_save(tmp_path: Path) -> None:
    code = (
        "import weft as wf, numpy as np\n"
        "v = wf.Variable(np.ones(1 << 20), name='v')\n"
        f"wf.train.Saver([v]).save(None, {str(tmp_path / 'm')!r}, wait=False)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    v = wf.Variable(np.zeros(1 << 20), name="v")
    assert wf.train.Saver([v]).restore_or_initialize(None, tmp_path) is not None
    assert np.all(v.numpy() == 1)


def test_import_weft_does_not_load_safetensors() -> None:
    code = "import sys, weft; print('safetensors' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT,
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "False"
