"""The line on a terminal while something takes long."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.runtime import progress
from weft.runtime.trace.replay import PieceTime, Replay


class Terminal(io.StringIO):
    """A stderr that says whether it is a terminal."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setattr(progress, "PATIENCE", 0.02)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    # not sys.stderr: pytest puts its own there between a fixture and its test
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=made))
    return made


def wait_for(terminal: Terminal, text: str) -> None:
    until = time.monotonic() + 30
    while text not in terminal.getvalue() and time.monotonic() < until:
        time.sleep(0.005)
    assert text in terminal.getvalue()


def test_a_line_that_changes(terminal: Terminal) -> None:
    made = [0]
    with progress.progress("compiling 'f'", "compiled 'f'", lambda: f"{made[0]} kernels"):
        wait_for(terminal, "weft: compiling 'f': 0 kernels, 0.")
        made[0] = 3
        wait_for(terminal, "weft: compiling 'f': 3 kernels")
    *_, last = terminal.getvalue().split("\r")
    assert re.fullmatch(r"weft: compiled 'f': 3 kernels, \d+\.\d s\x1b\[K\n", last)
    assert not [t for t in threading.enumerate() if t.name == "weft progress"]


def test_what_is_quick_says_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 30.0)
    with progress.progress("a", "b", str):
        pass
    assert terminal.getvalue() == ""


def test_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    for stream in (Terminal(is_terminal=False), None):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.progress("a", "b", str):
            time.sleep(0.02)
        assert stream is None or stream.getvalue() == ""


class WithoutIsatty:
    """As programs put in stderr's place."""

    def write(self, text: str) -> None:
        raise AssertionError(text)


def test_what_is_no_file_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (WithoutIsatty(), closed):
        monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stream))
        with progress.progress("a", "b", str):
            pass


def test_a_terminal_that_is_closed_meanwhile(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with progress.progress("a", "b", str):
        wait_for(terminal, "weft: a")
        terminal.close()
        time.sleep(0.05)
    assert not raised


def test_within_another_one_and_after_an_error(terminal: Terminal) -> None:
    def fails() -> None:
        with progress.progress("inner", "done", str):
            wait_for(terminal, "outer")
        raise KeyError

    with pytest.raises(KeyError), progress.progress("outer", "done", str):
        fails()
    assert "outer failed" in terminal.getvalue()
    assert "done" not in terminal.getvalue()
    assert "inner" not in terminal.getvalue()
    with progress.progress("next", "done", str):
        wait_for(terminal, "next")


def test_compiling(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(graph: wf.Graph) -> wf.Graph:
        wait_for(terminal, "weft: compiling 'step': 0 new kernels")
        return graph

    @wf.compile(passes=[slow, "standard"])
    def step(x: object) -> object:
        return wf.exp(x) * 2

    assert step(np.zeros(3, np.float32)).tolist() == [2, 2, 2]  # type: ignore[attr-defined]
    assert re.search(r"weft: compiled 'step': \d+ new kernels, ", terminal.getvalue())


def test_measuring(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    times = Replay.times

    def slow(*args: Any) -> Iterator[PieceTime]:
        wait_for(terminal, "weft: measuring 'lambda': 0 of 2 kernels, ")
        yield from times(*args)

    monkeypatch.setattr(Replay, "times", slow)
    wf.compile(lambda x: wf.matmul(wf.exp(x) * 2, x)).cost(np.zeros((64, 64), np.float32))
    assert re.search(r"weft: measured 'lambda': 2 of 2 kernels, \d+\.\d s", terminal.getvalue())
