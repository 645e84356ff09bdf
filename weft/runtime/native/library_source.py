"""The C file and the header of a shared library (`library.py`): the tables of plans as arrays, and
the functions that a program calls.

A call has an activation of its own (argument words, arena) and hands the walker its header
(`codegen/steps/walker.py`). The walker reads the address of a buffer where NumPy's arrays keep it;
so inputs and outputs are wrapped in structures that have theirs there. Threads beside the caller's
are those of weft's own pool (`codegen/pool.py`), whose words are filled in here."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from weft.codegen.faults import FaultWords
from weft.codegen.llvm.jit import Kernel
from weft.codegen.pool import (
    CLOSE,
    CONTROL,
    FIRST_SLOT,
    MAX_THREADS,
    PARALLEL,
    SLOT,
    SLOT_WORDS,
    SPIN,
    SPINS,
    TOTAL_WORDS,
    WORDS,
    WORKER,
)
from weft.codegen.steps.walker import ARRAY_DATA_OFFSET, CALL_WORDS, HEADER, WALKER, Table
from weft.ir.cost.thresholds import SPIN_SECONDS, WAKE_AFTER_NS
from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.types import TensorType
from weft.runtime.native.activation import aligned
from weft.runtime.native.planning import StepProgram
from weft.runtime.native.pool import FAULTS

#: Kernels of each library beside those of its model.
OWN_KERNELS: tuple[Kernel, ...] = (WALKER, WORKER, CONTROL, PARALLEL)
Named = Sequence[tuple[str, TensorType]]


@dataclass(frozen=True, slots=True)
class SizedProgram:
    """What runs for one set of sizes. sizes: by the library's names; inputs, outputs: their types
    then."""

    sizes: tuple[int, ...]
    program: StepProgram
    arena_bytes: int
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """What the texts of a library tell. inputs, outputs: with their sizes where these are open, too
    (`sizes`: their names; none: there is one program)."""

    stem: str
    graph: str
    isa: str
    inputs: Named
    outputs: Named
    sizes: Sequence[str]
    programs: Sequence[SizedProgram]


@dataclass(frozen=True, slots=True)
class Constants:
    """The constants of all programs, each once. data: their bytes, each at a whole cache line;
    places: where those of each program's table begin."""

    data: bytes
    places: Sequence[Sequence[int]]

    @classmethod
    def of(cls, programs: Sequence[SizedProgram]) -> Constants:
        """Equal bytes are one constant."""
        chunks: list[bytes] = []
        known: dict[bytes, int] = {}
        at = 0
        places: list[list[int]] = []
        for one in programs:
            places.append([])
            for array in one.program.table.arrays:
                data = np.ascontiguousarray(array).tobytes()
                if data not in known:
                    known[data] = at
                    chunks.append(data + bytes(aligned(len(data)) - len(data)))
                    at += len(chunks[-1])
                places[-1].append(known[data])
        return cls(b"".join(chunks) + bytes(64), places)


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

@RUN@
/* What the number of an error means. */
const char *weft_@STEM@_message(int error);

/* Calls use so many threads from now on, their own among them: 1 at first, at most @MOST_THREADS@.
   The others are made by the first call that has work for them. 0, or the number of an error. */
int weft_@STEM@_set_threads(int count);

/* For who loads the library by its path (dlopen, ctypes) each of these is there as weft_model_...,
   too. */

#ifdef __cplusplus
}
#endif
#endif
"""
_RUN = """\
/* Runs the model: one address for each input and output, aligned as its elements are; outputs
   overlap nothing. 0, or the number of an error: then outputs hold anything. Any number of threads
   may call it at once. */
int weft_@STEM@_run(const void *const *inputs, void *const *outputs);
"""
_RUN_SIZED = """\
/* Sizes that each call chooses, in this order: @SIZES@. The library is for
   @SETS@.
   Where a tensor above has such a size, its shape has -1, and its bytes are 0. */
enum { weft_@STEM@_size_count = @SIZE_COUNT@ };
extern const char *const weft_@STEM@_sizes[];

/* The tensors of a call with these sizes; NULL for sizes that the library is not for. */
const weft_tensor *weft_@STEM@_sized_inputs(const long long *sizes);
const weft_tensor *weft_@STEM@_sized_outputs(const long long *sizes);

