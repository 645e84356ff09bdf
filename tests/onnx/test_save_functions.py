"""The public functions of weft as ONNX models: onnxruntime gives what they give eagerly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import composed_nn_truth
import composed_truth
import hypothesis.strategies as st
import numpy as np
import pytest
from api_cases import ELEMENTWISE, REDUCTIONS, Case
from api_cases_array import CREATION, EINSUM, INDEXING, LINALG, SHAPES
from composed_draws import Trial
from hypothesis import HealthCheck, Phase, given, settings
from onnx_runs import run_runtime, saved

import weft as wf
from weft.ir.errors import UnsupportedError

Array = np.ndarray[Any, Any]
CASES = (*ELEMENTWISE, *REDUCTIONS, *CREATION, *EINSUM, *INDEXING, *LINALG, *SHAPES)
COMPOSED = {**composed_truth.TABLE, **composed_nn_truth.TABLE}
#: onnxruntime loses a NaN there.
LOSE_NAN = {
    *("max:float64:", "argmax:float64:", "max", "min", "argmax", "argmin", "sort", "argsort"),
    *("reduce_max", "reduce_min", "top_k", "median", "quantile", "nn.top_k"),
}
#: What has no form in ONNX, by the ops that say so: the other functions must have one.
NO_FORM = (
    *("digamma", "erfc", "erfinv", "lgamma", "nextafter", "bitcast", "svd", "power", "qr", "eigh"),
    *("cholesky", "lu", "eig", "random_bits", "random_fold_in", "triangular_solve", "lu_solve"),
    *("fft", "rfft", "irfft", "scatter_nd", "no complex numbers", "variable"),
)
#: Steps of training and random numbers are not what is exported; files and strings neither.
NOT_SAVED = ("random", "train.", "initializers", "truncated_normal")


def real(arrays: Sequence[Array]) -> bool:
    return all(a.dtype.kind in "biuf" for a in arrays)


def agree(call: Callable[..., Any], arrays: Sequence[Array], near: float) -> None:
    """A function with as many parameters as there are arrays."""
    names = ", ".join(f"a{k}" for k in range(len(arrays)))
    function = eval(f"lambda {names}: call({names})", {"call": call})
    with np.errstate(all="ignore"):
        wanted = [np.asarray(v) for v in wf.tree_leaves(function(*map(wf.asarray, arrays)))]
    if not wanted:
        return
    try:
        model = saved(function, tuple(arrays))
    except UnsupportedError as error:
        if not any(name in error.what for name in NO_FORM):
            raise
        return
    try:
        got = run_runtime(model, arrays)
    except Exception as error:
        doubles = any(a.dtype == np.float64 for a in (*arrays, *wanted))
        if not doubles or "NOT_IMPLEMENTED" not in str(error):
            raise
        return
    for x, w in zip(got, wanted, strict=True):
        assert (x.dtype, x.shape) == (w.dtype, w.shape)
        own = 2e-2 if np.float16 in (w.dtype, *(a.dtype for a in arrays)) else near
        np.testing.assert_allclose(x, w, rtol=own, atol=own)


@pytest.mark.share(12)
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in LOSE_NAN and real([*map(np.asarray, c.inputs)])],
    ids=lambda c: c.name,
)  # fmt: skip
def test_a_function(case: Case) -> None:
    agree(case.call, [np.asarray(x) for x in case.inputs], 1e-5)


@pytest.mark.share(36)
@pytest.mark.parametrize("name", [n for n in COMPOSED if not n.startswith(NOT_SAVED)])
def test_a_composed_function(name: str) -> None:
    """On what its own property test draws."""

    @settings(
        max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None,
        phases=[Phase.generate],
    )  # fmt: skip
    @given(st.data())
    def drawn(data: Any) -> None:
        trial: Trial = COMPOSED[name](data.draw)
        arrays = [np.asarray(x) for x in trial.inputs]
        nan = any(a.dtype.kind == "f" and np.isnan(a).any() for a in arrays)
        if trial.compiled and real(arrays) and not (nan and name in LOSE_NAN):
            agree(trial.call, arrays, 1e-4)

    drawn()
