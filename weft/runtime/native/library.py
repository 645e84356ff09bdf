"""Shared libraries: a graph as C functions that a program calls without Python.

A library holds what a step has in this process: the kernels' machine code, the walker, the thread
pool, the constants, and the step's table, one for each set of sizes that it is for. `cc` links it
from those objects and a C file (`library_source.py`).

Any number of threads may call it at once. What needs the process has no library: Python functions,
LAPACK and BLAS of SciPy, loops that keep values for gradients."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.codegen.call import Callee, Routine, Stacks
from weft.codegen.llvm.engine import machine_code
from weft.codegen.llvm.target import NATIVE, isa_line, using
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, ToolchainError, UnsupportedError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType
from weft.passes.manager import STANDARD, PassOptions
from weft.passes.sizes import is_symbolic, specialize
from weft.runtime.checkpoint.format import write_atomically
from weft.runtime.native.library_source import (
    OWN_KERNELS,
    Constants,
    Model,
    SizedProgram,
    header_text,
    source_text,
)
from weft.runtime.native.planning import StepProgram, planned


@dataclass(frozen=True, slots=True)
class LibraryFiles:
    """What was written. library, header: the files; kernels: their number in it; nbytes: of the
    library; isa: the instruction set, for people."""

    library: Path
    header: Path
    kernels: int
    nbytes: int
    isa: str


def write_library(
    graph: Graph,
    outputs: Sequence[str],
    folder: Path,
    stem: str,
    target: str = NATIVE,
    sizes: Sequence[Mapping[str, int]] = ({},),
) -> LibraryFiles:
    """Compile a traced graph to `lib{stem}.so` and `{stem}.h` in a folder.

    graph: without variables; outputs: the names of its results. target: the instruction set, as
    `wf.compile` takes it. sizes: of its open dimensions; several sets, all of the same names, make
    one library, whose calls choose among them. UnsupportedError for what no library holds,
    ToolchainError where no C compiler is, or where it fails, FailedPreconditionError for a folder
    that cannot be written to.
    """
    check_stem(stem)
    for op in graph.walk():
        if op.name == "variable":
            raise UnsupportedError(
                f"the graph has the variable '{op.attrs['name']}', which no library keeps",
                hint="wf.export(model, PATH); weft compile PATH --target cpu",
                location=op.locations,
            )
    names = sorted(sizes[0]) if len(sizes) > 1 else []
    with using(target):
        made = [_sized(graph, one, names) for one in sizes]
        programs = sorted(made, key=lambda p: p.sizes)
        kernels = {k.key: k for p in programs for k in p.program.kernels}
        objects = {
            key: machine_code(kernel)
            for key, kernel in (kernels | {own.key: own for own in OWN_KERNELS}).items()
        }
        isa = isa_line()
    shown = specialize(graph, sizes[0]) if len(sizes) == 1 else graph
    inputs = list(zip(shown.arg_names, _tensor_types(shown.args), strict=True))
    named = list(zip(outputs, _tensor_types(shown.results), strict=True))
    model = Model(stem, graph.name, isa, inputs, named, names, programs)
    constants = Constants.of(programs)
    header = header_text(model)
    library, told = folder / f"lib{stem}.so", folder / f"{stem}.h"
    with tempfile.TemporaryDirectory(prefix="weft-library-") as held:
        at = Path(held)
        for k, code in enumerate(objects.values()):
            (at / f"{k}.o").write_bytes(code.code)
        symbols = {key: code.symbol for key, code in objects.items()}
        (at / f"{stem}.h").write_text(header)
        (at / "model.c").write_text(source_text(model, symbols, constants))
        (at / "constants").write_bytes(constants.data)
        (at / "exports").write_text(f"{{ global: weft_model_*; weft_{stem}_*; local: *; }};\n")
        _link(at, len(objects), library.name)
        data = (at / library.name).read_bytes()
    write_atomically(library, [memoryview(data)])
    write_atomically(told, [memoryview(header.encode())])
    return LibraryFiles(library, told, len(kernels), len(data), isa)


def _sized(graph: Graph, sizes: Mapping[str, int], names: Sequence[str]) -> SizedProgram:
    """The program for these sizes."""
    static = specialize(graph, sizes)
    if is_symbolic(static.block):
        raise UnsupportedError(
            f"the graph '{graph.name}' has sizes that depend on values, which no library has",
            hint="wf.nonzero(x, size=n) and the like have one size for all values",
        )
    _, _, memory, program = planned(static, STANDARD, (), PassOptions.from_environment())
    _check(program)
    return SizedProgram(
        tuple([sizes[name] for name in names]), program, memory.arena_bytes,
        tuple(_tensor_types(static.args)), tuple(_tensor_types(static.results)),
    )  # fmt: skip


def _tensor_types(values: Sequence[Value]) -> list[TensorType]:
    """UnsupportedError for what is no tensor."""
    found = [v.type for v in values if isinstance(v.type, TensorType)]
    if len(found) < len(values):
        raise UnsupportedError("a result of the graph is an effect, which no C function gives")
    return found


def _check(program: StepProgram) -> None:
    """UnsupportedError for what a library does not hold."""
    for planned_call in program.calls:
        for arg in planned_call.call.args:
            if isinstance(arg, Callee):
                why = "calls Python"
            elif isinstance(arg, Routine):
                why = f"calls SciPy's BLAS or LAPACK ({arg.name})"
            elif isinstance(arg, Stacks):
                why = "keeps values of a loop for gradients"
            else:
                continue
            op = planned_call.op
            raise UnsupportedError(
                f"op '{op.name if op else planned_call.call.kernel.name}' {why}, which no shared "
                "library does",
                hint="weft run, and wf.load, run it in a process with Python",
                location=op.locations if op else (),
            )


def compiler() -> list[str]:
    """The C compiler, as a command: CC, or cc. ToolchainError if there is none."""
    given = os.environ.get("CC", "").split() or ["cc"]
    if shutil.which(given[0]) is None:
        raise ToolchainError(
            f"there is no C compiler: '{given[0]}' is not found",
            hint="install one (Debian: apt-get install gcc), or name it in CC",
        )
    return given


def _link(folder: Path, objects: int, name: str) -> None:
    command = [
        *compiler(), "-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-o", name, "model.c",
        *[f"{k}.o" for k in range(objects)], "-Wl,--version-script=exports", "-Wl,-z,noexecstack",
        "-Wl,-soname," + name, "-pthread", "-lm",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(
            f"the C compiler failed (exit status {done.returncode}): {' '.join(command[:3])} ...: "
            f"{done.stderr.strip()[-2000:]}"
        )


def check_stem(stem: str) -> str:
    """`stem`, if files and C names may be called so. InvalidArgumentError otherwise."""
    if not stem.isidentifier() or not stem.isascii():
        raise InvalidArgumentError(
            f"{stem!r} is no name of a library", hint="letters, digits and '_', no digit first"
        )
    return stem
