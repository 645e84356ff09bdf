"""Control-flow frames of a dataflow graph: finds the loop each op runs in, and checks its form.

A frame is a loop as the graph's text shows it: its `enter` ops, all of one name and from one frame
around it, and everything behind them up to its `exit` ops. While it runs, each frame has instances
(one for each iteration of the frame around it) and these have iterations; an op runs at most once
in each iteration, so all its inputs must be in one frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, WeftError
from weft.ir.graph import Block, Operation, Value, stable_order
from weft.ir.ops.control_flow import DATAFLOW


@dataclass(slots=True, eq=False)
class Frame:
    """One loop, or (parent is None) the top of the graph, outside of all loops.

    merges: those with loop=true. nexts: the next_iteration that feeds each of them.
    """

    name: str = ""
    parent: Frame | None = None
    enters: list[Operation] = field(default_factory=list)
    exits: list[Operation] = field(default_factory=list)
    merges: list[Operation] = field(default_factory=list)
    conds: list[Operation] = field(default_factory=list)
    nexts: dict[Operation, Operation] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"frame '{self.name}'" if self.parent else "no frame"

    def around(self) -> Iterator[Frame]:
        """The frame itself and those around it, from the inside out."""
        frame: Frame | None = self
        while frame is not None:
            yield frame
            frame = frame.parent

    @property
    def parallel_iterations(self) -> int:
        """How many iterations may be under way at once."""
        most = self.enters[0].attrs["parallel_iterations"] if self.enters else 1
        assert isinstance(most, int)
        return most


@dataclass(slots=True)
class Frames:
    """The frame of each op and value, the faults found, and an order of the ops in which the exits
    of a frame come after all its enters and next_iterations.
    """

    arg_names: Sequence[str] = ()
    root: Frame = field(default_factory=Frame)
    of_op: dict[Operation, Frame] = field(default_factory=dict)
    of_value: dict[Value, Frame] = field(default_factory=dict)
    inner: list[Frame] = field(default_factory=list)
    faults: list[tuple[Operation, str]] = field(default_factory=list)
    order: list[Operation] = field(default_factory=list)
    numbers: dict[Value, int] = field(default_factory=dict)

    def label(self, value: Value) -> str:
        """A value as messages name it: as it prints, by what made it, and by the user's line."""
        if value.op is None:
            known = value.index < len(self.arg_names)
            return f"%{self.arg_names[value.index]}" if known else f"argument {value.index}"
        at = f" at {value.op.locations[0]}" if value.op.locations else ""
        return f"%{self.numbers[value]} of op '{value.op.name}'{at}"

    def after_loops(self) -> dict[Operation, list[Value]]:
        """The tokens of all next_iterations of its frame for each exit: all of them come before."""
        return {
            op: [n.result for n in frame.nexts.values()]
            for frame in self.inner
            for op in frame.exits
        }


def is_dataflow(block: Block) -> bool:
    """Whether a block has ops that dead values come from, so that it runs by tokens."""
    return any(op.name in DATAFLOW for op in block.ops)


def inputs_of(op: Operation) -> tuple[Value, ...]:
    """The operands that the op waits for: a next_iteration only names its merge."""
    return op.operands[:1] if op.name == "next_iteration" else op.operands


def find_frames(block: Block, arg_names: Sequence[str] = ()) -> Frames:
    """The frames of a block in SSA form, with every fault in how its dataflow ops are joined."""
    found = Frames(arg_names)
    children: dict[tuple[Frame, str], Frame] = {}
    for arg in block.args:
        found.of_value[arg] = found.root
    for op in block.ops:
        here = _place(found, op)
        found.of_op[op] = here
        results = here
        if op.name == "enter":
            key = (here, str(op.attrs["frame"]))
            if key not in children:
                children[key] = Frame(key[1], here)
                found.inner.append(children[key])
            results = children[key]
        elif op.name == "exit":
            results = here.parent or here
        found.of_value.update((r, results) for r in op.results)
        for value in op.results:  # as the printer does
            found.numbers[value] = len(found.numbers)
        if op.name in DATAFLOW:
            found.faults += [(op, what) for what in _join(found, op, here, results)]
    _check_loops(found, block)
    _check_reentry(found, block)
    found.order = _ordered(found, block)
    return found


def _place(found: Frames, op: Operation) -> Frame:
    """The one frame of all inputs of an op; the innermost, and a fault, if they are in several."""
    values = [*op.operands, *op.control]
    frames = [found.of_value.get(v, found.root) for v in values]
    if not frames:
        return found.root
    deepest = max(frames, key=lambda f: sum(1 for _ in f.around()))
    if all(f is deepest for f in frames):
        return deepest
    odd = next(i for i, f in enumerate(frames) if f is not deepest)
    count = len(op.operands)
    what = f"operand {odd}" if odd < count else f"control operand {odd - count}"
    inner = values[frames.index(deepest)]
    inside = frames[odd] in deepest.around()
    how = "bring it in by enter(...) {constant=true}" if inside else "bring it out by exit(...)"
    kind = "merges across frames" if op.name == "merge" else "mixes frames"
    there, here = _apart(frames[odd], deepest), _apart(deepest, frames[odd])
    found.faults.append(
        (
            op,
            f"{kind}: {what}, {found.label(values[odd])}, is in {there}, but "
            f"{found.label(inner)} is in {here}: {how}",
        )
    )
    return deepest


