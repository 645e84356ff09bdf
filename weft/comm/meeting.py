"""`Meeting`: where processes of one host that come and go agree who takes part from now on.

Who first binds the meeting's name leads; the others connect to it, say who they are, and are told
the members of the next generation. If the leader is gone the kernel has freed the name, so another
one binds it. Each process holds a name of its own as long as it takes part: so all know who is
gone, and nobody waits for the dead. Who is there but does not come (stopped, say) is left behind
after a time, by those who are more.

Names are abstract addresses of Unix sockets: nothing is left in any folder. Only processes of the
same user are let in, for which the kernel vouches."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import select
import socket
import struct
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from weft.comm.errors import AddressError, CommError, LeftBehindError, UnreachableError
from weft.comm.shared_memory import AVAILABLE, credentials

_LENGTH: Final = struct.Struct("<4sI")
_MAGIC: Final = b"WFM1"
_MOST: Final = 1 << 20
#: A stranger who connects and says nothing holds a leader up for so long.
_HELLO_S: Final = 2.0
_PAUSE_S: Final = 0.01
_ALONE_S: Final = 0.2
_meetings: weakref.WeakSet[Meeting] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part. step: how many calls it has done; known: whether it has the state
    of the run, and is no newcomer. Of a run over several hosts: its address, and how often it has
    begun to meet."""

    ident: str
    pid: int
    step: int = 0
    known: bool = False
    address: str = ""
    round: int = 0

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" at {self.address}" if self.address else "")


@dataclass(frozen=True, slots=True)
class Generation:
    """Who takes part, by rank, until somebody goes or comes. token: of no other generation."""

    number: int = 0
    token: str = ""
    members: tuple[Member, ...] = ()

    def rank(self, ident: str) -> int:
        """The number of a member; -1 of others."""
        return next((k for k, m in enumerate(self.members) if m.ident == ident), -1)


@dataclass(slots=True)
class _Guest:
    """Who has come: what it knows, and its connection."""

    member: Member
    last: Generation
    connection: socket.socket = field(repr=False)


