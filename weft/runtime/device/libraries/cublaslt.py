"""cuBLASLt, by `nvmath.bindings.cublasLt`: descriptors, lists of algorithms, calls, errors.

Only algorithms whose bits are the same on every run are asked for: k is summed in one sequence, or
in parts that lie in the workspace, in the sums' own dtype, and are added up by a second kernel.
NVIDIA ("Results reproducibility" in the cuBLAS guide) promises that for one version of the library,
on GPUs of one sort, where the caller owns the workspace, as it does here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import weakref
from typing import Any

import numpy as np

from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    ResourceExhaustedError,
    ToolchainError,
    UnsupportedError,
    WeftError,
)
from weft.runtime.device.gemm_conv import ALIGNMENT, Epilogue, Gemm, Operand
from weft.runtime.device.libraries.library import Algorithm, LibraryLaunch
from weft.runtime.device.protocol import Array

#: `cudaDataType` of elements, of sums (which alpha and beta have, too), and `cublasComputeType_t`.
#: ieee f32 is "pedantic": f32 in all phases. CUBLAS_COMPUTE_32F is that, too, unless the library's
#: environment variables let it emulate f32 by bf16; only FAST_TF32 may round operands to tf32.
_TYPES = {
    ("f16", "ieee"): (2, 0, 68), ("bf16", "ieee"): (14, 0, 68), ("f32", "ieee"): (0, 0, 69),
    ("f32", "tf32"): (0, 0, 77), ("f64", "ieee"): (1, 1, 70),
}  # fmt: skip
_EPILOGUES: dict[Epilogue, str] = {
    "none": "DEFAULT", "bias": "BIAS", "relu": "RELU", "relu_bias": "RELU_BIAS",
}  # fmt: skip
_INSTALL = "pip install 'weft[cublas]' brings it; the library itself is nvidia-cublas"
_OLDEST = 12
#: Status -> (error, what to do). The others are faults of the call, that is of weft.
_STATUSES: dict[int, tuple[type[WeftError], str]] = {
    1: (FailedPreconditionError, "the driver may be older than the library, or the device lost"),
    3: (ResourceExhaustedError, "the library has no memory for its own data: need less elsewhere"),
    8: (UnsupportedError, "the library knows no code for this GPU: install a newer nvidia-cublas"),
    15: (UnsupportedError, "set WEFT_GPU_LIBRARIES=0 to run on weft's own kernels"),
    16: (FailedPreconditionError, "NVIDIA's license check failed"),
}
_EXECUTION = "a kernel failed, this one or one before; WEFT_GPU_BLOCKING=1 tells which"
NOT_SUPPORTED = 15


@functools.cache
def installed() -> bool:
    """Whether the package is there through which the library is called."""
    return importlib.util.find_spec("nvmath") is not None


def load() -> Any:
    """The module nvmath.bindings.cublasLt, with its library. ToolchainError: what is missing."""
    if not installed():
        raise ToolchainError("the package nvmath-python is not installed", hint=_INSTALL)
    try:
        module = importlib.import_module("nvmath.bindings.cublasLt")
        module.get_version()  # this looks for the library
    except Exception as error:  # of the loader, of nvmath, of cuda.pathfinder: all sorts
        said = (str(error).strip() or repr(error)).splitlines()[0]
        raise ToolchainError(f"cuBLASLt cannot be loaded: {said}", hint=_INSTALL) from error
    return module


class CublasLt:
    """The library for the device whose context is current. driver: the release of CUDA that the
    driver runs, 13000. workspace: bytes that an algorithm may have.

    ToolchainError for a library that is too old, or too new for the driver.
    """

    def __init__(self, api: Any, driver: int, workspace: int) -> None:
        self._api, self.workspace = api, workspace
        number = int(api.get_version())
        self.version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        self.cuda = int(api.get_cudart_version()) // 1000
        if number // 10000 < _OLDEST:
            raise ToolchainError(
                f"cuBLASLt {self.version} is too old: weft needs {_OLDEST}.0 or later",
                hint="install a newer nvidia-cublas",
            )
        if self.cuda > driver // 1000:
            raise ToolchainError(
                f"cuBLASLt {self.version} is of CUDA {self.cuda}, the NVIDIA driver runs "
                f"CUDA {driver // 1000}.{driver % 1000 // 10}",
                hint="install a newer driver, or the nvidia-cublas of the driver's CUDA",
            )
        self._handle = self.call("create")

    def call(self, function: str, *args: Any) -> Any:
        """Call a function of the library. Its status as an error of weft, with the name."""
        try:
            return getattr(self._api, function)(*args)
        except self._api.cuBLASLtError as error:
            raise _failed(function, int(error.status), str(error)) from None

    def algorithms(self, gemm: Gemm, most: int) -> list[Algorithm]:
        """At most so many, the one that the library thinks fastest first; none if it has none."""
        api, found = self._api, np.zeros(most, self._api.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        held = Descriptors(self, gemm)
        preference = self._preference(gemm)
        try:
            api.matmul_algo_get_heuristic(
                self._handle, held.product, held.a, held.b, held.d, held.d, preference, most,
                found.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except api.cuBLASLtError as error:
            if int(error.status) == NOT_SUPPORTED:
                return []
            raise _failed("matmul_algo_get_heuristic", int(error.status), str(error)) from None
        finally:
            self.call("matmul_preference_destroy", preference)
        rows = [row for row in found[: int(count[0])] if int(row["state"]) == 0]
        made = (self._algorithm(row["algo"].tobytes(), int(row["workspace_size"])) for row in rows)
        return [one for one in made if one is not None and one.workspace <= self.workspace]

    def checked(self, gemm: Gemm, code: bytes) -> Algorithm | None:
        """The algorithm of this code, which another process has kept; None if it cannot do this."""
        algo = np.frombuffer(code, np.uint8).copy()
        result = np.zeros(1, self._api.matmul_heuristic_result_dtype)
        held = Descriptors(self, gemm)
        try:
            self._api.matmul_algo_check(
                self._handle, held.product, held.a, held.b, held.d, held.d, algo.ctypes.data,
                result.ctypes.data,
            )  # fmt: skip
        except self._api.cuBLASLtError:
            return None
        needed = int(result["workspace_size"][0])
        fits = int(result["state"][0]) == 0 and needed <= self.workspace
        return self._algorithm(code, needed) if fits else None

    def room(self, algorithm: Algorithm) -> int:
        """As `library.Library` has it: one size for all."""
        return self.workspace if algorithm.workspace else 0

    def _algorithm(self, code: bytes, workspace: int) -> Algorithm | None:
        """None for one whose bits may change, should the library have offered it."""
        algo = np.frombuffer(code, np.uint8).copy()

        def config(name: str, dtype: Any = np.int32) -> int:
            held, size = np.zeros(1, dtype), np.zeros(1, np.uint64)
            what = int(self._api.MatmulAlgoConfigAttribute[name])
            self.call("matmul_algo_config_get_attribute", algo.ctypes.data, what,
                      held.ctypes.data, held.nbytes, size.ctypes.data)  # fmt: skip
            return int(held[0])

        schemes = self._api.ReductionScheme
        scheme, parts = config("REDUCTION_SCHEME", np.uint32), config("SPLITK_NUM")
        if scheme not in (int(schemes.NONE), int(schemes.COMPUTE_TYPE)):
            return None
        label = f"algorithm {config('ID')} tile {config('TILE_ID', np.uint32)}"
        label += f" stages {config('STAGES_ID', np.uint32)}"
        label += f", k in {parts} parts" if parts > 1 else ""
        return Algorithm(code, workspace, label)

    def _preference(self, gemm: Gemm) -> int:
        made = int(self.call("matmul_preference_create"))
        names, scheme = self._api.MatmulPreferenceAttribute, self._api.ReductionScheme.COMPUTE_TYPE
        wanted: dict[str, np.generic[Any]] = {
            "MAX_WORKSPACE_BYTES": np.uint64(self.workspace),
            "REDUCTION_SCHEME_MASK": np.uint32(scheme),  # beside none at all
            "MIN_ALIGNMENT_A_BYTES": np.uint32(gemm.a.alignment),
            "MIN_ALIGNMENT_B_BYTES": np.uint32(gemm.b.alignment),
            "MIN_ALIGNMENT_C_BYTES": np.uint32(gemm.d.alignment),
            "MIN_ALIGNMENT_D_BYTES": np.uint32(gemm.d.alignment),
        }
        for name, value in wanted.items():
            self.set("matmul_preference_set_attribute", made, names[name], value)
        return made

    def set(self, function: str, held: int, attribute: int, value: np.generic[Any]) -> None:
        """Set an attribute of a descriptor to `value`, whose dtype is the attribute's."""
        cell = np.array([value])
        self.call(function, held, int(attribute), cell.ctypes.data, cell.nbytes)

    def prepared(self, gemm: Gemm, algorithm: Algorithm, workspace: int) -> MatmulCall:
        """The product by this algorithm, ready but for the addresses; `workspace`: where it is."""
        return MatmulCall(self, gemm, algorithm, workspace)


