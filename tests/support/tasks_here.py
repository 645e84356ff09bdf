"""All parts of a partitioned graph on the executor, each in a thread, messages in a dict."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.dtypes import as_dtype
from weft.ir.errors import InternalError
from weft.ir.graph import Operation
from weft.ir.program import Part, Program
from weft.runtime.dataflow.executor import DataflowStep, dataflow_step
from weft.runtime.dataflow.host_ops.row import DEAD
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.resources.variables import VariableState
from weft.runtime.step import RunContext

Name = tuple[int, tuple[int, ...]]


class HereExchange:
    """Messages between threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Name, Any] = {}
        self._waiting: dict[Name, Callable[[Any], None]] = {}
        self.sent = 0
        self.dead = 0

    def runs(self, waits: Callable[[], list[Operation]]) -> None:
        """As `weft.runtime.dataflow.host_ops.communication.Exchange`."""

    def waited(self, seconds: float) -> None:
        """As `weft.runtime.dataflow.host_ops.communication.Exchange`."""

    def send(self, op: Operation, iterations: tuple[int, ...], value: Any) -> None:
        """As `weft.runtime.dataflow.host_ops.communication.Exchange`."""
        name = int(str(op.attrs["key"])), iterations
        held = value if value is DEAD else np.array(value, copy=True)
        with self._lock:
            self.sent += 1
            self.dead += value is DEAD
            if name in self._values:
                raise InternalError(f"message {name} is sent twice")
            came = self._waiting.pop(name, None)
            if came is None:
                self._values[name] = held
        if came is not None:
            came(held)

    def room(self, device: str, shape: tuple[int, ...], dtype: Any) -> None:
        """As `weft.runtime.dataflow.host_ops.communication.Exchange`."""

    def receive(
        self, op: Operation, iterations: tuple[int, ...], came: Callable[[Any], None]
    ) -> None:
        """As `weft.runtime.dataflow.host_ops.communication.Exchange`."""
        name = int(str(op.attrs["key"])), iterations
        with self._lock:
            if name not in self._values:
                self._waiting[name] = came
                return
            found = self._values.pop(name)
        came(found)

    def left(self) -> list[Name]:
        """What was sent and never received, or waited for and never sent."""
        return [*self._values, *self._waiting]

    def left_alive(self) -> list[Name]:
        """As `left`, without dead values: who receives one after a size that is dead does not."""
        return [name for name in self.left() if self._values.get(name) is not DEAD]


def steps_of(made: Program, state: Mapping[str, Any]) -> list[DataflowStep]:
    """Each part compiled, with the variables of all."""
    held = {
        name: VariableState(name, as_dtype(value.dtype), value.shape, value)
        for name, value in state.items()
    }
    return [dataflow_step(part.graph, held, {}, "auto") for part in made.parts]


def run_steps(
    parts: Sequence[Part], steps: Sequence[DataflowStep], inputs: Sequence[Any], seconds: float
) -> tuple[list[Any], HereExchange]:
    """The results of the whole; raises the first error of a part."""
    exchange = HereExchange()
    found: dict[int, Any] = {}
    errors: list[BaseException] = []
    tokens = [CancelToken(exchange) for _ in parts]

    def run(part: Part, step: DataflowStep, token: CancelToken) -> None:
        given = [np.ascontiguousarray(inputs[i]) for i in part.feeds]
        try:
            results = step.run(given, RunContext(timeout=seconds, cancel=token))
            found.update(zip(part.fetches, results, strict=True))
        except BaseException as error:
            errors.append(error)
            for other in tokens:
                other.cancel("another part has failed")

    threads = [
        threading.Thread(target=run, args=row, daemon=True)
        for row in zip(parts, steps, tokens, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 10)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return [found[i] for i in range(len(found))], exchange