/* Runs the model for these sizes: one address for each input and output, aligned as its elements
   are; outputs overlap nothing. 0, or the number of an error: then outputs hold anything. Any
   number of threads may call it at once. */
int weft_@STEM@_run_sized(
    const long long *sizes, const void *const *inputs, void *const *outputs);
"""

_SOURCE = """\
/* @GRAPH@, for @ISA@: written by weft. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "@STEM@.h"

typedef int64_t word;
typedef struct { word at; const void *address; } patch;
/* Where the walker looks for the address of a buffer. */
typedef struct { char head[@DATA_OFFSET@]; const void *data; } buffer;
/* An array of words, and how many it has. */
typedef struct { const word *at; int count; } column;
typedef struct { const patch *at; int count; } links;
/* What runs for one set of sizes. */
typedef struct {
    const long long *sizes;
    const weft_tensor *inputs, *outputs;
    column words, calls, moves, patches, messages;
    column worker_words, status_words, arena_words, own_words;
    links word_links, call_links;
    word arena, scratch, workers;
    word *linked_calls;
} program;

__asm__(".section .rodata\\n.balign 64\\nweft_constants:\\n.incbin \\"constants\\"\\n.previous\\n");
extern const unsigned char weft_constants[];
@KERNELS@
enum {
    SLOTS = @SLOTS@, FAULT_WORDS = @FAULT_WORDS@,
    SIZES = @SIZE_COUNT@, PROGRAMS = @PROGRAM_COUNT@
};
@TENSORS@
@TABLES@
static const word input_slots[] = {@INPUT_SLOTS@0}, output_slots[] = {@OUTPUT_SLOTS@0};
static const program programs[] = {
@PROGRAMS@
};

__attribute__((constructor)) static void link_calls(void)
{
    for (int p = 0; p < PROGRAMS; ++p) {
        const program *of = &programs[p];
        memcpy(of->linked_calls, of->calls.at, sizeof(word) * of->calls.count);
        for (int k = 0; k < of->call_links.count; ++k)
            of->linked_calls[of->call_links.at[k].at] = (word)of->call_links.at[k].address;
    }
}

@POOL@
static int run(const program *of, const void *const *inputs, void *const *outputs)
{
    word used = atomic_load(&threads), room = of->arena + of->workers * used;
    char *memory = malloc(sizeof(word) * of->words.count + room + 128);
    if (!memory)
        return -1;
    word *own = (word *)memory, base = ((word)(own + of->words.count) + 63) / 64 * 64;
    word slots[SLOTS], fault[FAULT_WORDS] = {0}, failed = -1;
    buffer buffers[SLOTS];
    for (int k = 0; k < SLOTS; ++k)
        slots[k] = (word)&buffers[k];
    for (int k = 0; k < @INPUTS@; ++k)
        buffers[input_slots[k]].data = inputs[k];
    for (int k = 0; k < @OUTPUTS@; ++k)
        buffers[output_slots[k]].data = outputs[k];
    memcpy(own, of->words.at, sizeof(word) * of->words.count);
    for (int k = 0; k < of->word_links.count; ++k)
        own[of->word_links.at[k].at] = (word)of->word_links.at[k].address;
    for (int k = 0; k < of->arena_words.count; k += 2) {
        word place = of->arena_words.at[k + 1];
        own[of->arena_words.at[k]] = base + (place < 0 ? of->scratch : place);
    }
    for (int k = 0; k < of->worker_words.count; ++k)
        own[of->worker_words.at[k]] = base + of->arena;
    for (int k = 0; k < of->status_words.count; ++k)
        own[of->status_words.at[k]] = (word)fault;
    for (int k = 0; k < of->own_words.count; k += 2)
        own[of->own_words.at[k]] = (word)(own + of->own_words.at[k + 1]);
    word header[] = {@HEADER@};
    @WALKER@(header, 0, 0, 0);
    free(memory);
    return failed < 0 ? 0 : (int)of->messages.at[failed];
}

@ENTRY@
int weft_@STEM@_set_threads(int count)
{
    if (count < 1 || count > @MOST_THREADS@)
        return -3;
    if (count > 1)
        make_pool();
    pool[@LIMIT@] = count;
    atomic_store(&threads, count);
    return 0;
}

