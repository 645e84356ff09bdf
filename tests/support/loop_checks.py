"""Compiled loops against the interpreter, and what random ones are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import weft as wf
from weft.codegen.loops.program import Branch, Loop
from weft.ir.interpreter.evaluate import interpret

Array = np.ndarray[Any, Any]
CONTROL = ("cond", "while", "scan")
OPS = (*CONTROL, "add", "negative", "multiply", "slice", "sum", "broadcast_to", "take", "iota",
       "slice_update", "reshape", "constant", "read", "assign", "variable")  # fmt: skip
RNG = np.random.default_rng(3)


def control_ops(compiled: Any, *args: Any) -> list[Any]:
    """The loops and branches of the compiled program; what became one kernel is not among them."""
    return [n for n in program(compiled, *args) if isinstance(n, Loop | Branch)]


def program(compiled: Any, *args: Any) -> Any:
    return executable(compiled, *args).report.program


def executable(compiled: Any, *args: Any) -> Any:
    compiled(*args)
    return list(compiled._specializations.entries.values())[-1].executable()


def check(f: Callable[..., Any], *args: Array, rtol: float = 2e-6) -> list[Array]:
    """`f` compiled gives what the interpreter gives, twice."""
    compiled = wf.compile(f)
    wanted = interpret(compiled.trace(*args), list(args))
    for _ in range(2):
        got = [np.asarray(t) for t in wf.tree_leaves(compiled(*args))]
        assert len(got) == len(wanted)
        for x, y in zip(got, wanted, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-6)
    return got


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)
