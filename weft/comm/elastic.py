"""`ElasticGroup`: sums over processes that come and go, as if none did.

A sum has `count` parts, whatever the number of processes; each computes some that are neighbours,
and all are added in a fixed tree:

    ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7))

So its bits do not depend on who takes part. What processes make of the sums is up to them, and the
same in all; so a process is as far as the number of sums it has. When a member is lost the others
meet again (`meeting.py`, `remote_meeting.py`), as a new group. Some may have had the sum already
that others were in: these get it from them. The parts of a sum that nobody has are computed anew,
with other shares. A newcomer gets the state, and the last sum. Before each sum it is looked whether
somebody waits to be let in."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from weft.comm.errors import (
    CommError,
    DeadlineError,
    GroupEndedError,
    PeerLostError,
    ProgramsDifferError,
)
from weft.comm.group import Call, Group
from weft.comm.meeting import Generation, Meeting
from weft.comm.members import Remote
from weft.comm.wire import Array

if TYPE_CHECKING:
    from weft.comm.remote_meeting import RemoteMeeting

_log = logging.getLogger("weft.comm")
#: Errors after which the others are met again.
_LOST: Final = (PeerLostError, DeadlineError, GroupEndedError)


class Tree:
    """Sums of neighbouring parts out of `count`, added as the tree says. A node has a level and a
    number in it, and covers `2**level` parts."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.nodes: list[tuple[int, int]] = []
        self.sums: list[Any] = []

    def add(self, level: int, number: int, value: Any) -> None:
        """The next node to the right. value: its sum, which is written to where there is room; None
        where only the nodes are asked for."""
        self.nodes.append((level, number))
        self.sums.append(value)
        while self._joined() or self._raised():
            pass

    def _joined(self) -> bool:
        """Whether the last two nodes were the children of one."""
        if len(self.nodes) < 2:
            return False
        (level, left), last = self.nodes[-2:]
        if left % 2 or last != (level, left + 1):
            return False
        right = self.sums.pop()
        if right is not None:
            here = self.sums[-1]
            self.sums[-1] = np.add(here, right, out=right if right.flags.writeable else None)
        self.nodes[-2:] = [(level + 1, left // 2)]
        return True

    def _raised(self) -> bool:
        """Whether the last node was the only child of one."""
        level, number = self.nodes[-1]
        if number == 0 or number % 2 or (number + 1) << level < self._count:
            return False
        self.nodes[-1] = level + 1, number // 2
        return True


def share(count: int, rank: int, size: int) -> range:
    """The parts that a member computes."""
    return range(count * rank // size, count * (rank + 1) // size)


def _nodes(count: int, rank: int, size: int) -> list[tuple[int, int]]:
    """What is left of a member's parts when it has added up what it can."""
    tree = Tree(count)
    for k in share(count, rank, size):
        tree.add(0, k, None)
    return tree.nodes


class ElasticGroup:
    """This process's part in a run of processes that may be killed, stopped, and join later.

    name: the run's, the same in all its processes. size: how many processes begin it; least: how
    many go on. give: the state of this process, for newcomers; take: the opposite. Both are called
    between sums; at the beginning all take the state of one. timeout: how many seconds a sum waits
    for a member, which has to compute its parts; connect_timeout: how long processes that are
    needed may take to come. remote: the addresses at which processes may be, if they are of several
    hosts, and place: which of them this one has.

    UnreachableError for too few processes; LeftBehindError in a process that the others have given
    up, when it was stopped, say; ProgramsDifferError for a state of another form.
    """

    def __init__(
        self,
        name: str,
        size: int,
        give: Callable[[], Sequence[Array]],
        take: Callable[[Sequence[Array]], None],
        least: int = 1,
        timeout: float = 60.0,
        connect_timeout: float = 60.0,
        remote: Remote | None = None,
        place: int = 0,
    ) -> None:
        self.step = 0  # how many sums this process has
        self.changes: list[str] = []  # who was lost and who came, for people
        self._give, self._take = give, take
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._known = False  # whether this process has the run's state
        self._last: Array = np.empty(0, np.uint8)
        self._generation = Generation()
        self._group: Group | None = None
        self._why = ""  # the last group ended
        self._ended: str | None = None
        self._meeting: Meeting | RemoteMeeting
        if remote is None:
            self._meeting = Meeting(name, size, least, timeout, connect_timeout)
        else:
            # runs of one host do not wait for ZeroMQ
            from weft.comm.remote_meeting import RemoteMeeting

            self._meeting = RemoteMeeting(
                name, size, least, timeout, connect_timeout, remote, place
            )
        try:
            self._regroup()
        except BaseException as error:
            self._end(str(error))
            raise

    @property
    def rank(self) -> int:
        """This process's number among those that take part now."""
        return self._generation.rank(self._meeting.ident)

    @property
    def size(self) -> int:
        """How many processes take part now."""
        return len(self._generation.members)

    def close(self) -> None:
        """Take part no more; the others go on. A second time nothing."""
        self._end("it was closed here")

    def _end(self, why: str) -> None:
        self._meeting.close()  # first: the last user of an endpoint waits for what is on its way
        self._leave("it has left the run")
        self._ended = self._ended or why

    def _leave(self, why: str) -> None:
        if self._group is not None:
            self._group.close(why)
            self._group = None
        self._why = why

    # ------------------------------------------------------------------------------------- sums

    def sum(self, count: int, part: Callable[[int], Array], what: Call) -> Array:
        """The sum of `part(k)`, vectors of one size, for all k below `count`."""
        if self._ended is not None:
            raise GroupEndedError(f"the run '{self._meeting.name}' is over: {self._ended}")
        if self._group is not None and self._meeting.visitors():
            self._leave(f"{self._meeting.visitors()} more processes join")
        while True:
            made = self._met_again() if self._group is None else None
            if made is None:
                assert self._group is not None
                try:
                    made = sum_of_parts(self._group, count, part, what)
                except _LOST as error:
                    self._leave(str(error))
                    continue
            self._last = made
            self.step += 1
            return made

    # ---------------------------------------------------------------------------------- meeting

    def _met_again(self) -> Array | None:
        """`_regroup`, which ends this process's part in the run where it fails: the others do not
        wait for it."""
        try:
            return self._regroup()
        except CommError as error:
            self._end(str(error))
            raise

    def _regroup(self) -> Array | None:
        """Meet until there is a group whose members are all at one step: the sum that this member
        waits for, if the others have it."""
        while True:
            before = self._generation
            found = self._meeting.meet(self.step, self._known, before)
            self._generation = found
            self._note(before)
            try:
                self._group = Group(
                    f"{self._meeting.name}-{found.token}", self.rank, self.size,
                    self._timeout, self._connect_timeout,
                    self._is_there, self._meeting.remote_of(found), self._meeting.name,
                )  # fmt: skip
                return self._level(self._group)
            except _LOST as error:
                self._leave(str(error))

    def _is_there(self, rank: int) -> bool:
        return self._meeting.is_there(self._generation.members[rank].ident)

    def _level(self, group: Group) -> Array | None:
        """Hand what some have to those who lack it."""
        members = self._generation.members
        top = max((m.step for m in members if m.known), default=0)
        source = next(k for k, m in enumerate(members) if m.step == top)
        late = self._known and self.step < top
        news = not self._known and self.rank != source
        last: Array | None = None
        if top and any(m.step < top or not m.known for m in members):
            (last,) = _handed(group, source, lambda: [self._last], "the last sum", late or news)
        if not all(m.known for m in members) and len(members) > 1:
            state = _handed(group, source, self._give, "the state", news)
            if news:
                self._check(state)
                self._take(state)
                self.step = top
                self._last = last if last is not None else self._last
        self._known = True
        return last if late else None

    def _check(self, state: Sequence[Array]) -> None:
        """ProgramsDifferError for a state of another form than this process's."""
        theirs, ours = ([(a.dtype.name, a.shape) for a in s] for s in (state, self._give()))
        if theirs != ours:
            pairs = zip([*theirs, None], [*ours, None], strict=False)
            k, (first, other) = next(x for x in enumerate(pairs) if x[1][0] != x[1][1])
            raise ProgramsDifferError(
                f"the state of the run '{self._meeting.name}' has another form: its array {k} is "
                f"{_shown(first)}, here {_shown(other)}"
            )

    def _note(self, before: Generation) -> None:
        """Write down who is lost and who has come."""
        now, found = self._generation, []
        for rank, m in enumerate(before.members):
            if now.rank(m.ident) < 0:
                found.append(f"rank {rank} ({m}) is lost")
        for m in now.members:
            if before.members and before.rank(m.ident) < 0:
                found.append(f"{m} has come")
        if found:
            told = not self._why or " is lost, in " in self._why
            why = "" if told else f" ({self._why})"
            text = f"step {self.step}: {', '.join(found)}; {self.size} go on{why}"
            self.changes.append(text)
            _log.warning("run '%s', %s", self._meeting.name, text)


def _shown(form: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{form[0]}{list(form[1])}" if form else "none"


def sum_of_parts(group: Group, count: int, part: Callable[[int], Array], what: Call) -> Array:
    """The sum of all parts, of which each member computes its share."""
    tree = Tree(count)
    for k in share(count, group.rank, group.size):
        tree.add(0, k, part(k))
    nodes = [_nodes(count, rank, group.size) for rank in range(group.size)]
    rows = max(map(len, nodes))
    like = tree.sums[0] if tree.sums else part(count - 1)  # more processes than parts
    if len(tree.sums) == rows == 1:
        table = like[None]
    else:
        table = np.zeros((rows, like.size), like.dtype)
        for row, value in zip(table, tree.sums, strict=False):
            row[...] = value

    def total(tables: list[Array], out: Array) -> None:
        whole = Tree(count)
        for held, each in zip(tables, nodes, strict=True):
            for (level, number), row in zip(each, held, strict=False):
                view = row[:]
                view.flags.writeable = False
                whole.add(level, number, view)
        (found,) = whole.sums
        np.copyto(out, found)

    return group.combine(table, total, what)


def _handed(
    group: Group, source: int, give: Callable[[], Sequence[Array]], what: str, keep: bool
) -> list[Array]:
    """Arrays of the member `source`, to those who keep them."""
    here = group.rank == source
    arrays = [np.asarray(a) for a in give()] if here else []
    text = json.dumps([[a.dtype.name, a.shape] for a in arrays]).encode()
    length = np.array([len(text)], np.int64)
    length = group.broadcast(length, source, Call(f"the size of {what}"))
    form = np.frombuffer(text, np.uint8) if here else np.empty(int(length[0]), np.uint8)
    form = group.broadcast(form, source, Call(f"the form of {what}"))
    found = []
    for k, (name, shape) in enumerate(json.loads(form.tobytes())):
        array = arrays[k] if here else np.empty(shape, np.dtype(name))
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        got = group.broadcast(raw, source, Call(f"array {k} of {what}"), keep)
        found.append(got.view(array.dtype).reshape(array.shape))
    return found
