"""Shared libraries: a graph as C functions that a program calls without Python.

A library holds what a step has in this process: the kernels' machine code, the walker, the step's
table and the constants. `cc` links it from those objects and a C file that is written here, which
gives each call an activation of its own (argument words, arena) and the walker its header
(`codegen/steps/walker.py`). The walker reads the address of a buffer where NumPy's arrays keep it;
so inputs and outputs are wrapped in structures that have theirs there.

A call runs on the thread that calls it, and any number may run at once. What needs the process has
no library: Python functions, LAPACK and BLAS of SciPy, loops that keep values for gradients."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.codegen.call import Callee, Routine, Stacks
from weft.codegen.faults import FaultWords
from weft.codegen.llvm.engine import machine_code
from weft.codegen.llvm.target import NATIVE, isa_line, using
from weft.codegen.steps.walker import ARRAY_DATA_OFFSET, CALL_WORDS, HEADER, WALKER, Table
from weft.ir.dataclass import dataclass
from weft.ir.errors import InvalidArgumentError, ToolchainError, UnsupportedError
from weft.ir.graph import Graph, Value
from weft.ir.types import TensorType
from weft.passes.manager import STANDARD, PassOptions
from weft.passes.sizes import is_symbolic
from weft.runtime.checkpoint.format import write_atomically
from weft.runtime.native.activation import aligned
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
    graph: Graph, outputs: Sequence[str], folder: Path, stem: str, target: str = NATIVE
) -> LibraryFiles:
    """Compile a traced graph to `lib{stem}.so` and `{stem}.h` in a folder.

    graph: of known sizes, without variables; outputs: the names of its results. target: the
    instruction set, as `wf.compile` takes it. UnsupportedError for what no library holds,
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
    if is_symbolic(graph.block):
        raise UnsupportedError(
            f"the graph '{graph.name}' has sizes that depend on values, which no library has",
            hint="wf.nonzero(x, size=n) and the like have one size for all values",
        )
    with using(target):
        _, _, memory, program = planned(graph, STANDARD, (), PassOptions.from_environment())
        _check(program)
        kernels = {kernel.key: kernel for kernel in (*program.kernels, WALKER)}
        objects = {key: machine_code(kernel) for key, kernel in kernels.items()}
        isa = isa_line()
    symbols = {key: made.symbol for key, made in objects.items()}
    inputs = list(zip(graph.arg_names, _tensor_types(graph.args), strict=True))
    named = list(zip(outputs, _tensor_types(graph.results), strict=True))
    shown = (inputs, named, stem, graph.name, isa)
    source, header = _source(program, memory.arena_bytes, symbols, *shown), _header(*shown)
    library, told = folder / f"lib{stem}.so", folder / f"{stem}.h"
    with tempfile.TemporaryDirectory(prefix="weft-library-") as held:
        at = Path(held)
        for k, made in enumerate(objects.values()):
            (at / f"{k}.o").write_bytes(made.code)
        (at / f"{stem}.h").write_text(header)
        (at / "model.c").write_text(source)
        (at / "constants").write_bytes(_constants(program.table)[0])
        (at / "exports").write_text(f"{{ global: weft_model_*; weft_{stem}_*; local: *; }};\n")
        _link(at, len(objects), library.name)
        data = (at / library.name).read_bytes()
    write_atomically(library, [memoryview(data)])
    write_atomically(told, [memoryview(header.encode())])
    return LibraryFiles(library, told, len(kernels) - 1, len(data), isa)


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
        "-Wl,-soname," + name, "-lm",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(
            f"the C compiler failed (exit status {done.returncode}): {' '.join(command[:3])} ...: "
            f"{done.stderr.strip()[-2000:]}"
        )


# ------------------------------------------------------------------------------------------- C code
Named = Sequence[tuple[str, TensorType]]

_HEADER = """\
/* @GRAPH@: a model that weft compiled for @ISA@. */
#ifndef @GUARD@
#define @GUARD@
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor: its elements lie row by row; shape: its sizes, `rank` of them. */
#ifndef WEFT_TENSOR
#define WEFT_TENSOR
typedef struct {
    const char *name, *dtype;
    int rank;
    const long long *shape;
    size_t bytes;
} weft_tensor;
#endif

@COMMENT@
enum { weft_@STEM@_input_count = @INPUTS@, weft_@STEM@_output_count = @OUTPUTS@ };
extern const weft_tensor weft_@STEM@_inputs[], weft_@STEM@_outputs[];

/* Runs the model on the calling thread: one address for each input and output, aligned as its
   elements are; outputs overlap nothing. 0, or the number of an error: then outputs hold anything.
   Any number of threads may call it at once. */
int weft_@STEM@_run(const void *const *inputs, void *const *outputs);

/* What the number of an error means. */
const char *weft_@STEM@_message(int error);

/* For who loads the library by its path (dlopen, ctypes) there are the same as weft_model_run,
   weft_model_message, weft_model_inputs and weft_model_outputs. */

#ifdef __cplusplus
}
#endif
#endif
"""

