"""`Document`: what a page of the viewer shows, as values that JSON has.

Equal things are written once: `nodes` are the boxes of all graphs, `trees` what is in them,
`lines` the lines of all texts; graphs and texts name them by number. So a pass that changes little
adds little."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

from weft.frontend.viewer.facts import Memory, PlanFacts
from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec, canonical_device, short
from weft.ir.drawing.boxes import Box, boxes_of, op_class
from weft.ir.drawing.layout import Layout, lay_out
from weft.ir.drawing.svg import shown, size_of, title
from weft.ir.graph import Graph, Operation, Value
from weft.ir.locations import Location, source_text
from weft.ir.program import Program
from weft.ir.text.printer import format_attr, print_lines
from weft.ir.text.views import name_programs
from weft.passes.manager import PassReport
from weft.runtime.trace.kernel_facts import KernelFacts

#: Characters of the user's files that a page holds at most.
MOST_SOURCE = 1 << 20
_LONGEST_ATTR = 200


@dataclass(frozen=True)
class PassFacts:
    """A pass: its program, and what it took and did (None: not known)."""

    name: str
    program: Program
    changed: bool
    milliseconds: float | None = None
    kernels: int | None = None
    bytes: int | None = None
    peak_bytes: int | None = None

    @staticmethod
    def of(report: PassReport) -> PassFacts:
        """Those of a pass that has run."""
        return PassFacts(
            report.name, report.program, report.changed or report.name == "traced",
            report.seconds * 1e3, report.kernels, report.bytes, report.peak_bytes,
        )  # fmt: skip


class _Table:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._known: dict[Hashable, int] = {}

    def number(self, key: Hashable, row: Any = None) -> int:
        """The number of `key`; row: what stands there (None: the key)."""
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self.rows)
            self.rows.append(key if row is None else row)
        return known


@dataclass
class Document:
    """A step to show. title, subtitle: what it is. passes: in order. explain: a report as text.
    plan: its kernels and memory, and a run of it; nothing of a graph that is only a file."""

    title: str
    passes: Sequence[PassFacts]
    subtitle: str = ""
    explain: str = ""
    plan: PlanFacts = PlanFacts()

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return _Writer(self).document()


class _Writer:
    def __init__(self, document: Document) -> None:
        self.shown = document
        self.names = name_programs([p.program for p in document.passes])
        self.nodes, self.trees, self.lines = _Table(), _Table(), _Table()
        self.files, self.codes = _Table(), _Table()
        self.layouts: dict[Hashable, Layout] = {}
        #: The numbers of the nodes of the last program's ops.
        self.node_of: dict[Operation, int] = {}
        #: The same by the device of the part, the user's line and the name of the op, or "".
        self.nodes_at: dict[tuple[str, Location, str], list[int]] = {}
        self.devices: set[str] = set()

    def document(self) -> dict[str, Any]:
        """Everything, as values that JSON has."""
        graphs: list[dict[str, Any]] = []
        texts: list[list[int]] = []
        passes = []
        for one in self.shown.passes:
            if one.changed or not graphs:
                graphs.append({"parts": self.parts(one.program)})
                texts.append(self.text(one.program))
            passes.append(self.row(one, len(graphs) - 1))
        plan = self.shown.plan
        kernels = [self.kernel(k) for k in plan.kernels]
        memory = None if plan.memory is None else self.memory(plan.memory)
        return {
            "title": self.shown.title, "subtitle": self.shown.subtitle,
            "explain": self.shown.explain, "passes": passes, "graphs": graphs, "texts": texts,
            "diffs": [self.diff(a, b) for a, b in pairwise(texts)],
            "kernels": kernels, "memory": memory, **named_devices(self.devices),
            "events": [event.row() for event in plan.events],
            "recorded": plan.recorded, "missing": list(plan.missing),
            "nodes": self.nodes.rows, "trees": self.trees.rows, "lines": self.lines.rows,
            "files": self.files.rows, "codes": self.codes.rows, "sources": self.sources(),
        }  # fmt: skip

    def row(self, one: PassFacts, graph: int) -> dict[str, Any]:
        """A pass without its graph."""
        return {
            "name": one.name, "changed": one.changed, "ms": one.milliseconds,
            "ops": sum(1 for _ in one.program.walk()), "kernels": one.kernels, "bytes": one.bytes,
            "peak": one.peak_bytes, "graph": graph,
        }  # fmt: skip

    # ---------------------------------------------------------------------------------- graphs
    def parts(self, program: Program) -> list[list[Any]]:
        """Of each part of a program its device and the number of its tree."""
        self.node_of, self.nodes_at = {}, {}
        made = []
        for part in program.parts:
            root, known = boxes_of(part.graph, self.names), len(self.node_of)
            made.append([self.device(part.device), self.tree(root, part.graph)])
            for op, node in islice(self.node_of.items(), known, None):
                for at in op.locations[:1]:
                    for name in (op.name, ""):
                        self.nodes_at.setdefault((part.device, at, name), []).append(node)
        return made

    def device(self, name: str) -> str:
        """A device as the page names it."""
        name = canonical_device(name)
        if name:
            self.devices.add(name)
        return name

    def tree(self, box: Box, graph: Graph) -> int:
        """The number of a box with all that is in it."""
        inner = [self.tree(b, graph) for b in box.boxes]
        node = self.node(box)
        if box.op is not None:
            self.node_of[box.op] = node
        width, height = size_of(box)
        if not inner:
            return self.trees.number((node, width, height), [node, width, height])
        ends = tuple((a, b) for a, b, _ in box.edges)
        sizes = tuple(map(size_of, box.boxes))
        found = self.layouts.get((sizes, ends))
        if found is None:
            found = self.layouts[sizes, ends] = lay_out(sizes, ends)
        placed = [[t, x, y] for t, (x, y) in zip(inner, found.boxes, strict=True)]
        edges = [
            [a, b, len(values), _edge_note(values), [c for point in points for c in point]]
            for (a, b, values), points in zip(box.edges, found.edges, strict=True)
        ]
        key = (node, tuple(inner), ends, tuple(e[3] for e in edges))
        row = [node, width, height, found.width, found.height, placed, edges]
        return self.trees.number(key, row)

    def node(self, box: Box) -> int:
        """The number of a box itself."""
        kind = box.kind if box.op is None else op_class(box.op)
        label, op = shown(title(box)), box.op
        row: list[Any] = [box.id, kind, label, box.note]
        if op is not None:
            row += [
                op.name, self.places(op.locations), self.device(op.device), _attributes(op)
            ]  # fmt: skip
        elif box.label != label:
            row += [box.label]
        return self.nodes.number(repr(row), row)

    def places(self, locations: Iterable[Location]) -> list[list[Any]]:
        """Locations as [file, line, column, scope]."""
        return [
            [self.files.number(at.file), at.line, at.column, at.scope]
            for at in dict.fromkeys(locations)
        ]

    # ----------------------------------------------------------------------------------- texts
    def text(self, program: Program) -> list[int]:
        """The numbers of a program's lines; each is [text, number of the node or -1, place]."""
        found = []
        for line, op in print_lines(program, self.names):
            node, place = -1, None
            if op is not None:
                node = self.node_of.get(op, -1)
                place = next(iter(self.places(op.locations[:1])), None)
            found.append(self.lines.number(repr((line, node, place)), [line, node, place]))
        return found

    def diff(self, old: Sequence[int], new: Sequence[int]) -> list[list[Any]]:
        """What became of the lines of a text: [tag, from, to, from, to] (difflib's opcodes)."""
        a, b = ([self.lines.rows[n][0].strip() for n in text] for text in (old, new))
        matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
        return [[tag[0], *ends] for tag, *ends in matcher.get_opcodes()]

    def sources(self) -> dict[str, str]:
        """The user's files, as far as they were traced here and there is room."""
        found: dict[str, str] = {}
        room = MOST_SOURCE
        for number, file in enumerate(self.files.rows):
            text = source_text(file)
            if text and len(text) <= room:
                found[str(number)] = text
                room -= len(text)
        return found

    # --------------------------------------------------------------------------------- kernels
    def kernel(self, kernel: KernelFacts) -> dict[str, Any]:
        """A kernel with the nodes of its ops."""
        op = kernel.op
        inside = [] if op is None else [op, *(o for region in op.regions for o in region.walk())]
        ops = [self.node_of[o] for o in inside if o in self.node_of]
        if not ops:  # it was compiled from a copy of a part of the graph
            ops = list(dict.fromkeys(n for o in inside for n in self.alike(o, kernel.device)))
        self.device(kernel.device)
        places = () if op is None else op.locations
        code = {language: self.codes.number(text) for language, text in kernel.code.items()}
        return {**kernel.row(), "code": code, "nodes": ops, "places": self.places(places)}

    def alike(self, op: Operation, device: str) -> list[int]:
        """The nodes of the ops of a device's part that have the line of an op, and if there are
        some its name, too."""
        at, name = op.locations[0] if op.locations else None, op.name
        if at is None or name == "fused":
            return []
        for part in (device, ""):
            for key in ((part, at, name), (part, at, "")):
                if key in self.nodes_at:
                    return self.nodes_at[key]
        return []

    def memory(self, memory: Memory) -> dict[str, Any]:
        """The arena's ranges, each with the names of its values and their nodes."""
        rows = []
        for one in memory.ranges:
            named = [self.names.get(v, "") for v in one.values]
            node = next((self.node_of[v.op] for v in one.values if v.op in self.node_of), -1)
            types = ", ".join(dict.fromkeys(str(v.type) for v in one.values))
            label = " ".join(n for n in named if n) or "scratch"
            rows.append([one.offset, one.size, one.start, one.end, label, types, node])
        return {"bytes": memory.bytes, "events": memory.events, "ranges": rows}


