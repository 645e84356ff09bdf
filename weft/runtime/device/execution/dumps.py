"""The launches of a plan for a GPU as WEFT_DUMP writes them.

A dump's folder has `launches/`: each kernel as a module that numba-cuda compiles, `step.weft`, the
fused graph, `launches.json`, each launch in order with its grid and the number of its op in that
graph, and `memory.json`, where values in between are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weft.codegen.cuda.source.typecheck import read
from weft.ir.text.printer import print_graph
from weft.runtime.device.execution.kernels import source_of
from weft.runtime.device.planning.stored_plan import DeviceDetails
from weft.runtime.native.kernels import GRAPH, file_name, write_memory

FOLDER, TABLE = "launches", "launches.json"


def dump_launches(made: DeviceDetails, folder: Path) -> None:
    """Write them into the folder of a step's dump."""
    where = folder / FOLDER
    where.mkdir(exist_ok=True)
    for old in where.glob("*.py"):
        old.unlink()
    number = {op: k for k, op in enumerate(made.graph.walk())}
    rows: list[dict[str, Any]] = []
    for planned in made.plan.launches():
        launch, op = planned.launch, planned.op
        kernel = launch.kernel
        path = where / file_name(kernel.key)
        path.write_text(source_of(made.graph.name, planned), encoding="utf-8")
        rows.append({
            "file": path.name, "name": kernel.name, "key": kernel.key,
            "op": -1 if op is None else number.get(op, -1), "blocks": launch.blocks,
            "threads": launch.block_threads, "shared": read(kernel).main.shared_bytes,
            "args": list(map(str, planned.args)), "writes": list(planned.writes),
        })  # fmt: skip
    (where / GRAPH).write_text(print_graph(made.graph), encoding="utf-8")
    (where / TABLE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    write_memory(where, made.graph, made.report.memory)
