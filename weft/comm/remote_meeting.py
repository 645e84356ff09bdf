"""`RemoteMeeting`: as `Meeting`, of processes on several hosts.

A run has a list of addresses; at each there is at most one process, which listens there as long as
it takes part. Who meets says so to all addresses, again and again. The one with the first address
among those that hear each other leads: it proposes the next generation, and when all in it have
accepted, it says so. Who has accepted a proposal listens to no other until that one is over.

An address is *empty* if its host refuses connections to it: the kernel there knows that nobody
listens. One that does not answer may have a process that the network has cut off, and that goes on.
So a generation needs more members that have the state of the run than there are addresses that are
neither empty nor in it; of as many, those go on that have the first of these addresses. A run
begins when each address has come or is empty. Then there are never two groups: of two, each would
be among those that the other one had to outnumber, and a process that is there is never taken for
an empty address. (A firewall that refuses connections makes it look so; one that drops them does
not.)"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from weft.comm.addresses import parse_address
from weft.comm.errors import AddressError, CommError, LeftBehindError, UnreachableError
from weft.comm.link import Link
from weft.comm.meeting import Generation, Member, behind_text, generation_of, needed
from weft.comm.members import Remote
from weft.comm.post import MEETING, leave_post, post_at
from weft.comm.protocol import Message as Letter

#: Kinds of messages of a meeting. All but the first two are about a generation.
_HERE, _BEHIND, _PROPOSE, _ACCEPT, _REFUSE, _GO, _CANCEL = range(7)
#: How often one that meets says so to others that do, and at least to others: what piles up for one
#: that is stopped may end it (libzmq 4.3.5, heartbeats of a full connection). How long it counts.
_SAY_S: Final = 0.1
_SAY_AT_LEAST_S: Final = 1.0
_STALE_S: Final = 2.5
#: How long a proposal waits for its members.
_ANSWER_S: Final = 5.0
_PAUSE_S: Final = 0.02
#: How often it is tried whether an address is empty, and for how long a host may be silent.
_PROBE_S: Final = 0.2
_SILENT_S: Final = 2.0
#: A link that is not up by then is made anew: TCP's own tries become rare.
_LINK_S: Final = 5.0
#: A process is not cut off because of what has been heard of others for less than so long.
SLACK_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a process that meets has said. hears: to which addresses it has links."""

    member: Member
    last: Generation
    hears: frozenset[str]
    when: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Proposal:
    """A generation that is not in force yet: made by `leader`; missing: who has not accepted."""

    made: Generation
    leader: str
    missing: set[str] = field(default_factory=set)
    until: float = field(default_factory=lambda: time.monotonic() + _ANSWER_S)


_meetings: weakref.WeakSet[RemoteMeeting] = weakref.WeakSet()


class _Probes:
    """Threads that try, while one meets, which of the addresses are empty."""

    def __init__(self, addresses: Sequence[str], linked: Collection[str]) -> None:
        self.empty: set[str] = set()
        self.linked = linked  # need not be tried; replaced, never changed
        self._stop = threading.Event()
        for address in addresses:
            name = f"weft-probe-{address}"
            threading.Thread(target=self._run, args=(address,), name=name, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self, address: str) -> None:
        where = parse_address(address)
        while not self._stop.is_set():
            if address not in self.linked:
                if _is_refused(where.host, where.port):
                    self.empty.add(address)
                else:
                    self.empty.discard(address)
            self._stop.wait(_PROBE_S)


def _is_refused(host: str, port: int) -> bool:
    """Whether all that the name stands for refuse a connection."""
    try:
        socket.create_connection((host, port), _SILENT_S, all_errors=True).close()
    except ExceptionGroup as errors:
        return all(isinstance(error, ConnectionRefusedError) for error in errors.exceptions)
    except OSError:
        pass  # a name that nobody knows now
    return False