_SOURCE = """\
/* @GRAPH@, for @ISA@: written by weft. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "@STEM@.h"

typedef int64_t word;
typedef struct { word at; const void *address; } link;
/* Where the walker looks for the address of a buffer. */
typedef struct { char head[@DATA_OFFSET@]; const void *data; } buffer;

__asm__(".section .rodata\\n.balign 64\\nweft_constants:\\n.incbin \\"constants\\"\\n.previous\\n");
extern const unsigned char weft_constants[];
@KERNELS@
@TENSORS@
@TABLE@
enum {
    WORDS = @WORDS@, CALLS = @CALLS@, ARENA = @ARENA@, SCRATCH = @SCRATCH@,
    WORKERS = @WORKERS@, SLOTS = @SLOTS@, FAULT_WORDS = @FAULT_WORDS@
};
#define COUNT(array) (int)(sizeof(array) / sizeof(array[0]) - 1)

static word linked_calls[CALLS + 1];

__attribute__((constructor)) static void link_calls(void)
{
    memcpy(linked_calls, calls, sizeof(word) * CALLS);
    for (int k = 0; k < COUNT(call_links); ++k)
        linked_calls[call_links[k].at] = (word)call_links[k].address;
}

int weft_@STEM@_run(const void *const *inputs, void *const *outputs)
{
    char *memory = malloc(sizeof(word) * WORDS + ARENA + WORKERS + 128);
    if (!memory)
        return -1;
    word *own = (word *)memory, base = ((word)(own + WORDS) + 63) / 64 * 64;
    word slots[SLOTS], fault[FAULT_WORDS] = {0}, failed = -1;
    buffer buffers[SLOTS];
    for (int k = 0; k < SLOTS; ++k)
        slots[k] = (word)&buffers[k];
    for (int k = 0; k < COUNT(input_slots); ++k)
        buffers[input_slots[k]].data = inputs[k];
    for (int k = 0; k < COUNT(output_slots); ++k)
        buffers[output_slots[k]].data = outputs[k];
    memcpy(own, words, sizeof(word) * WORDS);
    for (int k = 0; k < COUNT(word_links); ++k)
        own[word_links[k].at] = (word)word_links[k].address;
    for (int k = 0; k < COUNT(arena_words); k += 2)
        own[arena_words[k]] = base + (arena_words[k + 1] < 0 ? SCRATCH : arena_words[k + 1]);
    for (int k = 0; k < COUNT(worker_words); ++k)
        own[worker_words[k]] = base + ARENA;
    for (int k = 0; k < COUNT(status_words); ++k)
        own[status_words[k]] = (word)fault;
    for (int k = 0; k < COUNT(own_words); k += 2)
        own[own_words[k]] = (word)(own + own_words[k + 1]);
    word header[] = {@HEADER@};
    @WALKER@(header, 0, 0, 0);
    free(memory);
    return failed < 0 ? 0 : (int)failed + 1;
}

const char *weft_@STEM@_message(int error)
{
    switch (error) {
@MESSAGES@
    }
}

@ALIASES@"""
#: For who loads the library by its path; a library called "model" has them anyway.
_ALIASES = """\
int weft_model_run(const void *const *, void *const *) __attribute__((alias("weft_@STEM@_run")));
const char *weft_model_message(int) __attribute__((alias("weft_@STEM@_message")));
extern const weft_tensor weft_model_inputs[] __attribute__((alias("weft_@STEM@_inputs")));
extern const weft_tensor weft_model_outputs[] __attribute__((alias("weft_@STEM@_outputs")));
"""
#: What the walker's header holds (`walker.HEADER`), as C.
_HEADER_WORDS = {
    "words": "(word)own", "calls": "(word)linked_calls", "call_count": f"CALLS / {CALL_WORDS}",
    "patches": "(word)patches", "patch_count": "COUNT(patches) / 3", "slots": "(word)slots",
    "status": "(word)fault", "failed": "(word)&failed", "pool": "0", "threads": "1",
    "moves": "(word)moves",
}  # fmt: skip


def _filled(template: str, **values: object) -> str:
    return re.sub(r"@([A-Z_]+)@", lambda found: str(values[found[1]]), template)


def _header(inputs: Named, outputs: Named, stem: str, graph: str, isa: str) -> str:
    rows = [
        f"   {what} {k}  {_plain(name)}: {t}, {t.nbytes} bytes"
        for what, part in (("input", inputs), ("output", outputs))
        for k, (name, t) in enumerate(part)
    ]
    comment = "\n".join(["/*", *rows, "*/"])
    return _filled(
        _HEADER, GRAPH=_plain(graph), ISA=isa, STEM=stem, GUARD=f"WEFT_{stem}_H", COMMENT=comment,
        INPUTS=len(inputs), OUTPUTS=len(outputs),
    )  # fmt: skip