const char *weft_@STEM@_message(int error)
{
    switch (error) {
    case 0: return "";
    case -1: return "there is not enough memory";
    case -2: return "the library is not for these sizes";
    case -3: return "a number of threads is from 1 to @MOST_THREADS@";
@MESSAGES@
    default: return "the model failed";
    }
}

@ALIASES@"""
_ENTRY = """\
int weft_@STEM@_run(const void *const *inputs, void *const *outputs)
{
    return run(&programs[0], inputs, outputs);
}
"""
_ENTRY_SIZED = """\
const char *const weft_@STEM@_sizes[] = {@SIZE_NAMES@};

/* Programs lie in the order of their sizes. */
static const program *find(const long long *sizes)
{
    int low = 0, high = PROGRAMS;
    while (low < high) {
        int middle = (low + high) / 2, k = 0;
        const long long *here = programs[middle].sizes;
        while (k < SIZES && here[k] == sizes[k])
            ++k;
        if (k == SIZES)
            return &programs[middle];
        if (here[k] < sizes[k])
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

const weft_tensor *weft_@STEM@_sized_inputs(const long long *sizes)
{
    const program *of = find(sizes);
    return of ? of->inputs : 0;
}

const weft_tensor *weft_@STEM@_sized_outputs(const long long *sizes)
{
    const program *of = find(sizes);
    return of ? of->outputs : 0;
}

int weft_@STEM@_run_sized(
    const long long *sizes, const void *const *inputs, void *const *outputs)
{
    const program *of = find(sizes);
    return of ? run(of, inputs, outputs) : -2;
}
"""
_POOL = """\
static atomic_int threads = 1;
static word pool[@TOTAL_WORDS@] __attribute__((aligned(128)));
static pthread_once_t once = PTHREAD_ONCE_INIT;
static word spins;

static void tell_refused(word wanted, word there, word error)
{
    fprintf(stderr, "weft: the system refused a thread (%s): calls use %d, not %d\\n",
            strerror((int)error), (int)there, (int)wanted);
}

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + 1e-9 * at.tv_nsec;
}

/* All that the workers expect; none of them works on these words yet. */
static void fill_pool(void)
{
    word limit = pool[@LIMIT@];
    memset(pool, 0, sizeof(pool));
    pool[@LIMIT@] = limit;
@POOL_WORDS@
    pthread_mutex_init((pthread_mutex_t *)&pool[@CALLER_MUTEX@], 0);
    pthread_cond_init((pthread_cond_t *)&pool[@CALLER_CONDITION@], 0);
    sigset_t *blocked = (sigset_t *)&pool[@ALL_SIGNALS@];
    sigfillset(blocked);
@FAULT_SIGNALS@
    cpu_set_t set;
    int processors = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
    for (int k = 0; k < @MOST_THREADS@; ++k) {
        word *worker = pool + @FIRST_SLOT@ + @SLOT_WORDS@ * k;
        worker[@NUMBER@] = k;
        worker[@POOL_OF@] = (word)pool;
        worker[@SPIN_OF@] = k < processors ? spins : 0;
        pthread_mutex_init((pthread_mutex_t *)&worker[@MUTEX@], 0);
        pthread_cond_init((pthread_cond_t *)&worker[@CONDITION@], 0);
    }
}

static void first_pool(void)
{
    double began = now();
    @CONTROL@(pool, @SPIN@, 0, 0);
    spins = (word)(@SPIN_SECONDS@ * @SPINS@ / (now() - began + 1e-9)) + 1;
    fill_pool();
    pthread_atfork(0, 0, fill_pool); /* no worker lives in a child */
}

static void make_pool(void)
{
    pthread_once(&once, first_pool);
}

/* Before the code goes: workers end, but those that a call still has, which get half a second. */
__attribute__((destructor)) static void close_pool(void)
{
    if (!spins)
        return;
    @CONTROL@(pool, @CLOSE@, 0, 0);
    double until = now() + 0.5;
    for (int k = 1; k < @MOST_THREADS@; ++k) {
        volatile word *worker = pool + @FIRST_SLOT@ + @SLOT_WORDS@ * k;
        if (!worker[@THREAD@])
            continue;
        while (worker[@RUNNING@] && now() < until)
            sched_yield();
        if (!worker[@RUNNING@])
            pthread_join((pthread_t)worker[@THREAD@], 0);
    }
}
"""
#: What the walker's header holds (`walker.HEADER`), as C.
_HEADER_WORDS = {
    "words": "(word)own", "calls": "(word)of->linked_calls",
    "call_count": f"of->calls.count / {CALL_WORDS}", "patches": "(word)of->patches.at",
    "patch_count": "of->patches.count / 3", "slots": "(word)slots", "status": "(word)fault",
    "failed": "(word)&failed", "pool": "used > 1 ? (word)pool : 0", "threads": "used",
    "moves": "(word)of->moves.at",
}  # fmt: skip
#: Words of the pool that are addresses of functions of the C library.
_FUNCTIONS = (
    "pthread_create", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_wait",
    "pthread_cond_signal", "pthread_sigmask", "clock_gettime", "sched_getcpu",
    "sched_getaffinity", "sched_setaffinity", "tell_refused",
)  # fmt: skip


def filled(template: str, **values: object) -> str:
    """The text with `@NAME@` replaced; what is put in is not looked at again."""
    return re.sub(r"@([A-Z_]+)@", lambda found: str(values[found[1]]), template)


def header_text(model: Model) -> str:
    """The header that programs include."""
    rows = [
        f"   {what} {k}  {plain(name)}: {t}" + (f", {t.nbytes} bytes" if t.is_static else "")
        for what, part in (("input", model.inputs), ("output", model.outputs))
        for k, (name, t) in enumerate(part)
    ]
    values = {"STEM": model.stem, "SIZE_COUNT": len(model.sizes)}
    if model.sizes:
        run = filled(_RUN_SIZED, SIZES=", ".join(model.sizes), SETS=_sets(model), **values)
    else:
        run = filled(_RUN, **values)
    return filled(
        _HEADER, GRAPH=plain(model.graph), ISA=model.isa, GUARD=f"WEFT_{model.stem}_H", RUN=run,
        COMMENT="\n".join(["/*", *rows, "*/"]), INPUTS=len(model.inputs),
        OUTPUTS=len(model.outputs), MOST_THREADS=MAX_THREADS, **values,
    )  # fmt: skip


def _sets(model: Model) -> str:
    shown = [" x ".join(map(str, p.sizes)) for p in model.programs]
    return ", ".join(shown if len(shown) < 12 else [*shown[:10], "...", shown[-1]])


def source_text(model: Model, symbols: Mapping[str, str], constants: Constants) -> str:
    """The C file. symbols: of the kernels, by their keys."""
    messages = _Messages()
    tables: list[str] = []
    rows: list[str] = []
    for p, one in enumerate(model.programs):
        tables += _table(p, one, symbols, constants.places[p], messages)
        rows.append(_program(p, one))
    slots = model.programs[0].program.slot_number  # the same whatever the sizes are
    kernels = [f"extern void {s}(word *, word, word, word);" for s in sorted(symbols.values())]
    values = {"STEM": model.stem, "SIZE_COUNT": len(model.sizes), "MOST_THREADS": MAX_THREADS,
              "LIMIT": WORDS["limit"], "WALKER": symbols[WALKER.key]}  # fmt: skip
    names = "".join(f'"{plain(name)}", ' for name in model.sizes) + "0"
    entry = filled(_ENTRY_SIZED if model.sizes else _ENTRY, SIZE_NAMES=names, **values)
    return filled(
        _SOURCE, GRAPH=plain(model.graph), ISA=model.isa, DATA_OFFSET=ARRAY_DATA_OFFSET,
        KERNELS="\n".join(kernels), TENSORS="\n".join(_all_tensors(model)),
        TABLES="\n".join(tables), PROGRAMS="\n".join(rows), PROGRAM_COUNT=len(rows),
        SLOTS=max(len(slots), 1), FAULT_WORDS=len(FaultWords._fields_),
        INPUT_SLOTS=_listed(n for (kind, _), n in slots.items() if kind == "input"),
        OUTPUT_SLOTS=_listed(n for (kind, _), n in slots.items() if kind == "result"),
        INPUTS=len(model.inputs), OUTPUTS=len(model.outputs),
        HEADER=", ".join(_HEADER_WORDS[name] for name in HEADER), ENTRY=entry,
        POOL=_pool_text(symbols), MESSAGES="\n".join(messages.cases()),
        ALIASES="" if model.stem == "model" else _aliases(model), **values,
    )  # fmt: skip


def _listed(numbers: Iterator[int] | Sequence[int]) -> str:
    return "".join(f"{int(n)}LL," for n in numbers)


def _all_tensors(model: Model) -> Iterator[str]:
    """Tables of tensors: those that the header shows, and those of each set of sizes."""
    for what, part in (("inputs", model.inputs), ("outputs", model.outputs)):
        yield from _tensors(f"const weft_tensor weft_{model.stem}_{what}", part, what)
        for p, one in enumerate(model.programs if model.sizes else ()):
            types = one.inputs if what == "inputs" else one.outputs
            named = [(name, t) for (name, _), t in zip(part, types, strict=True)]
            yield from _tensors(f"static const weft_tensor {what}_{p}", named, f"{what}_{p}")


def _tensors(declared: str, part: Named, shape: str) -> Iterator[str]:
    for k, (_, t) in enumerate(part):
        sizes = ", ".join("-1" if isinstance(d, SymbolicDim) else str(d) for d in t.shape) or "0"
        yield f"static const long long {shape}_shape_{k}[] = {{{sizes}}};"
    yield f"{declared}[] = {{"
    for k, (name, t) in enumerate(part):
        nbytes = t.nbytes if t.is_static else 0
        yield f'    {{"{plain(name)}", "{t.dtype.name}", {t.rank}, {shape}_shape_{k}, {nbytes}}},'
    yield "    {0, 0, 0, 0, 0}\n};"


#: Columns of a program's table.
_COLUMNS = (
    "words", "calls", "moves", "patches", "messages", "worker_words", "status_words",
    "arena_words", "own_words",
)  # fmt: skip


def _table(
    p: int, one: SizedProgram, symbols: Mapping[str, str], places: Sequence[int],
    messages: _Messages,
) -> Iterator[str]:  # fmt: skip
    """The arrays of a program's table, each with one more at its end, as C has no empty ones."""
    table = one.program.table
    columns: dict[str, Sequence[int]] = {
        "words": table.words, "calls": table.calls, "moves": table.moves,
        "patches": table.patches, "messages": messages.of(one.program),
        "worker_words": table.workers, "status_words": table.status,
        "arena_words": [n for pair in table.arena for n in pair],
        "own_words": [n for pair in table.own for n in pair],
    }  # fmt: skip
    for name in _COLUMNS:
        yield f"static const word {name}_{p}[] = {{{_listed(columns[name])}0}};"
    for name, part in _links(table, symbols, places).items():
        inside = "".join(f"{{{word}, {address}}}, " for word, address in part)
        yield f"static const patch {name}_{p}[] = {{{inside}{{0, 0}}}};"
    yield f"static word linked_calls_{p}[{len(table.calls) + 1}];"
    yield f"static const long long sizes_{p}[] = {{{_listed(one.sizes)}0}};"


def _links(
    table: Table, symbols: Mapping[str, str], places: Sequence[int]
) -> dict[str, list[tuple[int, str]]]:
    codes = [(word, f"(const void *){symbols[table.kernels[k]]}") for word, k in table.codes]
    held = [(w, f"weft_constants + {places[n] + offset}") for w, n, offset in table.constants]
    rows = [(word, f"(const void *){symbols[table.kernels[k]]}") for word, k in table.rows]
    return {"word_links": [*codes, *held], "call_links": rows}


def _program(p: int, one: SizedProgram) -> str:
    table = one.program.table
    shown = (f"inputs_{p}, outputs_{p}") if one.sizes else "0, 0"
    columns = [f"{{{name}_{p}, (int)(sizeof({name}_{p}) / sizeof(word)) - 1}}" for name in _COLUMNS]
    linked = [
        f"{{{name}_{p}, (int)(sizeof({name}_{p}) / sizeof(patch)) - 1}}"
        for name in ("word_links", "call_links")
    ]
    room = aligned(one.arena_bytes + table.scratch_bytes)
    numbers = f"{room}, {one.arena_bytes}, {table.worker_bytes}, linked_calls_{p}"
    return f"    {{sizes_{p}, {shown}, {', '.join([*columns, *linked])}, {numbers}}},"


def _pool_text(symbols: Mapping[str, str]) -> str:
    words = {name: f"(word){name}" for name in _FUNCTIONS}
    words["worker_loop"] = f"(word){symbols[WORKER.key]}"
    words["parallel"] = f"(word){symbols[PARALLEL.key]}"
    words["wake_after"] = words["wake_least"] = str(WAKE_AFTER_NS)
    words |= {"spin_caller": "spins", "set_mask": "SIG_SETMASK", "clock": "CLOCK_MONOTONIC"}
    return filled(
        _POOL, TOTAL_WORDS=TOTAL_WORDS, LIMIT=WORDS["limit"], CALLER_MUTEX=WORDS["caller_mutex"],
        CALLER_CONDITION=WORDS["caller_condition"], ALL_SIGNALS=WORDS["all_signals"],
        POOL_WORDS="\n".join(f"    pool[{WORDS[name]}] = {held};" for name, held in words.items()),
        FAULT_SIGNALS="\n".join(f"    sigdelset(blocked, {name});" for name in FAULTS),
        MOST_THREADS=MAX_THREADS, FIRST_SLOT=FIRST_SLOT, SLOT_WORDS=SLOT_WORDS,
        NUMBER=SLOT["number"], POOL_OF=SLOT["pool"], SPIN_OF=SLOT["spin"], MUTEX=SLOT["mutex"],
        CONDITION=SLOT["condition"], THREAD=SLOT["thread"], RUNNING=SLOT["running"],
        CONTROL=symbols[CONTROL.key], SPIN=SPIN, CLOSE=CLOSE, SPINS=SPINS,
        SPIN_SECONDS=SPIN_SECONDS,
    )  # fmt: skip


def _aliases(model: Model) -> str:
    """The names for who loads the library by its path; one called "model" has them anyway."""
    sizes, addresses = "const long long *", "const void *const *, void *const *"
    functions = {"message": ("const char *", "int"), "set_threads": ("int ", "int")}
    if model.sizes:
        functions |= {
            "sized_inputs": ("const weft_tensor *", sizes),
            "sized_outputs": ("const weft_tensor *", sizes),
            "run_sized": ("int ", f"{sizes}, {addresses}"),
        }
    else:
        functions["run"] = ("int ", addresses)
    tables = ["const weft_tensor weft_model_inputs[]", "const weft_tensor weft_model_outputs[]"]
    tables += ["const char *const weft_model_sizes[]"] if model.sizes else []
    declared = [f"{kind}weft_model_{name}({of})" for name, (kind, of) in functions.items()]
    lines = []
    for text in [*declared, *(f"extern {table}" for table in tables)]:
        name = re.search(r"weft_model_(\w+)", text)
        assert name is not None
        lines.append(f'{text} __attribute__((alias("weft_{model.stem}_{name[1]}")));\n')
    return "".join(lines)


class _Messages:
    """The messages of errors, each once; the number of each is its error's."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}

    def of(self, program: StepProgram) -> list[int]:
        """Of each row: the number of the error if it fails."""
        return [self._number(program, owner) for owner in program.table.owner]

    def _number(self, program: StepProgram, owner: int) -> int:
        """The op whose index operand is out of bounds."""
        if owner >= 0:
            call = program.calls[owner]
            ops = [op for op in (call.op, *call.faults) if op is not None]
            named = " or ".join(dict.fromkeys(f"'{op.name}'" for op in ops))
            where = next((f" ({place})" for op in ops for place in op.locations), "")
            if named:
                text = f"an index of op {named} is out of bounds{where}"
                return self._texts.setdefault(text, len(self._texts) + 2)
        return 1

    def cases(self) -> Iterator[str]:
        """The messages as C."""
        for text, number in self._texts.items():
            yield f'    case {number}: return "{plain(text)}";'


def plain(text: str) -> str:
    """Text that may stand in strings and comments of C, whoever wrote it."""
    kept = (c if c.isascii() and c.isprintable() and c not in '"\\?' else "_" for c in text)
    return "".join(kept).replace("*/", "*_")
