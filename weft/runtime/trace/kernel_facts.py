"""`KernelFacts`: what is to be said of a kernel of a plan - its op, work, code, and the times of a
traced run; those of a native plan are made here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from weft.codegen.call import Address
from weft.codegen.llvm.jit import kernel_asm, kernel_llvm
from weft.codegen.loops.program import PlannedCall
from weft.ir.cost.work import Work, work
from weft.ir.dataclass import dataclass
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Operation
from weft.runtime.native.executable import Executable
from weft.runtime.native.kernel_times import Piece, pieces_of
from weft.runtime.native.kernels import StepKernel, step_kernels
from weft.runtime.recorder import TraceEvent

#: So many kernels, those that take most, are shown with their LLVM and assembly: a minute for 300.
MOST_KERNELS = 40
#: Characters of LLVM and assembly that a page has room for; those of further kernels are left out.
MOST_CODE = 8 << 20
#: Which kernels have all of their code where nothing was timed.
FIRST = "that come first"


@dataclass(frozen=True)
class KernelFacts:
    """A kernel of a plan. op: of the last graph, what it carries out. key: of its code.

    microseconds, many: of one run with one thread and with all; runs: how often a call runs it;
    bytes, flops; percent: of the roofline, which is `bound` by "memory" or "compute". All are None
    where nothing was measured; untimed: why it has no time. notes: for people. code: by language
    ("source", "LLVM", "assembly", "PTX", ...), its text. blocks, threads, shared: of a launch on a
    GPU, the blocks of its grid, the threads of each block and the bytes of its shared memory.
    device: of the part that it is in; region: the compiled region, for people (`region_name`).
    """

    number: int
    name: str
    op: Operation | None
    key: str
    runs: int | None = None
    microseconds: float | None = None
    many: float | None = None
    bytes: int | None = None
    flops: int | None = None
    percent: float | None = None
    bound: str = ""
    notes: tuple[str, ...] = ()
    code: dict[str, str] = field(default_factory=dict)
    blocks: int | None = None
    threads: int | None = None
    shared: int | None = None
    device: str = ""
    region: str = ""
    untimed: str = ""

    def row(self) -> dict[str, Any]:
        """All but the op."""
        names = (
            "number", "name", "key", "runs", "microseconds", "many", "bytes", "flops", "percent",
            "bound", "code", "blocks", "threads", "shared", "device", "region", "untimed",
        )  # fmt: skip
        return {**{name: getattr(self, name) for name in names}, "notes": list(self.notes)}


def region_name(number: int) -> str:
    """A compiled region for people; "" for 0, which is none."""
    return f"region {number}" if number else ""


class WorkOnce:
    """The bytes and flops of ops, each with the first of its kernels. what: one of them, for
    people."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._first: dict[Operation, int] = {}

    def of(
        self, op: Operation | None, number: int, in_place: bool
    ) -> tuple[int | None, int | None, list[str]]:
        """Bytes, flops and notes of the kernel `number`, which carries out `op`."""
        if op is None:
            return None, None, []
        first = self._first.setdefault(op, number)
        if first != number:
            note = f"its bytes and flops count with {self._what} {first}, of the same op"
            return None, None, [note]
        done = work(op, in_place)
        return done.bytes_read + done.bytes_written, done.flops, []


# ------------------------------------------------------------------------------- of a native plan
def native_kernels(
    step: Executable, shown: Collection[int] = range(1, MOST_KERNELS + 1), few: str = FIRST
) -> list[KernelFacts]:
    """The kernels of a native plan, without times. shown: the numbers of those that have LLVM and
    assembly; few: which these are, for people."""
    texts = _Texts()
    sources: dict[int, list[str]] = {}
    for printed in step_kernels(step):
        sources.setdefault(id(printed.op), []).append(_source(printed))
    return [
        _kernel(number, piece, texts if number in shown else None, few, sources)
        for number, piece in enumerate(pieces_of(step), 1)
    ]


def _source(kernel: StepKernel) -> str:
    """A kernel as Python, or why it cannot be printed."""
    try:
        return kernel.source()
    except UnsupportedError as error:
        return f"# {error.what}"