class Meeting:
    """This process's part in the meetings of a run.

    name: the run's, the same in all its processes. size: how many processes begin it; least: how
    many go on. timeout: for how many seconds one that is there is waited for; connect_timeout: how
    long for processes that are lacking.
    """

    def __init__(
        self, name: str, size: int, least: int, timeout: float, connect_timeout: float
    ) -> None:
        if not AVAILABLE:
            raise AddressError(f"no shared memory between processes on {sys.platform}")
        self.name, self.size, self.least = name, size, least
        self.timeout, self.connect_timeout = timeout, connect_timeout
        self.ident = secrets.token_hex(8)
        self._guests: list[_Guest] = []
        self._inbox: socket.socket | None = None
        self._where = 0  # the name that the leader has: another one after a leader that hangs
        self._presence = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._presence.bind(address_of(name, self.ident))
        _meetings.add(self)

    def close(self) -> None:
        """Take part no more. A second time nothing."""
        _meetings.discard(self)
        self._presence.close()
        self._stop_leading()

    def _stop_leading(self, why: dict[str, str] | None = None) -> None:
        """why: what guests are told; if nothing, they look for another leader."""
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None
        for guest in self._guests:
            if why is not None:
                _tell(guest.connection, why)
            guest.connection.close()
        self._guests = []

    def is_there(self, ident: str) -> bool:
        """Whether the process of that name takes part: it is neither dead nor has it left."""
        return _is_heard(address_of(self.name, ident), socket.SOCK_DGRAM)

    def remote_of(self, made: Generation) -> None:
        """Where the members of a generation are: on this host."""

    def visitors(self) -> int:
        """How many processes wait for the next meeting. 0 but for the leader."""
        if self._inbox is not None:
            self._admit(0.0)
            self._guests = [g for g in self._guests if not _is_gone(g.connection)]
        return len(self._guests)

    def meet(self, step: int, known: bool, last: Generation) -> Generation:
        """The next generation. step, known: of this member; last: the one that ended.

        UnreachableError if too few come, LeftBehindError where the others are more than a step
        ahead, or are more and do not come.
        """
        me = Member(self.ident, os.getpid(), step, known)
        while True:
            if self._inbox is not None or self._takes_the_lead():
                try:
                    made = self._lead(me, last)
                    if made is not None:
                        return made
                    self._stop_leading()
                except LeftBehindError as error:
                    self._stop_leading({"behind": str(error)})
                    raise
                except CommError as error:
                    self._stop_leading({"error": str(error)})
                    raise
            try:
                return self._follow(me, last)
            except OSError as error:
                if isinstance(error, CommError):
                    raise
                time.sleep(_PAUSE_S)  # the leader is gone, or does not listen yet

    # ------------------------------------------------------------------------------ who follows

    def _follow(self, me: Member, last: Generation) -> Generation:
        """What the leader says. OSError if it is gone."""
        with socket.socket(socket.AF_UNIX) as one:
            try:
                one.settimeout(self.timeout + self.connect_timeout)
                one.connect(address_of(self.name, f"leader-{self._where}"))
                _check_user(one)
                _tell(one, {"member": asdict(me), "last": asdict(last)})
                answer = _heard(one)
            except TimeoutError:
                self._where += 1  # the leader hangs, and has the name
                raise
        if "behind" in answer:
            raise LeftBehindError(answer["behind"])
        if "error" in answer:
            raise UnreachableError(answer["error"])
        return generation_of(answer["generation"])

    # -------------------------------------------------------------------------------- who leads

    def _is_replaced(self) -> bool:
        """Whether a process leads that did not wait for this one."""
        return _is_heard(address_of(self.name, f"leader-{self._where + 1}"), socket.SOCK_STREAM)

    def _takes_the_lead(self) -> bool:
        while self._is_replaced():
            self._where += 1
        inbox = socket.socket(socket.AF_UNIX)
        try:
            inbox.bind(address_of(self.name, f"leader-{self._where}"))
        except OSError:
            inbox.close()
            return False
        inbox.listen(128)
        self._inbox = inbox
        return True

    def _lead(self, me: Member, last: Generation) -> Generation | None:
        """Wait for all who can come, and say who takes part. None if another one leads, as this
        process was silent for long."""
        began = time.monotonic()
        while not self._is_replaced():
            self._admit(_PAUSE_S)
            self._guests = [g for g in self._guests if not _is_gone(g.connection)]
            came = [me, *(g.member for g in self._guests)]
            newest = max([last, *(g.last for g in self._guests)], key=lambda g: g.number)
            awaited = self._awaited(came, last)
            enough = len(came) >= needed(came, self.least, self.size)
            waited = time.monotonic() - began
            if awaited and waited > self.timeout:
                _check_more(self.name, came, awaited, newest)
                awaited = []
            # who knows of nobody may have come between a leader's end and its members
            alone = len(came) == 1 and not me.known and waited < _ALONE_S
            if enough and not awaited and not alone:
                return self._decide(came, newest)
            if waited > self.timeout + self.connect_timeout or (
                not awaited and waited > self.connect_timeout
            ):
                raise UnreachableError(
                    f"{len(came)} processes of the run '{self.name}' have come, and "
                    f"{needed(came, self.least, self.size)} are needed"
                )
        return None

    def _awaited(self, came: Sequence[Member], last: Generation) -> list[Member]:
        """Who is there, was in a generation that somebody here knows, and has not come yet."""
        here = {m.ident for m in came}
        known = {m.ident: m for g in (last, *(g.last for g in self._guests)) for m in g.members}
        return [m for m in known.values() if m.ident not in here and self.is_there(m.ident)]

    def _decide(self, came: Sequence[Member], newest: Generation) -> Generation:
        top = max((m.step for m in came if m.known), default=0)
        behind = [m for m in came if m.known and m.step < top - 1]
        if any(m.ident == self.ident for m in behind):
            self._stop_leading()  # the others go on, and one of them leads
            raise LeftBehindError(behind_text(top, came[0].step))
        stays = [m for m in came if m not in behind]
        ranked = sorted(stays, key=lambda m: (not m.known, newest.rank(m.ident)))
        made = Generation(newest.number + 1, secrets.token_hex(8), tuple(ranked))
        for guest in self._guests:
            late = behind_text(top, guest.member.step)
            told = {"behind": late} if guest.member in behind else {"generation": asdict(made)}
            _tell(guest.connection, told)
            guest.connection.close()
        self._guests = []
        return made

    def _admit(self, seconds: float) -> None:
        """Let in who has connected; wait so long for the first."""
        assert self._inbox is not None
        wait = seconds
        while select.select([self._inbox], [], [], wait)[0]:
            wait = 0.0
            one, _ = self._inbox.accept()
            try:
                one.settimeout(_HELLO_S)
                _check_user(one)
                said = _heard(one)
                guest = _Guest(Member(**said["member"]), generation_of(said["last"]), one)
            except (OSError, CommError, ValueError, TypeError, KeyError):
                one.close()
                continue
            self._guests.append(guest)

    def abandon(self) -> None:
        """In a child of a fork: the names are the parent's."""
        self._presence.close()
        self._stop_leading()