def _source(
    program: StepProgram, arena_bytes: int, symbols: Mapping[str, str], inputs: Named,
    outputs: Named, stem: str, graph: str, isa: str,
) -> str:  # fmt: skip
    table = program.table
    kernels = [f"extern void {s}(word *, word, word, word);" for s in sorted(symbols.values())]
    return _filled(
        _SOURCE, GRAPH=_plain(graph), ISA=isa, STEM=stem, DATA_OFFSET=ARRAY_DATA_OFFSET,
        KERNELS="\n".join(kernels),
        TENSORS="\n".join([*_tensors("input", inputs, stem), *_tensors("output", outputs, stem)]),
        TABLE="\n".join(_table(program, symbols)),
        WORDS=max(len(table.words), 1), CALLS=len(table.calls),
        ARENA=aligned(arena_bytes + table.scratch_bytes), SCRATCH=arena_bytes,
        WORKERS=table.worker_bytes, SLOTS=max(len(program.slot_number), 1),
        FAULT_WORDS=len(FaultWords._fields_),
        HEADER=", ".join(_HEADER_WORDS[name] for name in HEADER), WALKER=symbols[WALKER.key],
        MESSAGES="\n".join(_messages(program)),
        ALIASES="" if stem == "model" else _filled(_ALIASES, STEM=stem),
    )  # fmt: skip


def _tensors(what: str, part: Named, stem: str) -> Iterator[str]:
    for k, (_, t) in enumerate(part):
        sizes = ", ".join(map(str, t.static_shape)) or "0"
        yield f"static const long long {what}_shape_{k}[] = {{{sizes}}};"
    yield f"const weft_tensor weft_{stem}_{what}s[] = {{"
    for k, (name, t) in enumerate(part):
        yield f'    {{"{_plain(name)}", "{t.dtype.name}", {t.rank}, {what}_shape_{k}, {t.nbytes}}},'
    yield "    {0, 0, 0, 0, 0}\n};"


def _table(program: StepProgram, symbols: Mapping[str, str]) -> Iterator[str]:
    """The table's arrays of words, each with one more at its end, as C has no empty ones."""
    table, slots = program.table, program.slot_number
    columns: dict[str, Sequence[int]] = {
        "words": table.words, "calls": table.calls, "moves": table.moves,
        "patches": table.patches, "worker_words": table.workers, "status_words": table.status,
        "arena_words": [n for pair in table.arena for n in pair],
        "own_words": [n for pair in table.own for n in pair],
        "input_slots": [n for (kind, _), n in slots.items() if kind == "input"],
        "output_slots": [n for (kind, _), n in slots.items() if kind == "result"],
    }  # fmt: skip
    for name, numbers in columns.items():
        yield f"static const word {name}[] = {{{''.join(f'{int(n)}LL,' for n in numbers)}0}};"
    _, places = _constants(table)
    codes = [(word, f"(const void *){symbols[table.kernels[k]]}") for word, k in table.codes]
    held = [(w, f"weft_constants + {places[n] + offset}") for w, n, offset in table.constants]
    rows = [(word, f"(const void *){symbols[table.kernels[k]]}") for word, k in table.rows]
    for name, part in (("word_links", [*codes, *held]), ("call_links", rows)):
        inside = "".join(f"{{{word}, {address}}}, " for word, address in part)
        yield f"static const link {name}[] = {{{inside}{{0, 0}}}};"


def _constants(table: Table) -> tuple[bytes, list[int]]:
    """The bytes of all constants, each at a whole cache line, and where each begins."""
    chunks: list[bytes] = []
    places: list[int] = []
    at = 0
    for array in table.arrays:
        data = np.ascontiguousarray(array).tobytes()
        places.append(at)
        chunks.append(data + bytes(aligned(len(data)) - len(data)))
        at += len(chunks[-1])
    return b"".join(chunks) + bytes(64), places


def _messages(program: StepProgram) -> Iterator[str]:
    """Of each row: the op whose index operand is out of bounds if it fails."""
    yield '    case 0: return "";'
    yield '    case -1: return "there is not enough memory";'
    for row, owner in enumerate(program.table.owner):
        if owner < 0:
            continue
        call = program.calls[owner]
        ops = [op for op in (call.op, *call.faults) if op is not None]
        named = " or ".join(dict.fromkeys(f"'{op.name}'" for op in ops))
        where = next((f" ({place})" for op in ops for place in op.locations), "")
        if named:
            text = f"an index of op {named} is out of bounds{where}"
            yield f'    case {row + 1}: return "{_plain(text)}";'
    yield '    default: return "the model failed";'


def _plain(text: str) -> str:
    """Text that may stand in strings and comments of C, whoever wrote it."""
    kept = (c if c.isascii() and c.isprintable() and c not in '"\\?' else "_" for c in text)
    return "".join(kept).replace("*/", "*_")


def check_stem(stem: str) -> str:
    """`stem`, if files and C names may be called so. InvalidArgumentError otherwise."""
    if not stem.isidentifier() or not stem.isascii():
        raise InvalidArgumentError(
            f"{stem!r} is no name of a library", hint="letters, digits and '_', no digit first"
        )
    return stem