class RemoteMeeting:
    """This process's part in the meetings of a run over several hosts: as `Meeting`, and remote:
    the addresses at which its processes may be; place: which of them this one has.

    AddressError where another process has it; errors of the endpoint for keys that are lacking.
    """

    def __init__(
        self, name: str, size: int, least: int, timeout: float, connect_timeout: float,
        remote: Remote, place: int,
    ) -> None:  # fmt: skip
        if len(set(remote.addresses)) < len(remote.addresses):
            raise AddressError(f"the run '{name}' has an address twice")
        self.name, self.size, self.least = name, size, least
        self.timeout, self.connect_timeout = timeout, connect_timeout
        self.ident = secrets.token_hex(8)
        self._remote, self._here = remote, remote.addresses[place]
        self._index = {address: k for k, address in enumerate(remote.addresses)}
        self._others = [a for a in remote.addresses if a != self._here]
        self._seen: dict[str, _Seen] = {}
        self._inbox: deque[tuple[str, int, Any]] = deque()
        self._meets = self._closed = False
        self._round = 0  # of saying that it is here: one that it has left does not come again
        self._generation = Generation()
        self._accepted: _Proposal | None = None
        self._proposal: _Proposal | None = None
        self._invited: dict[str, tuple[float, Link]] = {}
        self._told_behind: dict[str, float] = {}  # by address: of what it has said when
        self._differs = ""  # who has another list of addresses
        self._refused: dict[str, tuple[int, float]] = {}  # by address: the round, and until when
        self._fit = 0.0  # when there could last have been a generation
        self._told_links: frozenset[str] = frozenset()
        self._said: dict[str, tuple[float, float, int]] = {}  # when, the pause then, the round
        self._post = post_at(self._here, remote.secret)
        with self._post.changed:
            if name in self._post.meetings:
                leave_post(self._here)
                raise AddressError(f"the run '{name}' has a process at {self._here} already")
            self._post.meetings[name] = self._hear
        _meetings.add(self)

    def abandon(self) -> None:
        """In a child of a fork: the endpoint is the parent's."""
        self._closed = True

    def close(self) -> None:
        """Take part no more. A second time nothing."""
        if not self._closed:
            self._closed = True
            _meetings.discard(self)
            with self._post.changed:
                self._post.meetings.pop(self.name, None)
            leave_post(self._here)

    def remote_of(self, made: Generation) -> Remote:
        """Where the members of a generation are."""
        return Remote(tuple(m.address for m in made.members), self._remote.secret)

    def is_there(self, ident: str) -> bool:
        """Whether a member of this generation is neither lost nor meets again."""
        member = self._generation.members[self._generation.rank(ident)]
        if ident == self.ident:
            return True
        with self._post.changed:
            seen = self._seen.get(member.address)
            back = seen is not None and _is_later(seen.member, member)
            return member.address not in self._post.lost and not back

    def visitors(self) -> int:
        """How many processes wait for the next meeting, and have links to all members."""
        members = {m.address: m for m in self._generation.members}
        with self._post.changed:
            return sum(
                (seen.member.address not in members or _is_later(seen.member, members[address]))
                and seen.hears >= members.keys() - {address}
                for address, seen in self._fresh().items()
            )

    def meet(self, step: int, known: bool, last: Generation) -> Generation:
        """The next generation, as `Meeting.meet`. A meeting that fails is closed."""
        with self._post.changed:
            self._round += 1
            self._inbox.clear()
            self._accepted = self._proposal = None
            self._meets, self._fit = True, time.monotonic()
        self._post.forget(self.name)
        probes = _Probes(self._others, self._links())
        try:
            me = Member(self.ident, os.getpid(), step, known, self._here)
            self._generation = made = self._take_part(me, last, probes)
            with self._post.changed:  # they meet no more
                for m in made.members:
                    if m.address in self._seen and not _is_later(self._seen[m.address].member, m):
                        del self._seen[m.address]
        except CommError:
            self.close()  # others need not wait until what was heard of this process is old
            raise
        finally:
            probes.stop()
            with self._post.changed:
                self._meets = False
                late = [x for x in self._inbox if x[1] == _PROPOSE]
            for address, _, told in late:
                self._send(address, _REFUSE, _token(told))
        return self._generation

    def _take_part(self, me: Member, last: Generation, probes: _Probes) -> Generation:
        began = time.monotonic()
        while True:
            links = probes.linked = self._links()
            probes.empty -= links  # what was seen before somebody came there
            self._invite(probes.empty, links)
            mine = _Seen(replace(me, round=self._round), last, links)
            if self._accepted is None:
                self._say(mine)
            made = self._answered()
            if made is None and self._accepted is None and self._proposal is None:
                made = self._decide(mine, probes.empty, time.monotonic() - began)
            if made is not None:
                return made
            with self._post.changed:
                if not self._inbox:
                    self._post.changed.wait(_PAUSE_S)

    # ----------------------------------------------------------------------------------- messages

    def _hear(self, letter: Letter) -> None:
        """In a thread of the endpoint, under the lock of the post."""
        _, kind, *told = letter.meta
        address = letter.peer
        if address not in self._index or not told:
            return
        try:
            if kind == _HERE:
                member, last, hears, addresses = told
                if addresses != list(self._index):
                    self._differs = address
                    return
                seen = _Seen(Member(**member), generation_of(last), frozenset(hears))
                if seen.member.address == address:
                    self._seen[address] = seen
            elif self._meets:
                self._inbox.append((address, kind, told[0]))
            elif kind == _PROPOSE:
                self._send(address, _REFUSE, _token(told[0]))
        except (TypeError, ValueError, KeyError):
            return  # it is not what a member says

    def _send(self, address: str, kind: int, *told: Any) -> bool:
        """Whether it could be sent."""
        try:
            self._post.endpoint.send(address, MEETING, 0, [self.name, kind, *told])
        except CommError:
            return False
        return True

    def _links(self) -> frozenset[str]:
        return frozenset(p.name for p in self._post.endpoint.connected()) & self._index.keys()

    def _fresh(self) -> dict[str, _Seen]:
        """Who meets now, by address. Under the lock."""
        now, lost = time.monotonic(), self._post.lost
        found = {}
        for address, seen in self._seen.items():
            number, until = self._refused.get(address, (0, 0.0))
            again = seen.member.round > number or now > until
            if seen.when > now - _STALE_S and address not in lost and again:
                found[address] = seen
        return found

    def _invite(self, empty: Collection[str], links: Collection[str]) -> None:
        """Have links made to all addresses that may have a process."""
        now, endpoint = time.monotonic(), self._post.endpoint
        for address in self._others:
            if address in links or address in empty:
                self._invited.pop(address, None)
            elif address not in self._invited:
                self._invited[address] = now, endpoint.invite(address)
            elif now - self._invited[address][0] > _LINK_S:
                del self._invited[address]
                endpoint.disconnect(address)

    def _say(self, mine: _Seen) -> None:
        """Tell all that this process is here, if that is new to them, or some time ago."""
        now, told = time.monotonic(), None
        for address in mine.hears:
            when, pause, number = self._said.get(address, (0.0, 0.0, 0))
            heard = self._seen.get(address)
            if number != mine.member.round or (heard is not None and heard.when > when):
                pause = 0.0
            news = number != mine.member.round or mine.hears != self._told_links
            if news or now - when > max(pause, _SAY_S):
                known = asdict(mine.member), asdict(mine.last), sorted(mine.hears)
                told = told or (*known, list(self._index))
                self._said[address] = (
                    now,
                    min(2 * pause or _SAY_S, _SAY_AT_LEAST_S),
                    mine.member.round,
                )
                self._send(address, _HERE, *told)
        self._told_links = mine.hears

    # ---------------------------------------------------------------------------------- proposals

    def _answered(self) -> Generation | None:
        """Act on what has come: the generation, if one is in force."""
        if self._differs:
            raise AddressError(
                f"{self._differs} has other addresses than {', '.join(self._index)} for the run "
                f"'{self.name}', or in another order"
            )
        with self._post.changed:
            letters = list(self._inbox)
            self._inbox.clear()
        for address, kind, told in letters:
            if kind == _BEHIND:
                raise LeftBehindError(str(told))
            if kind == _PROPOSE:
                self._consider(address, told)
            elif _is(self._accepted, told) and self._accepted.leader == address:  # type: ignore[union-attr]
                if kind == _GO:
                    return self._accepted.made  # type: ignore[union-attr]
                self._come_again()
            elif _is(self._proposal, told):
                if kind == _ACCEPT:
                    self._proposal.missing.discard(address)  # type: ignore[union-attr]
                else:
                    self._withdraw()
        return self._looked_after()

    def _looked_after(self) -> Generation | None:
        """End a proposal that nothing will come of: the generation, if all have accepted it."""
        now = time.monotonic()
        with self._post.changed:
            lost = set(self._post.lost)
        accepted, own = self._accepted, self._proposal
        # the leader gives up first
        if accepted and (accepted.leader in lost or now > accepted.until + _ANSWER_S):
            self._come_again()
        if own is None:
            return None
        if not own.missing:
            self._tell(own.made, _GO)
            return own.made
        if own.missing & lost or now > own.until:
            self._withdraw()
        return None

    def _consider(self, leader: str, told: Any) -> None:
        """Accept a proposal, or not."""
        try:
            made = generation_of(told)
        except (TypeError, ValueError, KeyError):
            return
        rank = made.rank(self.ident)
        fits = rank >= 0 and made.members[rank].round == self._round
        if fits and self._accepted is None and self._proposal is None:
            self._accepted = _Proposal(made, leader)
            if not self._send(leader, _ACCEPT, made.token):
                self._come_again()
        else:
            self._send(leader, _REFUSE, made.token)

    def _come_again(self) -> None:
        """Listen to others, after a proposal that has come to nothing."""
        self._accepted = None
        self._round += 1

    def _withdraw(self) -> None:
        """Take one's own proposal back. What its members have said before does not count any more:
        who had accepted it comes again, and who had not may be elsewhere."""
        own, self._proposal = self._proposal, None
        assert own is not None
        self._tell(own.made, _CANCEL)
        self._round += 1
        until = time.monotonic() + _STALE_S
        with self._post.changed:
            self._refused = {m.address: (m.round, until) for m in own.made.members}

    def _tell(self, made: Generation, kind: int) -> None:
        for member in made.members:
            if member.ident != self.ident:
                self._send(member.address, kind, made.token)

    # ----------------------------------------------------------------------------------- decisions

    def _decide(self, mine: _Seen, empty: Collection[str], waited: float) -> Generation | None:
        """Propose a generation, if it is on this process and there can be one: itself, if it has no
        other member. LeftBehindError, UnreachableError."""
        with self._post.changed:
            fresh = list(self._fresh().values())
        both = [s for s in fresh if _hear_each_other(mine, s)]
        newest = max([mine.last, *(s.last for s in both)], key=lambda g: g.number)
        came = self._who_came(mine, both, newest)
        top = max((s.member.step for s in came if s.member.known), default=0)
        behind = [s for s in came if s.member.known and s.member.step < top - 1]
        if mine in behind:
            raise LeftBehindError(behind_text(top, mine.member.step))
        stay = [s.member for s in came if s not in behind]
        away = {*self._index} - {m.address for m in stay} - {*empty}
        leads = all(self._index[s.member.address] > self._index[self._here] for s in both)
        if leads:
            for s in behind:
                address = s.member.address
                if self._told_behind.get(address) != s.when:
                    self._told_behind[address] = s.when
                    self._send(address, _BEHIND, behind_text(top, s.member.step))
        enough = len(stay) >= needed(stay, self.least, self.size)
        may = self._outnumber(stay, away)
        awaited = [m for s in came for m in s.last.members if m.address in away]
        if leads and enough and may and (not awaited or waited > self.timeout):
            return self._propose(stay, newest)
        if enough and may:
            self._fit = time.monotonic()
        self._check_patience(mine, stay, away, waited, 1 if leads else 2)
        return None

    def _who_came(self, mine: _Seen, both: Sequence[_Seen], newest: Generation) -> list[_Seen]:
        """Those who all have links to each other, by rank: one that only some reach is left out."""

        def order(s: _Seen) -> tuple[bool, int, int]:
            return not s.member.known, newest.rank(s.member.ident), self._index[s.member.address]

        came = [mine]
        for s in sorted(both, key=order):
            if all(_hear_each_other(s, x) for x in came):
                came.append(s)
        return sorted(came, key=order)

    def _outnumber(self, stay: Sequence[Member], away: Collection[str]) -> bool:
        """Whether no others can go on, or have begun."""
        known = [self._index[m.address] for m in stay if m.known]
        if not away or not known:
            return not away
        first = min(self._index[address] for address in away)
        equal = len(known) == len(away)
        return len(known) > len(away) or (equal and min(known) < first)

    def _known_of(self, address: str) -> str:
        """An address, for people, and why there is no link to it."""
        _, link = self._invited.get(address, (0.0, None))
        return f"{address} ({link.cause})" if link is not None and link.cause else address

    def _propose(self, stay: Sequence[Member], newest: Generation) -> Generation | None:
        made = Generation(newest.number + 1, secrets.token_hex(8), tuple(stay))
        others = {m.address for m in stay} - {self._here}
        if not others:
            return made
        self._proposal = _Proposal(made, self._here, others)
        for address in others:
            if not self._send(address, _PROPOSE, asdict(made)):
                self._withdraw()
                return None
        return None

    def _check_patience(
        self,
        mine: _Seen,
        stay: Sequence[Member],
        away: Collection[str],
        waited: float,
        turns: int,
    ) -> None:
        """LeftBehindError, UnreachableError for a process that has waited for too long. turns: of
        how many processes the time counts, one after the other."""
        unfit = time.monotonic() - self._fit
        silent = ", ".join(map(self._known_of, sorted(away, key=self._index.__getitem__)))
        cut_off = mine.member.known and not self._outnumber(stay, away)
        if cut_off and waited > self.timeout and unfit > SLACK_S:
            raise LeftBehindError(
                f"of the run '{self.name}' {len(stay)} processes have come, and nothing is known "
                f"of {silent}"
            )
        limit = self.connect_timeout
        if unfit < SLACK_S or any(address in mine.hears for address in away):
            limit += self.timeout * turns
        if waited > limit:
            wanted = needed(stay, self.least, self.size)
            more = f"; {silent} did not come, and may have a process" if silent else ""
            raise UnreachableError(
                f"{len(stay)} processes of the run '{self.name}' have come, and {wanted} are "
                f"needed{more}"
            )


def _abandon_all() -> None:
    for meeting in list(_meetings):
        meeting.abandon()
    _meetings.clear()


os.register_at_fork(after_in_child=_abandon_all)


def _is_later(now: Member, then: Member) -> bool:
    """Whether a process that meets is not, or no more, the member that it was."""
    return now.ident != then.ident or now.round > then.round


def _hear_each_other(one: _Seen, other: _Seen) -> bool:
    return other.member.address in one.hears and one.member.address in other.hears


def _is(proposal: _Proposal | None, token: object) -> bool:
    return proposal is not None and proposal.made.token == token


def _token(told: Any) -> str:
    return str(told.get("token")) if isinstance(told, dict) else ""
