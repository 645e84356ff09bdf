"""A page of a step that WEFT_DUMP wrote: its passes, its kernels as Python with their work, its
memory, and those of the parts and regions in folders within; and what a dump does not hold."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.frontend.viewer.document import Document, PassFacts
from weft.frontend.viewer.facts import KernelFacts, Memory, PlanFacts
from weft.ir.cost.work import work
from weft.ir.device import short
from weft.ir.errors import NotFoundError
from weft.ir.graph import Graph, Operation
from weft.ir.program import Program
from weft.passes.manager import PLAN_FILE
from weft.runtime.device.execution import dumps
from weft.runtime.native.kernels import FOLDER, GRAPH, TABLE, read_memory

ReadProgram = Callable[[str], Program]
_NO_TIMES = (
    "A dump holds no times, no timeline, no LLVM, no assembly and no PTX: f.view(...) and "
    "session.view(...), in the program itself, show them; `weft bench` times a graph of a dump."
)
_CALL = re.compile(r"^\s*\d+\. ")


def dumped(folder: Path, read: ReadProgram) -> Document:
    """What WEFT_DUMP wrote of one step. NotFoundError for a folder without dumps."""
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
    passes = [PassFacts(file.stem[3:], read(str(file)), changed=True) for file in files]
    last = passes[-1].program
    listed = _Dump(folder, read, {short(p.device): p.device for p in last.parts if p.device})
    listed.of_step(folder, last if last.is_whole else None, "", "")
    plan = PlanFacts(listed.kernels, listed.memory, missing=(_NO_TIMES,))
    return Document(folder.name, passes, str(folder), "\n".join(listed.plans), plan)


class _Dump:
    """What the folders of a step hold. devices: full names by the short ones."""

    def __init__(self, folder: Path, read: ReadProgram, devices: Mapping[str, str]) -> None:
        self._top, self._read, self._devices = folder, read, devices
        self.kernels: list[KernelFacts] = []
        self.plans: list[str] = []
        self.memory: Memory | None = None

    def of_step(self, folder: Path, shown: Program | None, device: str, region: str) -> None:
        """Add a step, or a part or region of one. shown: the last graph of the page, if it is that
        of this folder. device, region: as of kernels."""
        plan = folder / PLAN_FILE
        text = plan.read_text(encoding="utf-8") if plan.is_file() else ""
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
            full = self._devices.get("/" + name.replace("_", ":"), "")
            self.of_step(one, None, full or device, region if full else f"{name} {number}")

    def _native(
        self, folder: Path, plan: str, shown: Program | None, device: str, region: str
    ) -> None:
        """Add the kernels of a native plan, and the memory if the page's graph is its."""
        ops, calls = self._ops(folder, shown), _calls(plan)
        table = json.loads((folder / TABLE).read_text(encoding="utf-8"))
        for key, row in table.items():
            number = len(self.kernels) + 1
            facts = _kernel(number, key, row, folder, ops, calls, (device, region))
            self.kernels.append(facts)

    def _on_gpu(self, folder: Path, shown: Program | None, device: str, region: str) -> None:
        """Add the launches of a plan for a GPU, and its memory as above."""
        ops = self._ops(folder, shown)
        counted: dict[Operation, int] = {}
        for row in json.loads((folder / dumps.TABLE).read_text(encoding="utf-8")):
            number = len(self.kernels) + 1
            source = (folder / row["file"]).read_text(encoding="utf-8")
            op = ops[row["op"]] if 0 <= row["op"] < len(ops) else None
            notes, nbytes, flops = [], None, None
            if op is not None and op in counted:
                notes.append(f"its bytes and flops count with launch {counted[op]}, of the same op")
            elif op is not None:
                counted[op] = number
                done = work(op, bool(row["writes"]))
                nbytes, flops = done.bytes_read + done.bytes_written, done.flops
            grid = f"<<<{row['blocks']}, {row['threads']}>>>"
            code = {"source": source, "plan": f"{row['name']}{grid}({', '.join(row['args'])})"}
            self.kernels.append(
                KernelFacts(
                    number, row["name"], op, row["key"], bytes=nbytes, flops=flops,
                    notes=tuple(notes), code=code, blocks=row["blocks"], threads=row["threads"],
                    shared=row["shared"], device=device, region=region,
                )
            )  # fmt: skip

    def _ops(self, folder: Path, shown: Program | None) -> list[Operation]:
        """The ops of a dumped plan: those of the page's graph, if it is the same."""
        graph = self._read(str(folder / GRAPH)).graph
        if shown is not None and _alike(shown.graph, graph):
            graph = shown.graph
            self.memory = _memory(folder, graph)
        return list(graph.walk())


def _inner(folder: Path) -> list[Path]:
    """The folders of parts and regions, in order."""
    found = [p for p in folder.iterdir() if p.is_dir() and any(p.glob("[0-9][0-9]-*.weft"))]
    return sorted(found, key=_counted)


def _counted(folder: Path) -> tuple[str, int]:
    """`region.2` as ("region", 2), `region` as ("region", 1)."""
    name, dot, number = folder.name.rpartition(".")
    return (name, int(number)) if dot and number.isdigit() else (folder.name, 1)


def _alike(one: Graph, other: Graph) -> bool:
    """Whether these are the same graph, read twice."""
    return [op.name for op in one.walk()] == [op.name for op in other.walk()]


def _kernel(
    number: int,
    key: str,
    row: Mapping[str, Any],
    folder: Path,
    ops: Sequence[Operation],
    calls: Mapping[str, str],
    where: tuple[str, str],
) -> KernelFacts:
    """A row of the dump's table."""
    op = ops[row["op"]] if 0 <= row.get("op", -1) < len(ops) else None
    code: dict[str, str] = {}
    notes: list[str] = []
    if "file" in row:
        code["source"] = (folder / row["file"]).read_text(encoding="utf-8")
    if "not printed" in row:
        notes.append(f"the dump has no source of it: {row['not printed']}")
    if key in calls:
        code["plan"] = calls[key]
    nbytes, flops = None, None
    if op is not None and row.get("kernel", 0) == 0:
        done = work(op, any(pair[0] == 0 for pair in row.get("in_place", ())))
        nbytes, flops = done.bytes_read + done.bytes_written, done.flops
    elif op is not None:
        notes.append("its bytes and flops count with the first kernel of the same op")
    return KernelFacts(
        number, row["name"], op, key, bytes=nbytes, flops=flops, notes=tuple(notes), code=code,
        device=where[0], region=where[1],
    )  # fmt: skip


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


def _memory(folder: Path, graph: Graph) -> Memory | None:
    found = read_memory(folder, graph)
    return None if found is None else Memory(*found)
