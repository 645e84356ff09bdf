"""When messages arrive: what leaves a task, and what enters it, goes one after the other.

A message takes its turn at the sender, then at the receiver, which gets its first byte one latency
after the sender puts it on the link; both are busy for so long as the bytes and the handling of one
message take.
"""

from __future__ import annotations

from weft.passes.placement.devices import Links


class Network:
    """The state of all links at one time of a simulation. Names of tasks are any text."""

    __slots__ = ("_into", "_out", "links")

    def __init__(self, links: Links) -> None:
        self.links = links
        self._out: dict[str, float] = {}
        self._into: dict[str, float] = {}

    def arrival(
        self, source: str, target: str, nbytes: float, ready: float, buses: int = 0
    ) -> float:
        """When a message sent now would be there. buses: of how many GPUs it goes over. Within a
        task nothing queues."""
        links = self.links
        bus = links.bus_latency_s + nbytes / links.bus_bytes_per_s
        if source == target and buses:
            return ready + bus
        if source == target:
            return ready + links.local_latency_s + nbytes / links.local_bytes_per_s
        ready += buses * bus
        hold = links.message_s + nbytes / links.bytes_per_s
        begin = max(ready, self._out.get(source, 0.0))
        return max(begin + links.latency_s, self._into.get(target, 0.0)) + hold

    def send(
        self, source: str, target: str, nbytes: float, ready: float, buses: int = 0
    ) -> tuple[float, float]:
        """Send a message at `ready`: when its sending begins, and when it is there."""
        arrives = self.arrival(source, target, nbytes, ready, buses)
        if source == target:
            return ready, arrives
        begin = max(ready, self._out.get(source, 0.0))
        self._out[source] = begin + self.links.message_s + nbytes / self.links.bytes_per_s
        self._into[target] = arrives
        return begin, arrives
