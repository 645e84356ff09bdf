"""A page of a step that WEFT_DUMP wrote: its passes, its kernels as Python with their work, its
memory, and those of the parts and regions in folders within; and what a dump does not hold.

A dump may come from others, and its page go to others: only files in its own folder are read, and
what is damaged is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from weft.frontend.viewer.document import Document, PassFacts
from weft.frontend.viewer.facts import Memory, PlanFacts
from weft.ir.device import short
from weft.ir.errors import InvalidArgumentError, NotFoundError, WeftError
from weft.ir.graph import Graph, Operation
from weft.ir.program import Program
from weft.passes.manager import PLAN_FILE
from weft.runtime.device.execution import dumps
from weft.runtime.native.kernels import FOLDER, GRAPH, MEMORY, TABLE, read_memory
from weft.runtime.trace.kernel_facts import KernelFacts, WorkOnce

ReadProgram = Callable[[str], Program]
_NO_TIMES = (
    "A dump holds no times, no timeline, no LLVM, no assembly and no PTX: f.view(...) and "
    "session.view(...), in the program itself, show them; `weft bench` times a graph of a dump."
)
#: What reading a damaged file raises.
_DAMAGE = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError, RecursionError,
)  # fmt: skip
_CALL = re.compile(r"^\s*\d+\. ")


def dumped(folder: Path, read: ReadProgram) -> Document:
    """What WEFT_DUMP wrote of one step. NotFoundError for a folder without dumps,
    InvalidArgumentError for a damaged one, or one that names files elsewhere."""
    files = sorted(folder.glob("[0-9][0-9]-*.weft"))
    if not files:
        steps = sorted(p.name for p in folder.iterdir() if p.is_dir() and any(p.glob("*.weft")))
        raise NotFoundError(
            f"there are no dumps NN-PASS.weft in {folder}",
            hint=f"it has those of steps in folders of their own: {', '.join(steps[:8])}"
            if steps
            else "WEFT_DUMP=DIR writes them, a folder for each step; and `weft bench --history "
            "DIR` the files of a history",
        )
    listed = _Dump(folder, read)
    try:
        passes = [PassFacts(f.stem[3:], listed.program(f), changed=True) for f in files]
        last = passes[-1].program
        listed.devices = {short(p.device): p.device for p in last.parts if p.device}
        listed.of_step(folder, last if last.is_whole else None, "", "")
    except WeftError:
        raise
    except _DAMAGE as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidArgumentError(
            f"the dump {folder} is damaged, near {listed.near}: {told}", hint="dump the step again"
        ) from None
    plan = PlanFacts(listed.kernels, listed.memory, missing=(_NO_TIMES,))
    return Document(folder.name, passes, str(folder), "\n".join(listed.plans), plan)


class _Dump:
    """What the folders of a step hold. devices: full names by the short ones. near: the file that
    was read last."""

    def __init__(self, folder: Path, read: ReadProgram) -> None:
        self._top, self._read = folder, read
        self.devices: Mapping[str, str] = {}
        self.near = folder
        self.kernels: list[KernelFacts] = []
        self.plans: list[str] = []
        self.memory: Memory | None = None

    def of_step(self, folder: Path, shown: Program | None, device: str, region: str) -> None:
        """Add a step, or a part or region of one. shown: the last graph of the page, if it is that
        of this folder. device, region: as of kernels."""
        plan = folder / PLAN_FILE
        text = self._text(plan) if plan.is_file() else ""
        is_top = folder == self._top
        where = "the step" if is_top else folder.relative_to(self._top).as_posix()
        if text:
            inside = "".join(f"  {line}\n" for line in text.splitlines())
            self.plans.append(text if is_top and not _inner(folder) else f"{where}\n{inside}")
        if (folder / FOLDER / TABLE).is_file():
            self._native(folder / FOLDER, text, shown, device, region)
        elif (folder / dumps.FOLDER / dumps.TABLE).is_file():
            self._on_gpu(folder / dumps.FOLDER, shown, device, region)
        for one in _inner(folder):
            name, number = _counted(one)
            full = self.devices.get("/" + name.replace("_", ":"), "")
            self.of_step(one, None, full or device, region if full else f"{name} {number}")

    def _native(
        self, folder: Path, plan: str, shown: Program | None, device: str, region: str
    ) -> None:
        """Add the kernels of a native plan, and the memory if the page's graph is its."""
        ops, calls, counted = self._ops(folder, shown), _calls(plan), WorkOnce("kernel")
        for key, row in json.loads(self._text(folder / TABLE)).items():
            number, op, code = len(self.kernels) + 1, _op(ops, row.get("op", -1)), {}
            if "file" in row:
                code["source"] = self._named(folder, row["file"])
            if key in calls:
                code["plan"] = calls[key]
            in_place = any(pair[0] == 0 for pair in row.get("in_place", ()))
            nbytes, flops, notes = counted.of(op, number, in_place)
            if "not printed" in row:
                notes.append(f"the dump has no source of it: {row['not printed']}")
            self.kernels.append(
                KernelFacts(
                    number, _word(row["name"]), op, key, bytes=nbytes, flops=flops,
                    notes=tuple(notes), code=code, device=device, region=region,
                )
            )  # fmt: skip

    def _on_gpu(self, folder: Path, shown: Program | None, device: str, region: str) -> None:
        """Add the launches of a plan for a GPU, and its memory as above."""
        ops, counted = self._ops(folder, shown), WorkOnce("launch")
        for row in json.loads(self._text(folder / dumps.TABLE)):
            number, op = len(self.kernels) + 1, _op(ops, row["op"])
            source, name = self._named(folder, row["file"]), _word(row["name"])
            blocks, threads, shared = (_whole(row[n]) for n in ("blocks", "threads", "shared"))
            nbytes, flops, notes = counted.of(op, number, bool(row["writes"]))
            grid = f"{name}<<<{blocks}, {threads}>>>({', '.join(row['args'])})"
            self.kernels.append(
                KernelFacts(
                    number, name, op, _word(row["key"]), bytes=nbytes, flops=flops,
                    notes=tuple(notes), code={"source": source, "plan": grid}, blocks=blocks,
                    threads=threads, shared=shared, device=device, region=region,
                )
            )  # fmt: skip

    def program(self, path: Path) -> Program:
        """The graphs of a file of the dump. Errors as `read`, and as `_inside`."""
        return self._read(str(self._inside(path)))

    def _text(self, path: Path) -> str:
        """The text of a file of the dump."""
        return self._inside(path).read_text(encoding="utf-8")

    def _named(self, folder: Path, name: object) -> str:
        """The text of a file that a table names: one of the same folder."""
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{name!r} is no name of a file beside it")
        return self._text(folder / name)

    def _inside(self, path: Path) -> Path:
        """The path, if it leads to a file in the dump: what links lead to elsewhere is not read,
        and so not shown. InvalidArgumentError."""
        self.near = path
        if not path.resolve().is_relative_to(self._top.resolve()):
            raise InvalidArgumentError(
                f"{path} leads out of the dump", hint="a dump has no links: put the file in place"
            )
        return path

    def _ops(self, folder: Path, shown: Program | None) -> list[Operation]:
        """The ops of a dumped plan: those of the page's graph, if it is the same."""
        graph = self.program(folder / GRAPH).graph
        if shown is not None and _alike(shown.graph, graph):
            graph = shown.graph
            found = read_memory(self._inside(folder / MEMORY).parent, graph)
            self.memory = None if found is None else Memory(*found)
        return list(graph.walk())


