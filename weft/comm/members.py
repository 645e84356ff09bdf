"""What a group knows of its other members: messages to and from them, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from weft.comm.addresses import Secret
from weft.comm.errors import DeadlineError, UnreachableError
from weft.comm.traffic import Traffic
from weft.comm.wire import Array

#: Kinds of messages: the first of a call, a further one, the last of a member.
CALL, NEXT, FAREWELL = 1, 2, 3
MOST_TEXT: Final = 2000
#: The bytes for a rank.
Data = Callable[[int], Any]


class Message(NamedTuple):
    """A message without its data. number: of the call; digest: a hash of what it is, and text that
    for people; of a farewell 1 if its sender has done that call and leaves by itself, and why."""

    kind: int
    text: str
    number: int
    digest: int


@dataclass(frozen=True, slots=True)
class Remote:
    """Where the members of a group over several hosts are, by rank: tcp://host:port. secret: of
    their cluster; without one only loopback addresses are bound or connected to."""

    addresses: tuple[str, ...]
    secret: Secret | None = None

    def of(self, ranks: Iterable[int]) -> Remote:
        """Of a group of some of them."""
        return Remote(tuple(self.addresses[k] for k in ranks), self.secret)


class Members(Protocol):
    """The other members of a group. Their errors are those of the transport (`Group`)."""

    #: Of each member what all read, if they are of one host.
    memory: list[Array]
    #: By rank: messages to and from it, and the bytes of their arrays.
    traffic: dict[int, Traffic]
    #: What this member is doing, for errors.
    doing: str
    #: Why another thread wants to end what this one waits for; "": it does not.
    stop: str

    def tell(self, message: Message, data: Data | None) -> None:
        """Send a message to everybody; what is sent may be written to once this returns."""

    def read(self, rank: int) -> tuple[Message, bytearray | memoryview]:
        """The next message of a member, and its data."""

    def end(self, farewell: Message) -> None:
        """Tell all why there is an end, and give all back."""

    def abandon(self) -> None:
        """In a child of a fork: all is the parent's."""


def ranks_text(ranks: Sequence[int]) -> str:
    """Numbers of members, for people."""
    numbers = ", ".join(map(str, sorted(ranks)))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def missing_error(ranks: Sequence[int], name: str) -> UnreachableError:
    """For members who do not come to the meeting of a group."""
    return UnreachableError(f"{ranks_text(ranks)} of the group '{name}' did not come")


def late_error(ranks: Sequence[int], seconds: float, doing: str) -> DeadlineError:
    """For members who do not come to a call."""
    return DeadlineError(f"{ranks_text(ranks)} did not come within {seconds:g} s, in {doing}")
