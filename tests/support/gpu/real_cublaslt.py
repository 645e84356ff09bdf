"""Run by test_device_libraries.py: NVIDIA's cuBLASLt is told of products, and asked what it has."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from nvmath.bindings import cublasLt

from weft.codegen.products.gemm import Product
from weft.ir.dtypes import MathMode
from weft.ir.errors import FailedPreconditionError, InternalError, ToolchainError, WeftError
from weft.runtime.device.gemm_conv import Epilogue, gemm_of
from weft.runtime.device.libraries import cublaslt
from weft.runtime.device.libraries.cublaslt import CublasLt, Descriptors
from weft.runtime.device.libraries.library import Algorithm

EPILOGUES: tuple[Epilogue, ...] = ("none", "bias", "relu", "relu_bias")
MODES: tuple[MathMode, ...] = ("ieee", "tf32")
COMPUTE = {("f16", "ieee"): "COMPUTE_32F", ("bf16", "ieee"): "COMPUTE_32F",
           ("f32", "ieee"): "COMPUTE_32F_PEDANTIC", ("f32", "tf32"): "COMPUTE_32F_FAST_TF32",
           ("f64", "ieee"): "COMPUTE_64F"}  # fmt: skip


def read(function: str, handle: int, attribute: int, dtype: type) -> int:
    held, size = np.zeros(1, dtype), np.zeros(1, np.uint64)
    at, nbytes, written = held.ctypes.data, held.nbytes, size.ctypes.data
    getattr(cublasLt, function)(handle, int(attribute), at, nbytes, written)
    assert int(size[0]) == held.nbytes, (function, attribute)
    return int(held[0])


def main() -> None:
    api = cublaslt.load()
    with pytest.raises(FailedPreconditionError, match="cuBLASLt's create failed"):
        CublasLt(api, 13000, 1 << 20)
    with pytest.raises(ToolchainError, match=r"CUDA 13, the NVIDIA driver runs CUDA 12\.8"):
        CublasLt(api, 12080, 1 << 20)
    library = CublasLt.__new__(CublasLt)  # all but the handle
    library._api, library.workspace = api, 1 << 20
    desc, layout = api.MatmulDescAttribute, api.MatrixLayoutAttribute
    for dtype, mode, epilogue, ta, tb, batch in itertools.product(
        ("f16", "bf16", "f32", "f64"), MODES, EPILOGUES, (0, 1), (0, 1), (1, 3)
    ):
        at = tuple([100 * i for i in range(batch)])
        steps = ((1, 5) if ta else (7, 1)), ((1, 6) if tb else (9, 1))
        gemm = gemm_of(Product(dtype, 3, 4, 5, at, at, at, *steps, 8), mode, epilogue)
        assert gemm is not None
        held = Descriptors(library, gemm)

        def of(name: str, kind: type, held: Descriptors = held) -> int:
            return read("matmul_desc_get_attribute", held.product, desc[name], kind)

        assert of("COMPUTE_TYPE", np.int32) == _compute(COMPUTE[dtype, gemm.mode])
        assert of("TRANSA", np.int32) == tb
        assert of("TRANSB", np.int32) == ta
        name = {"none": "DEFAULT"}.get(epilogue, epilogue.upper())
        assert of("EPILOGUE", np.uint32) == int(api.Epilogue[name])
        for handle, x in ((held.a, gemm.a), (held.b, gemm.b), (held.d, gemm.d)):
            get = "matrix_layout_get_attribute"
            assert read(get, handle, layout.ROWS, np.uint64) == x.rows
            assert read(get, handle, layout.COLS, np.uint64) == x.columns
            assert read(get, handle, layout.LD, np.int64) == x.ld
            assert read(get, handle, layout.BATCH_COUNT, np.int32) == batch
            assert read(get, handle, layout.STRIDED_BATCH_OFFSET, np.int64) == x.stride
        preference = library._preference(gemm)
        names, get = api.MatmulPreferenceAttribute, "matmul_preference_get_attribute"
        assert read(get, preference, names.REDUCTION_SCHEME_MASK, np.uint32) == 2
        assert read(get, preference, names.MAX_WORKSPACE_BYTES, np.uint64) == 1 << 20
        assert read(get, preference, names.MIN_ALIGNMENT_A_BYTES, np.uint32) == 16
        library.call("matmul_preference_destroy", preference)
    with pytest.raises(InternalError, match="matmul_desc_set_attribute failed: an unsupported"):
        library.set("matmul_desc_set_attribute", held.product, desc.EPILOGUE, np.int8(1))
    # the bindings take weft's arguments: without a handle the library refuses them itself
    library._handle, library.version = 0, "of a test"
    algorithm = Algorithm(bytes(64), 0, "none")
    with pytest.raises(WeftError, match=r"cuBLASLt's matmul failed: .*STATUS"):
        library.prepared(gemm, algorithm, 0)(np.zeros(4, np.int64), 0)
    with pytest.raises(WeftError, match=r"cuBLASLt's matmul_algo_get_heuristic failed: .*STATUS"):
        library.algorithms(gemm, 4)
    assert library.checked(gemm, bytes(64)) is None
    made = library._algorithm(bytes(64), 0)
    assert made is not None
    assert made.label == "algorithm 0 tile 0 stages 0"
    print("ok")


def _compute(name: str) -> int:
    from nvmath.bindings import cublas

    return int(cublas.ComputeType[name])


main()