def _apart(frame: Frame, other: Frame) -> str:
    """A frame, with what it is in if another one has its name."""
    if frame.parent is None or str(frame) != str(other):
        return str(frame)
    return f"{frame} in {frame.parent}" if frame.parent.parent else f"{frame} in no other"


def _join(found: Frames, op: Operation, here: Frame, inner: Frame) -> Iterator[str]:
    """Note what `op` is to its frame; yields what is wrong with it."""
    match op.name:
        case "enter":
            if inner.enters:
                given, most = op.attrs["parallel_iterations"], inner.parallel_iterations
                if given != most:
                    yield f"parallel_iterations={given}, but the first enter of {inner} has {most}"
            inner.enters.append(op)
        case "exit" | "loop_cond" if here.parent is None:
            yield "is outside of any frame: only what comes from an enter is in a frame"
        case "exit":
            here.exits.append(op)
        case "loop_cond":
            if here.conds:
                first = found.label(here.conds[0].result)
                yield f"is the second loop_cond of {here}, whose first is {first}"
            here.conds.append(op)
        case "merge" if op.attrs["loop"]:
            source = op.operands[0].op
            if source is None or source.name != "enter" or source.attrs["constant"]:
                yield (
                    f"with loop=true starts from an enter that is not constant, not from "
                    f"{found.label(op.operands[0])}"
                )
            here.merges.append(op)
        case "next_iteration":
            yield from _join_next(found, op, here)


def _join_next(found: Frames, op: Operation, here: Frame) -> Iterator[str]:
    merged = op.operands[1]
    merge = merged.op
    if merge is None or merge.name != "merge" or not merge.attrs["loop"] or merged.index:
        yield f"feeds {found.label(merged)}; it feeds output 0 of a merge with loop=true"
    elif merge in here.nexts:
        yield f"feeds {found.label(merged)}, which another next_iteration feeds already"
    else:
        here.nexts[merge] = op


def _check_loops(found: Frames, block: Block) -> None:
    """Each loop's merge has its next_iteration; what enters once is used in iteration 0 only."""
    for frame in found.inner:
        for merge in frame.merges:
            if merge not in frame.nexts:
                what = "with loop=true has no next_iteration: it needs exactly one"
                found.faults.append((merge, what))
    for op in block.ops:
        if op.name == "merge" and op.attrs["loop"]:
            continue
        for value in (*op.operands, *op.control):
            made = value.op
            if made is None or made.name != "enter" or made.attrs["constant"]:
                continue
            if found.of_value[value].merges:
                found.faults.append(
                    (
                        op,
                        f"uses {found.label(value)}, which is there in the first iteration only: "
                        "make it constant=true, or merge it with a next_iteration",
                    )
                )


def _ordered(found: Frames, block: Block) -> list[Operation]:
    """The ops in their order, but each exit after the enters and next_iterations of its frame."""

    def before(op: Operation) -> list[Operation]:
        made = [v.op for v in (*op.operands, *op.control) if v.op is not None]
        if op.name != "exit":
            return made
        frame = found.of_op[op]
        return [*made, *frame.enters, *frame.nexts.values()]

    return stable_order(block.ops, before)


def _check_reentry(found: Frames, block: Block) -> None:
    """What enters a frame does not come out of it: a frame is over only when all has entered."""
    bit = {frame: 1 << i for i, frame in enumerate(found.inner)}
    left: dict[Operation, int] = {}  # the frames that something on the way to an op came out of
    for op in block.ops:
        past = bit.get(found.of_op[op], 0) if op.name == "exit" else 0
        for value in (*op.operands, *op.control):
            past |= left[value.op] if value.op is not None else 0
        left[op] = past
        if op.name == "enter" and past & bit[found.of_value[op.result]]:
            found.faults.append(
                (
                    op,
                    f"enters {found.of_value[op.result]} with a value that comes out of that "
                    "frame: a loop after another one needs a frame name of its own",
                )
            )


def unended_frame(
    name: str, enter: Operation, label: str, outer: str, iteration: int | None
) -> WeftError:
    """The error for a frame that began and never ended. label: of the enter's result. iteration: of
    the frame `outer`, None if there is none around."""
    where = "" if iteration is None else f", in iteration {iteration} of frame '{outer}'"
    return InvalidArgumentError(
        f"frame '{name}' never ended: one of its enters, {label}, got no value, live or dead"
        f"{where}",
        hint="where one enter of a frame gets a value, all must: what this one waits for does not "
        "come in that iteration",
        location=enter.locations,
    )
