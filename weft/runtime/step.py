"""`Step`: the interface of everything that runs a graph; `RunContext`: the options of one run.

A native plan, a plan for a GPU, a graph on the dataflow executor, parts on several devices and
parts on the tasks of a cluster are steps. A caller depends on this file alone, and does not ask
which of them it has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from weft.ir.dataclass import dataclass
from weft.ir.errors import CancelledError
from weft.runtime.recorder import TraceRecorder
from weft.runtime.resources.attempts import CancelToken
from weft.runtime.run_log import RunLog

if TYPE_CHECKING:
    from weft.ir.program import Edge
    from weft.passes.manager import PassReport

#: The ways to run a graph.
Kind = Literal["native", "sized", "gpu", "dataflow", "devices", "cluster"]


class Donation:
    """The donated inputs of one call: which of them the step has begun to write to.

    A step says so before it writes (`take`). Once the call is over (`close`) nothing more can be
    taken: a part of a failed step that still runs must not write to what its caller has back.
    """

    __slots__ = ("_lock", "_over", "_taken")

    def __init__(self) -> None:
        self._lock, self._over = Lock(), False
        self._taken: set[int] = set()

    def take(self, numbers: Iterable[int]) -> None:
        """These inputs are about to be written to. CancelledError if the call is over."""
        with self._lock:
            if self._over:
                raise CancelledError("the call whose donated arguments were to be used has ended")
            self._taken.update(numbers)

    def part(self, feeds: Sequence[int | None]) -> PartOfDonation:
        """The same for a part of the step, whose inputs are these of the whole (None: copies)."""
        return PartOfDonation(self, feeds)

    def close(self) -> frozenset[int]:
        """What was taken; nothing is from now on."""
        with self._lock:
            self._over = True
            return frozenset(self._taken)


class PartOfDonation:
    """`Donation` as the part of a step sees it. feeds: the number in the whole of each input, None
    for a copy, which is the part's own."""

    __slots__ = ("_feeds", "_whole")

    def __init__(self, whole: Donation, feeds: Sequence[int | None]) -> None:
        self._whole, self._feeds = whole, feeds

    def take(self, numbers: Iterable[int]) -> None:
        """As `Donation.take`."""
        self._whole.take([n for n in (self._feeds[i] for i in numbers) if n is not None])

    def part(self, feeds: Sequence[int | None]) -> PartOfDonation:
        """As `Donation.part`."""
        return PartOfDonation(self._whole, [None if i is None else self._feeds[i] for i in feeds])


@dataclass(frozen=True, slots=True)
class RunContext:
    """The options of one run of a step.

    timeout: seconds, after which DeadlineExceededError ends it; None: no limit. A kernel is not
    interrupted. cancel: ends it with CancelledError; one native plan looks at it only where there
    is a timeout. recorder: what `Step.new_recorder` gave; gets an event for each kernel or node.
    keep: is given what must live as long as the stacks among the results are used. is_plain:
    whether nothing but a cancellation is asked for. log: is told what ops of the host give, or
    gives it in their place. donation: is told which donated inputs are written to.
    """

    timeout: float | None = None
    cancel: CancelToken | None = None
    recorder: Any = None
    keep: Callable[[Any], object] | None = None
    log: RunLog | None = None
    donation: Donation | PartOfDonation | None = None

    is_plain: bool = field(init=False, repr=False, default=True)

    def __post_init__(self) -> None:
        asked = (self.timeout, self.recorder, self.keep, self.log)
        if asked != _NOTHING_ASKED:
            object.__setattr__(self, "is_plain", False)

    def token(self) -> CancelToken:
        """`cancel`, or one that nobody cancels."""
        return self.cancel or CancelToken()


_NOTHING_ASKED = (None, None, None, None)
#: To the end, without a record.
PLAIN = RunContext()


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Counts of what a step consists of.

    kernels: native kernel calls, or launches on a GPU (0 where only the sizes that come decide).
    nodes, regions, host_ops: of the dataflow executor. arena_bytes, result_bytes: memory for values
    in between and for results. devices: those that have a part; copies: tensors that go between
    them, in loops in each iteration; copied_bytes: of one of each, where the size is known.
    """

    kernels: int = 0
    nodes: int = 0
    regions: int = 0
    host_ops: int = 0
    arena_bytes: int = 0
    result_bytes: int = 0
    devices: tuple[str, ...] = ()
    copies: int = 0
    copied_bytes: int = 0

    def __add__(self, other: StepSummary) -> StepSummary:
        """Both together, on the devices of the first."""
        return StepSummary(
            self.kernels + other.kernels, self.nodes + other.nodes, self.regions + other.regions,
            self.host_ops + other.host_ops, self.arena_bytes + other.arena_bytes,
            self.result_bytes + other.result_bytes, self.devices, self.copies, self.copied_bytes,
        )  # fmt: skip


class Step(ABC):
    """A graph that is ready to run. Any number of threads may run it at once."""

    kind: Kind
    name: str
    #: The donated inputs whose memory holds results after a run.
    taken: Collection[int] = ()

    @abstractmethod
    def run(self, inputs: list[Any], context: RunContext = PLAIN) -> list[Any]:
        """The results of one run, None for a token. `inputs` have exactly the types of the graph's
        arguments (the caller checks)."""

    @abstractmethod
    def summary(self) -> StepSummary:
        """What it consists of."""

    @abstractmethod
    def explain(self) -> Iterator[str]:
        """How it was made and what it does, as lines of text."""

    def passes(self) -> Sequence[PassReport]:
        """What each pass did on the way from the graph of the step to its plan, or to its parts.
        They may run again for it."""
        return ()

    def new_recorder(self, *, kernels: bool = False) -> Any:
        """What `RunContext.recorder` is to be for a run that begins now. kernels: as of
        `TraceRecorder`."""
        return TraceRecorder(kernels=kernels)

    def feeds_on_gpus(self, count: int) -> list[list[str]]:
        """For each of `count` inputs the GPUs that read it there; none if the host reads it too."""
        return [[] for _ in range(count)]

    def copies(self) -> Sequence[Edge]:
        """What goes from one device of this process to another."""
        return ()

    def results_on_gpus(self) -> Sequence[tuple[int, str]]:
        """The numbers of the results that are copied from a GPU to the host, and which GPU."""
        return ()