def _inner(folder: Path) -> list[Path]:
    """The folders of parts and regions, in order."""
    inside = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink()]
    return sorted((p for p in inside if any(p.glob("[0-9][0-9]-*.weft"))), key=_counted)


def _counted(folder: Path) -> tuple[str, int]:
    """`region.2` as ("region", 2), `region` as ("region", 1)."""
    name, dot, number = folder.name.rpartition(".")
    return (name, int(number)) if dot and number.isdigit() else (folder.name, 1)


def _alike(one: Graph, other: Graph) -> bool:
    """Whether these are the same graph, read twice."""
    return [op.name for op in one.walk()] == [op.name for op in other.walk()]


def _op(ops: Sequence[Operation], number: object) -> Operation | None:
    return ops[_whole(number)] if 0 <= _whole(number) < len(ops) else None


def _whole(held: object) -> int:
    """A whole number. TypeError for others: what a page gets is checked."""
    if type(held) is not int:
        raise TypeError(f"{held!r:.40} is no number")
    return held


def _word(held: object) -> str:
    """A name. TypeError."""
    if not isinstance(held, str):
        raise TypeError(f"{held!r:.40} is no name")
    return held


def _calls(plan: str) -> dict[str, str]:
    """The lines of each kernel in the text of a plan, by key."""
    return {key: "\n".join(lines) for key, lines in _numbered(plan) if key}


def _numbered(plan: str) -> Iterator[tuple[str, list[str]]]:
    """The numbered calls of a plan, each with its key and lines."""
    key, lines = "", list[str]()
    for line in plan.partition("\nmemory: ")[0].splitlines():
        if _CALL.match(line):
            yield key, lines
            key, lines = line.rpartition("# ")[2].strip(), []
        lines.append(line)
    yield key, lines
