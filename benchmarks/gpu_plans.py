"""What training steps take of a GPU, as far as that shows without one.

    python benchmarks/gpu_plans.py [--json benchmarks/gpu_plans.json] [--models digits,mlp,gpt,conv]
        [--target sm_75,sm_80,sm_90,sm_100] [--plans]

Needs the extra `cuda13` or `cuda`, but with --plans, which compiles nothing. The steps are forward,
backward and update: Figure 1's of `figure1.py` at a batch of 128, the MLP, the GPT block and the
conv net of `training.py`. Each is planned by the pipeline "gpu", and by it without some of its
passes.

launches, kernels: of one step, and how many different ones. bytes: what ops read and write, each
byte of an operand or result once, and copies; not what the launches of one op hand to each other.
PTX, nvJitLink: seconds of processor time in a fresh process without a cache, loading the compilers
included. instructions: of all kernels' PTX. registers: of a thread, of the kernel that takes the
most, and of all kernels added up. spills: bytes that a thread stores and loads for lack of
registers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import machine
from rich.console import Console
from rich.table import Table

import weft as wf
from weft.codegen.cuda.cubins.compile import llvm_version
from weft.codegen.cuda.cubins.toolchain import toolchain
from weft.frontend.tools.compile import targets_of
from weft.ir.cost.work import work
from weft.passes.fusion.epilogues import fuse_epilogues
from weft.passes.fusion.product_operands import stride_all_products
from weft.passes.manager import Pass
from weft.passes.pipelines import GPU
from weft.runtime.device.execution.executable import DeviceExecutable
from weft.runtime.device.plan import DevicePlan, PlannedCopy

TARGETS = "sm_75,sm_80,sm_90,sm_100"
#: Which passes of the pipeline are left out.
WITHOUT: dict[str, tuple[Pass, ...]] = {
    "all passes": (),
    "without fuse_epilogues": (fuse_epilogues,),
    "without stride_all_products": (stride_all_products,),
    "without both": (fuse_epilogues, stride_all_products),
}
#: Those whose machine code is made.
COMPILED = ("all passes", "without both")
_INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+\s+)?[a-z].*;", re.MULTILINE)
Row = dict[str, Any]


def digits_step() -> tuple[Callable[..., Any], Sequence[Any]]:
    """The step of Figure 1, with Adagrad."""
    import figure1

    rng = np.random.default_rng(1)
    return figure1.weft_step(figure1.start(rng)), figure1.batch_of(rng, 128)


def training_step(name: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A step of `training.py`, with Adam."""
    import training

    step, model = training.weft_function(training.MODELS[name])
    return step, (model.x, model.labels)


MODELS: dict[str, Callable[[], tuple[Callable[..., Any], Sequence[Any]]]] = {
    "digits": digits_step,
    "mlp": lambda: training_step("mlp"),
    "gpt": lambda: training_step("gpt"),
    "conv": lambda: training_step("conv"),
}


def planned(model: str, without: str) -> DeviceExecutable:
    """The model's step for a GPU, planned."""
    function, args = MODELS[model]()
    passes = tuple(p for p in GPU if p not in WITHOUT[without])
    step = wf.compile(device="gpu:0", passes=passes)(function)
    made = step._specialized(tuple(args), {}).executable()
    assert isinstance(made, DeviceExecutable)
    return made


def plan_row(model: str, without: str) -> Row:
    """What a step launches, and the bytes that its ops read and write."""
    plan = planned(model, without).plan
    read, written = moved_bytes(plan)
    launches, kernels = len(plan.launches()), len(plan.kernels())
    return {"model": model, "passes": without, "launches": launches, "kernels": kernels,
            "bytes read": read, "bytes written": written}  # fmt: skip


def moved_bytes(plan: DevicePlan) -> tuple[int, int]:
    """Bytes read and written; a plan that the host leads has no one number."""
    ops = {n.op: n.writes for n in plan.launches() if n.op is not None}
    works = [work(op, bool(writes)) for op, writes in ops.items()]
    copied = sum(n.source.nbytes for n in plan.nodes if isinstance(n, PlannedCopy))
    read, written = (sum(getattr(w, f"bytes_{k}") for w in works) for k in ("read", "written"))
    return read + copied, written + copied


def instructions(ptx: str) -> int:
    """How many there are, declarations and labels not counted."""
    return len(_INSTRUCTION.findall(ptx))


def code_row(model: str, without: str, target: str) -> Row:
    """What making machine code of a plan takes, and what that takes of a GPU. Compiles in this
    process."""
    kernels = planned(model, without).plan.kernels()
    (cc,) = targets_of([target])
    began = time.process_time()
    from weft.codegen.cuda.cubins.compile import (  # what loads is of the cold time
        assemble,
        emit_ptx,
    )

    texts = [emit_ptx(kernel, cc) for kernel in kernels]
    emitted = time.process_time()
    cubins = [assemble(k, text, cc) for k, text in zip(kernels, texts, strict=True)]
    linked = time.process_time()
    reports = [cubin.report for cubin in cubins]
    return {
        "model": model, "passes": without, "target": target,
        "PTX s": emitted - began, "nvJitLink s": linked - emitted,
        "PTX instructions": sum(map(instructions, texts)),
        "most registers": max(r.registers for r in reports),
        "registers in all": sum(r.registers for r in reports),
        "spills": sum(r.spills for r in reports),
    }  # fmt: skip


def in_fresh_process(*given: str) -> Row:
    """`code_row` in a process that has compiled nothing yet."""
    command = [sys.executable, __file__, "--child", *given]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:  # it has said why
        raise SystemExit(done.returncode)
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def show(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(cell, row.values()))
    Console(width=140).print(table)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--target", default=TARGETS, help="the architectures")
    parser.add_argument("--plans", action="store_true", help="launches and bytes; compile nothing")
    parser.add_argument("--child", nargs=3, metavar=("MODEL", "PASSES", "TARGET"), help="as JSON")
    options = parser.parse_args(argv)
    os.environ["WEFT_CACHE"] = "0"
    if options.child:
        print(json.dumps(code_row(*options.child)))
        return
    cases = [(model, without) for model in options.models.split(",") for without in WITHOUT]
    plans = [plan_row(*case) for case in cases]
    held: Row = {"machine": machine(), "load": os.getloadavg()[0], "plans": plans}
    show("Training steps on a GPU", plans)
    if not options.plans:
        targets = options.target.split(",")
        compiled = [case for case in cases if case[1] in COMPILED]
        held["code"] = [in_fresh_process(*case, target) for case in compiled for target in targets]
        found = toolchain().nvjitlink.version
        held["compilers"] = f"LLVM {llvm_version()}, nvJitLink {found}"
        show(f"Their machine code, by {held['compilers']}", held["code"])
    if options.json:
        Path(options.json).write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