class _Texts:
    """The code of kernels, by key, as far as there is room."""

    def __init__(self) -> None:
        self._known: dict[tuple[Callable[[str], str], str], str] = {}
        self._room = MOST_CODE

    def of(self, keys: Sequence[str], make: Callable[[str], str]) -> str:
        """The texts that `make` gives of the keys."""
        return "\n".join([self._text(key, make) for key in keys])

    def _text(self, key: str, make: Callable[[str], str]) -> str:
        if (make, key) not in self._known:
            text = make(key) if self._room > 0 else ""
            if len(text) >= self._room:
                text = f"{key}: the page has no room for it; f.llvm(...) and f.asm(...) print it"
            self._known[make, key] = text
            self._room -= len(text)
        return self._known[make, key]


def _kernel(
    number: int,
    piece: Piece,
    texts: _Texts | None,
    few: str,
    sources: Mapping[int, Sequence[str]],
) -> KernelFacts:
    calls = piece.calls
    keys = list(dict.fromkeys(c.call.kernel.key for c in calls))
    name = " + ".join(dict.fromkeys(c.call.kernel.name for c in calls))
    printed = "\n\n".join(dict.fromkeys(sources.get(id(calls[0].op), ())))
    code = {"source": printed} if printed else {}
    code["plan"] = "\n".join(c.describe().rstrip() for c in calls)
    if texts is None:
        code["LLVM"] = f"The page has the code of the {MOST_KERNELS} kernels {few}."
    else:
        code |= {"LLVM": texts.of(keys, kernel_llvm), "assembly": texts.of(keys, kernel_asm)}
    done = work_of(calls)
    nbytes = done.bytes_read + done.bytes_written
    return KernelFacts(
        number, name, calls[0].op, keys[0], bytes=nbytes, flops=done.flops, code=code
    )


def work_of(calls: Sequence[PlannedCall]) -> Work:
    """The work of a piece: of its op, or of a byte copy."""
    op = calls[0].op
    return _copied(calls[0]) if op is None else work(op, _is_in_place(calls))


def _copied(planned: PlannedCall) -> Work:
    """Of a byte copy: (target, source, bytes)."""
    nbytes = planned.call.args[2]
    assert isinstance(nbytes, int)
    return Work(0, 0, nbytes, nbytes)


def _is_in_place(calls: Sequence[PlannedCall]) -> bool:
    """Whether an update runs on its operand's own memory: the operand is no argument of any of its
    calls, or the copy that it begins with was left out."""
    op = calls[0].op
    if op is None or not op.operands:
        return False
    addresses = {a.value for c in calls for a in c.call.args if isinstance(a, Address)}
    return op.operands[0] not in addresses


# ------------------------------------------------------------------------------- of a traced run
@dataclass(frozen=True)
class _Times:
    """Of the kernels of one plan, by number: microseconds of each run; of the loops and branches
    that they are in, of all runs together."""

    runs: dict[int, list[float]]
    around: dict[int, float]


def timed(kernels: Sequence[KernelFacts], events: Sequence[TraceEvent]) -> list[KernelFacts]:
    """Kernels as their plans number them, with the mean times of a traced run, which has these
    events; those that have none say why."""
    plans: dict[tuple[str, str], _Times] = {}
    for event in events:
        where = event.device, region_name(event.region)
        times = plans.setdefault(where, _Times({}, {}))
        took = (event.end_ns - event.begin_ns) / 1e3
        for number in event.kernels:
            if event.kind == "kernel":
                times.runs.setdefault(number, []).append(took)
            else:
                times.around[number] = times.around.get(number, 0.0) + took
    nothing = _Times({}, {})
    return [_timed(k, plans.get((k.device, k.region), nothing)) for k in kernels]


def _timed(kernel: KernelFacts, times: _Times) -> KernelFacts:
    runs, around = times.runs.get(kernel.number), times.around.get(kernel.number)
    if runs is not None:
        mean = sum(runs) / len(runs)
        return replace(kernel, runs=len(runs), microseconds=mean)
    if around is not None:
        return replace(kernel, untimed=f"in a loop or branch of {around:,.1f} us")
    return replace(kernel, runs=0, untimed="did not run")
