"""What lies under the keys of a `rendezvous`: values, offers, who waits; and who may send them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from weft.comm.errors import WrongSenderError

#: The number of the message in the partitioned program, and the counters of the enclosing loops.
Key = tuple[int, tuple[int, ...]]
#: Takes the value, DEAD, or an exception.
Callback = Callable[[Any], None]


@dataclass(slots=True, eq=False)
class Value:
    """bytes: that count as held. source: who has sent it; None: it is not said."""

    value: Any
    bytes: int
    on_taken: Callable[[], None] | None
    source: str | None


@dataclass(slots=True, eq=False)
class Waiter:
    """source: who is to send it; None: anyone. offered: its bytes are on their way."""

    callback: Callback
    since: float
    source: str | None
    offered: bool = False


@dataclass(slots=True, eq=False)
class Offer:
    """claim: fetches it."""

    claim: Callable[[], None]
    source: str | None


@dataclass(slots=True, eq=False)
class Several:
    """What several senders have put under one key; `source` fits no reader."""

    held: list[Value | Offer]
    source: str = ""


Held = Value | Offer | Several
Entry = Held | Waiter


class Strays:
    """Stands for: others than the sender have put something there."""


STRAYS: Final = Strays()


def each(entries: Iterable[Entry]) -> Iterator[Value | Offer]:
    """The values and offers among them."""
    for entry in entries:
        if isinstance(entry, Several):
            yield from entry.held
        elif not isinstance(entry, Waiter):
            yield entry


def fits(sender: str | None, expected: str | None) -> bool:
    """Whether a reader takes it. None, of either: it is not said who sends it."""
    return sender == expected or sender is None or (expected is None and sender != "")


def wrong_sender(step: int, key: Key, sender: str | None, expected: str | None) -> WrongSenderError:
    """What is refused."""
    return WrongSenderError(f"{sender} sent key {key} of step {step}, which is {expected}'s")