class Descriptors:
    """The library's descriptors of a product. They need no device."""

    def __init__(self, library: CublasLt, gemm: Gemm) -> None:
        api, self._library = library._api, library
        self._made: list[tuple[str, int]] = []
        # not when Python ends: the module may be gone before
        weakref.finalize(self, _destroy, api, self._made).atexit = False
        elements, sums, compute = _TYPES[gemm.dtype, gemm.mode]
        self.product = int(library.call("matmul_desc_create", compute, sums))
        self._made.append(("matmul_desc_destroy", self.product))
        names = api.MatmulDescAttribute
        wanted: dict[str, np.generic[Any]] = {
            "TRANSA": np.int32(gemm.a.transposed), "TRANSB": np.int32(gemm.b.transposed),
            "EPILOGUE": np.uint32(api.Epilogue[_EPILOGUES[gemm.epilogue]]),
        }  # fmt: skip
        if "bias" in gemm.epilogue:  # algorithms are chosen by the address' alignment
            wanted["BIAS_POINTER"] = np.int64(ALIGNMENT)
            wanted["BIAS_DATA_TYPE"] = np.int32(elements)
        for name, value in wanted.items():
            library.set("matmul_desc_set_attribute", self.product, names[name], value)
        self.a, self.b, self.d = (
            self._layout(x, elements, gemm.batch) for x in (gemm.a, gemm.b, gemm.d)
        )

    def _layout(self, x: Operand, elements: int, batch: int) -> int:
        library = self._library
        made = int(library.call("matrix_layout_create", elements, x.rows, x.columns, x.ld))
        self._made.append(("matrix_layout_destroy", made))
        if batch > 1:
            names = library._api.MatrixLayoutAttribute
            set_one = "matrix_layout_set_attribute"
            library.set(set_one, made, names.BATCH_COUNT, np.int32(batch))
            library.set(set_one, made, names.STRIDED_BATCH_OFFSET, np.int64(x.stride))
        return made