def named_devices(names: Iterable[str]) -> dict[str, Any]:
    """The devices that are named in full, as [name, label], and the number of the one that each
    name means, if it means one of them only."""
    specs = {name: DeviceSpec.parse(name) for name in names}
    full = sorted((s for s in specs.values() if s.is_full), key=_place)
    near = len({s.task_name for s in full}) < 2
    number: dict[str, int] = {}
    for name, spec in specs.items():
        fits = [i for i, device in enumerate(full) if spec.matches(device)]
        if len(fits) == 1:
            number[name] = fits[0]
    rows = [[str(s), short(str(s)) if near else str(s)] for s in full]
    return {"devices": rows, "device_of": number}


def _place(spec: DeviceSpec) -> tuple[Any, ...]:
    return spec.job, spec.task, spec.kind, spec.index


def _edge_note(values: Sequence[Value]) -> str:
    """The types of what an edge carries."""
    return ", ".join(dict.fromkeys(str(v.type) for v in values))


def _attributes(op: Operation) -> str:
    parts: Mapping[str, str] = {k: format_attr(v) for k, v in op.attrs.items()}
    return ", ".join(
        f"{k}={v if len(v) <= _LONGEST_ATTR else v[:_LONGEST_ATTR] + ' ...'}"
        for k, v in parts.items()
    )
