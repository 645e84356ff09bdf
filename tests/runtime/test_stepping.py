"""A run of a step that gives its thread back where it would wait."""

import threading
from typing import Any

import numpy as np
import pytest

from weft.ir.errors import CancelledError, OutOfRangeError
from weft.ir.text.parser import parse_graph
from weft.runtime.dataflow.executor import Stepping, dataflow_step, is_small
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.store import remake

TAKES = """graph @g(%x: f32[]) -> (f32[]) stage=traced {
  %0 = queue() {name="q", kind="fifo", capacity=9, parts=["f32[]"]} : queue<f32[]>
  %1 = dequeue(%0) : f32[]
  %2 = multiply(%1, %x) : f32[]
  %3 = dequeue(%0) after(%1) : f32[]
  %4 = add(%2, %3) : f32[]
  return %4
}"""


class Taker:
    """A step that takes two elements of a queue."""

    def __init__(self) -> None:
        self.graph = parse_graph(TAKES)
        self.queue: Any = remake(self.graph.ops[0])
        self.step = dataflow_step(self.graph, {}, {"q": self.queue}, "auto")
        self.outcomes: list[Any] = []

    def begin(self, x: float, cancel: CancelToken | None = None) -> None:
        run = Stepping(self.step, self.outcomes.append)
        run.begin([np.array(x, np.float32)], cancel or CancelToken())

    def put(self, value: float) -> None:
        self.queue.start_enqueue([(np.array(value, np.float32),)], lambda made: None)


def test_it_goes_on_in_the_thread_that_brings_what_it_waits_for() -> None:
    t = Taker()
    assert is_small(t.graph)
    t.begin(10.0)
    assert t.outcomes == []
    t.put(1.0)
    assert t.outcomes == []
    t.put(2.0)
    assert [a.tolist() for a in t.outcomes[0]] == [12]
    t.put(3.0)
    t.put(4.0)
    t.begin(1.0)  # all is there: it ends at once, on the state of the first
    assert t.outcomes[1][0] == 7
    assert len(t.step._idle) == 1


def test_cancel_and_errors() -> None:
    t = Taker()
    token = CancelToken()
    t.begin(1.0, token)
    token.cancel("enough")
    assert isinstance(t.outcomes[0], CancelledError)
    t.begin(1.0)
    t.queue.close()
    assert isinstance(t.outcomes[1], OutOfRangeError)
    assert len(t.outcomes) == 2


@pytest.mark.parametrize("count", [40])
def test_many_threads(count: int) -> None:
    t = Taker()
    t.queue.capacity = None
    putters = [
        threading.Thread(target=lambda: [t.put(1.0) for _ in range(count // 2)]) for _ in range(4)
    ]
    for thread in putters:
        thread.start()
    for _ in range(count):
        t.begin(1.0)
    for thread in putters:
        thread.join(20)
    assert len(t.outcomes) == count
    assert {float(made[0]) for made in t.outcomes} == {2.0}


def test_what_is_not_small() -> None:
    def graph(op: str) -> str:
        return (
            f"graph @g(%x: f32[900,900], %s: string[], %p: bool[]) -> () stage=traced {{\n{op}\n}}"
        )

    big = "%0 = matmul(%x, %x) {transpose_a=false, transpose_b=false} : f32[900,900]\n  return"
    assert not is_small(parse_graph(graph(big)))
    assert not is_small(parse_graph(graph("%0 = string_length(%s) : i32[]\n  return")))
    assert not is_small(
        parse_graph(graph("%0, %1 = switch(%x, %p) : f32[900,900], f32[900,900]\n  return"))
    )
    assert is_small(parse_graph(graph("%0 = logical_not(%p) : bool[]\n  return")))
