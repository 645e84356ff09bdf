"""Folders of checkpoints that somebody prepared: their files lead to nothing outside the folder."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weft as wf
from weft.runtime.checkpoint.format import check_file_name, write_atomically

DataLossError = wf.errors.DataLossError


def store(path: Path, fields: dict[str, Any]) -> None:
    """Write a state file or manifest with a checksum that fits."""
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**fields, "sha256": digest}))


def change(path: Path, **changes: Any) -> None:
    fields = json.loads(path.read_text())
    del fields["sha256"]
    store(path, {**fields, **changes})


def row(file: str, **changes: Any) -> dict[str, Any]:
    return {"file": file, "prefix": "m", "step": 0, "time": 1.0, **changes}


def outside(tmp_path: Path) -> list[str]:
    """Files beside the folder of checkpoints, as a state file may try to name them."""
    for name in ("precious.safetensors", "precious.manifest.json", "precious.py"):
        (tmp_path / name).write_text("precious")
    names = [p.name for p in tmp_path.iterdir() if p.is_file()]
    return [*(f"../{n}" for n in names), *(str(tmp_path / n) for n in names), "code.py"]


@pytest.mark.parametrize("field", ["removed", "checkpoints", "shards"])
def test_a_save_removes_nothing_elsewhere(tmp_path: Path, field: str) -> None:
    for number, name in enumerate(outside(tmp_path)):
        folder = tmp_path / f"{number}"
        saver = wf.train.Saver([wf.Variable(0.0, name="x")], max_to_keep=1)
        saver.save(None, folder / "m", 1)
        (folder / "code.py").write_text("precious")
        if field == "shards":
            shards = [{"task": "", "file": name, "tensors": []}]
            manifest = {"format": "weft sharded checkpoint 2", "mark": 1, "notes": {}}
            store(folder / "m-0.manifest.json", {**manifest, "shards": shards})
            change(folder / "checkpoint", checkpoints=[row("m-0.manifest.json")])
        else:
            named: list[Any] = [name] if field == "removed" else [row(name)]
            change(folder / "checkpoint", **{field: named})
            with pytest.raises(DataLossError, match=r"the state file .*it names"):
                wf.train.latest_checkpoint(folder)
        for step in (2, 3):
            saver.save(None, folder / "m", step)
        assert wf.train.latest_checkpoint(folder) == str(folder / "m-3.safetensors")
        assert (folder / "code.py").exists()
    assert len([p for p in tmp_path.iterdir() if p.is_file()]) == 3


@settings(max_examples=200, deadline=None)
@given(name=st.text("./\\\0ab~ \u2215", max_size=12) | st.none() | st.integers(), suffix=st.text())
@example(name="..", suffix="")
@example(name="../", suffix=".safetensors")
@example(name="/", suffix=".manifest.json")
@example(name="a\0", suffix=".safetensors")
def test_a_name_that_passes_is_in_the_folder(name: Any, suffix: str) -> None:
    given_name = name + suffix if isinstance(name, str) else name
    try:
        passed = check_file_name(given_name)
    except ValueError:
        return
    assert os.path.dirname(os.path.normpath(os.path.join("/folder", passed))) == "/folder"
    assert passed.endswith((".safetensors", ".manifest.json"))


@pytest.mark.parametrize("changes", [
    {"time": "now"}, {"prefix": None}, {"step": "1"}, {"metric": []}, {"always": 1}, {"no": 0},
])  # fmt: skip
def test_fields_of_another_type_are_damage(tmp_path: Path, changes: dict[str, Any]) -> None:
    saver = wf.train.Saver([wf.Variable(0.0, name="x")])
    saver.save(None, tmp_path / "m", 1)
    change(tmp_path / "checkpoint", checkpoints=[row("m-1.safetensors", **changes)])
    with pytest.raises(DataLossError, match="the state file"):
        wf.train.latest_checkpoint(tmp_path)
    (tmp_path / "checkpoint").write_text("[" * 100_000)
    with pytest.raises(DataLossError, match="the state file"):
        wf.train.latest_checkpoint(tmp_path)


def test_links_stay_and_lead_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, precious = tmp_path / "f", tmp_path / "precious.safetensors"
    saver = wf.train.Saver([wf.Variable(0.0, name="x")], max_to_keep=1)
    saver.save(None, folder / "m", 1)
    precious.write_text("precious")
    (folder / "m-0.safetensors").symlink_to(precious)
    change(folder / "checkpoint", removed=["m-0.safetensors"])
    with caplog.at_level(logging.WARNING, "weft.checkpoint"):
        saver.save(None, folder / "m", 2)
    assert "it is no regular file" in caplog.text
    assert precious.read_text() == "precious"
    assert (folder / "m-0.safetensors").is_symlink()


@pytest.mark.parametrize("reader", [False, True], ids=["nobody reads", "read"])
def test_pipes_block_no_save(tmp_path: Path, reader: bool) -> None:
    """One in the place of a leftover (whoever reads it), of the state file, of a manifest."""
    left, linked = tmp_path / ".m-1-0-00.weft-tmp", tmp_path / ".m-2-0-00.weft-tmp"
    precious = tmp_path / "precious"
    precious.write_text("precious")
    linked.symlink_to(precious)
    for path in (left, tmp_path / "state", tmp_path / "m-7.manifest.json"):
        os.mkfifo(path)
    end = os.open(left, os.O_RDONLY | os.O_NONBLOCK) if reader else None
    saver = wf.train.Saver([wf.Variable(0.0, name="x")])
    done: list[str] = []

    def save() -> None:
        with pytest.raises(DataLossError, match="no regular file"):
            wf.train.latest_checkpoint(tmp_path, latest_filename="state")
        write_atomically(tmp_path / "plain", [memoryview(b"x")])
        done.append(saver.save(None, tmp_path / "m", 1))
        done.append(saver.save(None, tmp_path / "m", 2, latest_filename="state"))

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    thread.join(20)
    if end is not None:
        os.close(end)
    assert len(done) == 2, "a save waits for a pipe"
    assert precious.read_text() == "precious"
    assert left.exists()
    assert linked.is_symlink()
