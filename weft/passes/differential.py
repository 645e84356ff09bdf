"""WEFT_VERIFY=run: execute a graph before and after a pass on the same inputs, and compare.

On a mismatch the graph is shrunk while the pass still changes what it computes, and written to one
self-contained file: the text of the small graph, and as comments the pass, the seed and the inputs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft.ir.dataclass import dataclass
from weft.ir.dims import SymbolicDim
from weft.ir.dtypes import DType
from weft.ir.errors import PassError, WeftError
from weft.ir.graph import Graph
from weft.ir.interpreter.partitioned import interpret_program
from weft.ir.interpreter.state import DictState
from weft.ir.ops.io import muted
from weft.ir.program import Program
from weft.ir.text.printer import print_graph
from weft.ir.types import RefType, TensorType, substitute_type
from weft.passes.shrink import Cut, shrink

Array = np.ndarray[Any, Any]
Run = Callable[[Graph], Graph | Program]
SEEDS = range(3)
log = logging.getLogger("weft.passes")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an execution: the results, and the variables' values afterwards."""

    results: list[Any]
    state: dict[str, Array]


def check_same_meaning(
    before: Graph | Program, after: Graph | Program, run: Run, name: str, folder: Path
) -> None:
    """Raise PassError if `after`, which the pass `run` made of `before`, computes something else.

    What fails on its own on every tried input (an index out of bounds, say), or needs the host,
    cannot be compared; that is logged as a warning.
    """
    before, after = _program(before), _program(after)
    compared = False
    for seed in SEEDS:
        wrong = difference(before, after, seed)
        compared = compared or wrong is not None
        if wrong:
            broken = f"pass '{name}' changes what graph '{before.name}' computes: "
            if not before.is_whole:
                raise PassError(broken + wrong, hint=f"with random inputs of the seed {seed}")
            found = shrink(Cut.whole(before.graph), lambda cut: _goes_wrong(cut.graph, run))
            small = before.graph if found is None else found[0].graph
            seed, wrong = (seed, wrong) if found is None else found[1]
            path = write_repro(small, name, seed, wrong, folder)
            raise PassError(
                broken + wrong,
                hint=f"a graph of {len(small.ops)} ops that shows it is in {path}",
                location=next((op.locations for op in small.ops if op.locations), ()),
            )
    if not compared:
        log.warning("%s: not compared, it fails on all random inputs", before.name)


def difference(before: Graph | Program, after: Graph | Program, seed: int) -> str | None:
    """How the two differ on random inputs; "" if not; None if `before` itself fails."""
    before, after = _program(before), _program(after)
    whole = before.graph if before.is_whole else before.signature()
    typed = whole  # whose arguments say the types of the inputs
    if after.is_whole and len(after.graph.args) == len(whole.args):
        typed = after.graph  # sizes may have been filled in
    inputs = random_inputs(typed, seed, random_sizes(typed, seed))
    state = random_state(whole, seed, random_sizes(whole, seed))
    try:
        expected = execute(before, inputs, state)
    except WeftError:
        return None
    try:
        found = execute(after, inputs, state)
    except WeftError as error:
        return f"it fails: {error.what}"
    rtol = tolerance(before)
    if len(expected.results) != len(found.results):
        return f"it has {len(found.results)} results instead of {len(expected.results)}"
    pairs = [(f"result {i}", r, found.results[i]) for i, r in enumerate(expected.results)]
    pairs += [(f"variable '{k}'", v, found.state.get(k)) for k, v in expected.state.items()]
    return next((f"{what} {why}" for what, a, b in pairs if (why := unequal(a, b, rtol))), "")


def _program(made: Graph | Program) -> Program:
    return Program.of(made) if isinstance(made, Graph) else made


def execute(program: Program, inputs: list[Array], state: dict[str, Array]) -> Outcome:
    """One execution by the reference interpreter."""
    held = DictState(state)
    with muted():
        results = interpret_program(program, inputs, held)
    return Outcome(results, held.values)


def unequal(a: Any, b: Any, rtol: float) -> str:
    """Why two results count as different; "" if they do not. NaN equals NaN."""
    if a is None or b is None:
        return "" if a is b else "is missing"
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
    if a.dtype.kind in "biuO":
        wrong = np.atleast_1d(a != b)
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x, y = np.atleast_1d(a.astype(wide)), np.atleast_1d(b.astype(wide))
        finite = np.abs(x[np.isfinite(x)])
        scale = float(finite.max()) if finite.size else 0.0
        with np.errstate(all="ignore"):
            wrong = ~np.isclose(y, x, rtol=rtol, atol=rtol * scale, equal_nan=True)
    if not wrong.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    old, new = np.atleast_1d(a)[at], np.atleast_1d(b)[at]
    return f"at {list(at)} is {new!r} instead of {old!r}"