def _destroy(api: Any, made: list[tuple[str, int]]) -> None:
    for function, held in made:
        getattr(api, function)(held)


class MatmulCall(LibraryLaunch):
    """A call of cublasLtMatmul with all but the addresses and the stream."""

    def __init__(self, library: CublasLt, gemm: Gemm, algorithm: Algorithm, workspace: int) -> None:
        self.name = f"cuBLASLt {library.version} {algorithm.label}"
        self._library, self._held = library, Descriptors(library, gemm)
        self._algo = np.frombuffer(algorithm.code, np.uint8).copy()
        sums = np.float64 if gemm.dtype == "f64" else np.float32
        self._factors = np.array([1, 0], sums)  # D = 1 A B + 0 D
        self._bias = int(library._api.MatmulDescAttribute.BIAS_POINTER)
        self._has_bias = "bias" in gemm.epilogue
        self._workspace = workspace, algorithm.workspace

    def __call__(self, words: Array, stream: int) -> None:
        """Ask for it. words: the addresses of D, A, B and the bias."""
        d, a, b = (int(word) for word in words[:3])
        held, library, one = self._held, self._library, self._factors.ctypes.data
        if self._has_bias:
            at = words.ctypes.data + 3 * words.itemsize
            library.call("matmul_desc_set_attribute", held.product, self._bias, at, 8)
        library.call(
            "matmul", library._handle, held.product, one, a, held.a, b, held.b,
            one + self._factors.itemsize, d, held.d, d, held.d, self._algo.ctypes.data,
            *self._workspace, stream,
        )  # fmt: skip


def _failed(function: str, status: int, said: str) -> WeftError:
    error, hint = _STATUSES.get(status, (InternalError, _EXECUTION if status == 13 else ""))
    text = said.split(" You can set CUBLASLT_LOG_LEVEL")[0]
    return error(f"cuBLASLt's {function} failed: {text}", hint=hint or None)


__all__ = ["CublasLt", "Descriptors", "MatmulCall", "installed", "load"]