def _check_more(
    name: str, came: Sequence[Member], silent: Sequence[Member], newest: Generation
) -> None:
    """LeftBehindError unless those who came are more than those who are silent: else there might be
    two runs. Of as many the ones with the lowest rank go on."""
    old = [newest.rank(m.ident) for m in came if m.known]
    away = [newest.rank(m.ident) for m in silent]
    if len(old) < len(away) or (len(old) == len(away) and min(old) > min(away)):
        who = ", ".join(map(str, silent))
        raise LeftBehindError(f"of the run '{name}' are there, and do not come: {who}")


def generation_of(raw: Any) -> Generation:
    """From plain data. TypeError, KeyError if it is none."""
    made = Generation(**raw)
    return replace(made, members=tuple(Member(**m) for m in raw["members"]))


def address_of(name: str, what: str) -> str:
    """The address of something of a run."""
    digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
    return f"\0weft-run-{digest}-{what}"


def _is_heard(address: str, kind: int) -> bool:
    """Whether a process has the address."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except BlockingIOError:
            return True  # so many connect to it that there is no room
        except ConnectionRefusedError:
            return False
    return True


def needed(came: Sequence[Member], least: int, size: int) -> int:
    """How many have to come: fewer once one of them has the run's state."""
    return least if any(m.known for m in came) else size


def behind_text(top: int, step: int) -> str:
    """What one hears that the others have left behind."""
    return f"the others are at step {top}, and this process at step {step}"


def _check_user(one: socket.socket) -> None:
    if credentials(one)[1] != os.geteuid():
        raise AddressError("a process of another user has the name of this run")


def _tell(one: socket.socket, what: object) -> None:
    """Who is gone does not hear it."""
    raw = json.dumps(what).encode()
    with contextlib.suppress(OSError):
        one.sendall(_LENGTH.pack(_MAGIC, len(raw)) + raw)


def _heard(one: socket.socket) -> Any:
    magic, count = _LENGTH.unpack(_exactly(one, _LENGTH.size))
    if magic != _MAGIC or count > _MOST:
        raise ValueError("no message of a meeting")
    return json.loads(_exactly(one, count))


def _exactly(one: socket.socket, count: int) -> bytes:
    made = b""
    while len(made) < count:
        more = one.recv(count - len(made))
        if not more:
            raise ConnectionResetError("the connection has ended")
        made += more
    return made


def _is_gone(one: socket.socket) -> bool:
    poll = select.poll()
    poll.register(one, select.POLLRDHUP)
    return bool(poll.poll(0))


def _abandon_all() -> None:
    for meeting in list(_meetings):
        meeting.abandon()
    _meetings.clear()


os.register_at_fork(after_in_child=_abandon_all)