def tolerance(program: Program) -> float:
    """The relative tolerance for the least precise floating type in `program`."""
    tensors = (v for part in program.parts for v in _tensors(part.graph))
    bits = [_mantissa(v.type.dtype) for v in tensors if v.type.dtype.is_inexact]
    return float(2.0 ** (8 - min(bits, default=52)))


def _mantissa(dtype: DType) -> int:
    names = {"float16": 10, "bfloat16": 7, "float32": 23, "complex64": 23}
    return names.get(dtype.name, 52) + (5 if dtype.name in ("float16", "bfloat16") else 0)


def _tensors(graph: Graph) -> Iterator[Any]:
    values = [*graph.args, *(v for op in graph.walk() for v in op.results)]
    return (v for v in values if isinstance(v.type, TensorType))


# --------------------------------------------------------------------------------- random inputs


def random_sizes(graph: Graph, seed: int) -> dict[str, int]:
    """A small size for each symbol in the types of the arguments and variables."""
    shapes = [t.shape for t in _input_types(graph)]
    names = sorted(
        {s for shape in shapes for d in shape if isinstance(d, SymbolicDim) for s in d.symbols}
    )
    return {name: 2 + (seed + i) % 4 for i, name in enumerate(names)}


def _input_types(graph: Graph) -> list[TensorType]:
    types = [a.type for a in graph.args if isinstance(a.type, TensorType)]
    refs = [op.result.type for op in graph.ops if op.name == "variable"]
    return types + [t.tensor for t in refs if isinstance(t, RefType)]


def random_inputs(graph: Graph, seed: int, sizes: dict[str, int]) -> list[Array]:
    """An array for each argument: floats around 1, small integers that can serve as indices."""
    generator = np.random.default_rng(seed)
    types = [substitute_type(a.type, sizes) for a in graph.args]
    return [random_array(t, generator, seed) for t in types if isinstance(t, TensorType)]


def random_state(graph: Graph, seed: int, sizes: dict[str, int]) -> dict[str, Array]:
    """A value for each variable."""
    generator = np.random.default_rng(seed + 1000)
    out: dict[str, Array] = {}
    for op in graph.ops:
        if op.name == "variable":
            held = substitute_type(op.result.type, sizes)
            assert isinstance(held, RefType)
            out.setdefault(str(op.attrs["name"]), random_array(held.tensor, generator, seed))
    return out


def random_array(t: TensorType, generator: np.random.Generator, seed: int) -> Array:
    """A random array of a type; an unknown dimension gets the size 3."""
    shape = tuple(d if isinstance(d, int) else 3 for d in t.shape)
    if t.dtype.kind == "bool":
        return generator.integers(0, 2, shape).astype(np.bool_)
    if t.dtype.kind == "string":
        out = np.empty(shape, object)
        for i in np.ndindex(shape):
            out[i] = bytes(generator.integers(97, 100, 2, dtype=np.uint8))
        return out
    if t.dtype.is_integer:
        return generator.integers(0, max(3 - seed, 1), shape).astype(t.dtype.numpy)
    values = generator.normal(size=shape) * (1 + seed)
    if t.dtype.is_complex:
        values = values + 1j * generator.normal(size=shape)
    return np.asarray(values).astype(t.dtype.numpy)


# ------------------------------------------------------------------------------------- shrinking


def _goes_wrong(graph: Graph, run: Run) -> tuple[int, str] | None:
    """The seed of random inputs on which the pass changes the graph's meaning, and how."""
    try:
        after = run(graph)
    except Exception:  # another fault than the one being shrunk
        return None
    found = ((seed, difference(graph, after, seed)) for seed in SEEDS)
    return next(((seed, wrong) for seed, wrong in found if wrong), None)


def write_repro(graph: Graph, name: str, seed: int, wrong: str, folder: Path) -> Path:
    """Write the repro file and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = {p.name for p in folder.glob("repro-*.weft")}
    stem = "repro-" + re.sub(r"[^\w.-]", "_", name)
    path = folder / next(n for i in range(len(taken) + 1) if (n := f"{stem}-{i}.weft") not in taken)
    sizes = random_sizes(graph, seed)
    head = [f"pass '{name}' changes what this graph computes: {wrong}", f"seed {seed}"]
    head += [f"{s} = {n}" for s, n in sizes.items()]
    arrays = zip(graph.arg_names, random_inputs(graph, seed, sizes), strict=True)
    held = random_state(graph, seed, sizes).items()
    for what, array in [*arrays, *held]:
        head.append(f"{what} = {np.array2string(array, threshold=64)}")
    comment = "\n".join(f"// {line}" for text in head for line in text.splitlines())
    path.write_text(f"{comment}\n{print_graph(graph)}", encoding="utf-8")
    return path
