"""Which ops have GPU kernels: every op of the table is one of them, becomes one, or is named on
docs/reference/gpu-ops.md as running on the CPU only."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cuda_on_cpu import native
from cuda_op_checks import graph_of, of
from cuda_op_lists import names_after
from cuda_ops import run_graph
from cuda_toolchain import TARGETS, needs_toolchain

from weft.codegen.cuda.cubins.compile import assemble, emit_ptx
from weft.codegen.cuda.lowerings import GPU_LOWERINGS, launches_of
from weft.codegen.kernels.lowerings import LOWERINGS
from weft.codegen.steps.plan import NO_CODE
from weft.ir.analysis.index_maps import INDEX_MAPS
from weft.ir.errors import UnsupportedError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.interpreter.state import DictState
from weft.ir.ops import OPS
from weft.ir.ops.collectives import COLLECTIVES
from weft.ir.ops.fourier import FOURIER
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.ops.linear_algebra import LINEAR_ALGEBRA
from weft.ir.ops.state import UPDATES

Array = np.ndarray[Any, Any]
IN_NESTS = {
    name
    for name, spec in OPS.items()
    if spec.traits & {"elementwise", "reduction"} or name in INDEX_MAPS
}
CONTROL = {"cond", "while", "scan"}
#: What passes make other ops of: marks for gradients, updates, stacks, collectives.
GONE = {"custom_gradient", *UPDATES, "stack_new", "stack_push", "stack_pop", "stack_add"}
GONE |= {"custom_rule", "loop_mark", "row_guard", *COLLECTIVES}
MADE_BY_FUSION = {"fused"}


def test_every_op_is_on_the_page() -> None:
    kernels, cpu = names_after("Kernels of their own"), names_after("On the CPU only")
    assert kernels == set(GPU_LOWERINGS)
    assert (
        cpu
        == set(OPS) - IN_NESTS - kernels - NO_CODE - CONTROL - GONE - MADE_BY_FUSION - PYTHON_CALLS
    )


def test_what_has_native_code_on_the_cpu_but_not_here() -> None:
    cpu_only = {"arena_push", "arena_pop", "arena_add", *PYTHON_CALLS}  # the host calls
    cpu_only |= {"attention", "attention_grad"}  # a pass for the CPU makes these
    cpu_only |= {"sparse_matmul", "sparse_pairs_padded"}  # and this; a pass drops that on a GPU
    cpu_only |= {"quantized_matmul"}  # as attention
    cpu_only |= LINEAR_ALGEBRA
    cpu_only |= FOURIER
    assert set(LOWERINGS) - set(GPU_LOWERINGS) == cpu_only


def test_an_op_without_a_kernel_is_named() -> None:
    (op,) = graph_of("nonzero", [of((4,))]).ops
    with pytest.raises(UnsupportedError, match="'nonzero' has no GPU kernel"):
        launches_of(op)


def _floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _indices(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).integers(-4, 4, shape)


_WINDOW = {"strides": (1, 1), "lo": (0, 0), "dilation": (1, 1)}
_POOL = {**_WINDOW, "window": (2, 2)}
_CONV = {**_WINDOW, "groups": 1}
_IMAGE, _SMALL, _TAPS = _floats(2, 6, 5, 3), _floats(2, 5, 4, 4), _floats(2, 2, 3, 4)
_KEY = np.array([3, 4], np.uint32)
_SCAN = {"axis": 1, "reverse": False}
#: Inputs and attributes for every op that has kernels of its own.
SAMPLES: dict[str, tuple[list[Array], dict[str, Any]]] = {
    "matmul": ([_floats(9, 20), _floats(20, 7)], {"transpose_a": False, "transpose_b": False}),
    "conv": ([_IMAGE, _TAPS], {**_CONV, "size": (5, 4)}),
    "conv_input": ([_SMALL, _TAPS], {**_CONV, "size": (6, 5)}),
    "conv_kernel": ([_IMAGE, _SMALL], {**_CONV, "size": (2, 2)}),
    "window_sum": ([_IMAGE], {**_POOL, "size": (5, 4)}),
    "window_spread": ([_SMALL], {**_POOL, "size": (6, 5)}),
    "window_max": ([_IMAGE], {**_POOL, "size": (5, 4)}),
    "window_pick": ([_IMAGE, _IMAGE], {**_POOL, "size": (5, 4)}),
    "window_place": ([_IMAGE, _floats(2, 5, 4, 3)], _POOL),
    "concat": ([_floats(2, 3), _floats(2, 4)], {"axis": 1}),
    "pad": ([_floats(2, 3), np.float32(1)[...]], {"lo": (1, 0), "hi": (0, 2)}),
    "slice_update": (
        [_floats(6, 5), _floats(2, 5)], {"starts": (1, 0), "stops": (5, 5), "steps": (2, 1)}
    ),
    "dim_size": ([_floats(3, 5)], {"axis": 1}),
    "take": ([_floats(4, 5), _indices(7)], {"axis": 0}),
    "take_along_axis": ([_floats(4, 5), _indices(2, 5)], {"axis": 0}),
    "gather_nd": ([_floats(4, 5), _indices(7, 2)], {}),
    "first_occurrence": ([_indices(40)], {"size": 4}),
    "index_add": ([_floats(4, 5), _indices(7), _floats(7, 5)], {"axis": 0}),
    "scatter_along_axis_add": ([_floats(4, 5), _indices(3, 5), _floats(3, 5)], {"axis": 0}),
    **{
        f"scatter_nd_{how}": ([_floats(4, 5), _indices(9, 1), _floats(9, 5)], {})
        for how in ("add", "update", "min", "max")
    },
    **{
        f"cumulative_{how}": ([_floats(3, 300)], _SCAN)
        for how in ("sum", "prod", "max", "min", "logsumexp")
    },
    "argmax": ([_floats(3, 300)], {"axis": 1}),
    "argmin": ([_floats(3, 300)], {"axis": 0}),
    "sort": ([_floats(2, 600)], {"axis": 1, "descending": False}),
    "argsort": ([_floats(2, 600)], {"axis": 1, "descending": True}),
    "searchsorted": ([np.sort(_floats(50)), _floats(20)], {"side": "left"}),
    "random_bits": ([_KEY], {"shape": (33,)}),
    "random_fold_in": ([_KEY, np.uint32(7)[...]], {}),
}  # fmt: skip


def test_every_kernel_has_a_sample() -> None:
    assert set(SAMPLES) == set(GPU_LOWERINGS)


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_against_the_interpreter(name: str) -> None:
    inputs, attrs = SAMPLES[name]
    graph = graph_of(name, inputs, **attrs)
    wanted = interpret(graph, inputs, DictState({}))
    (first,) = run_graph(graph, inputs)
    (again,) = run_graph(graph, inputs, seed=1)
    np.testing.assert_allclose(first, wanted[0], rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(first, again)


@pytest.mark.slow
@needs_toolchain
def test_samples_as_llvm_reads_them() -> None:
    """The LLVM of the kernels, carried out on this processor."""
    for name, (inputs, attrs) in SAMPLES.items():
        graph = graph_of(name, inputs, **attrs)
        wanted = interpret(graph, inputs, DictState({}))
        (got,) = run_graph(graph, inputs, runner=native)
        np.testing.assert_allclose(got, wanted[0], rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.slow
@needs_toolchain
def test_samples_become_machine_code_that_spills_nothing() -> None:
    """PTX of the oldest architecture is machine code for all."""
    for name, (inputs, attrs) in SAMPLES.items():
        (op,) = graph_of(name, inputs, **attrs).ops
        for launch in launches_of(op):
            kernel = launch.kernel
            ptx = emit_ptx(kernel, TARGETS[0])
            assert not re.search(r"\.f64|(?:div|rem)\.[us]64", ptx), kernel.name
            for cc in TARGETS:
                report = assemble(kernel, ptx, cc).report
                assert (report.spills, report.stack) == (0, 0), kernel.name
                assert report.registers * kernel.threads <= 1 << 15, kernel.name
