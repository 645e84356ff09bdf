"""Bindings of cuDNN's C functions that weft calls, by ctypes, with the numbers of cudnn_graph.h.

NVIDIA's cudnn-frontend would bring C++ that does the same calls, and no more of what is needed
here. The numbers are the same in all of cuDNN 9."""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from ctypes.util import find_library
from enum import IntEnum
from pathlib import Path
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

INSTALL = "pip install 'weft[cudnn]' brings it; CUDA 12 needs nvidia-cudnn-cu12"
_TEXT = 4096
_SONAME = "libcudnn.so.9"


class Kind(IntEnum):
    """`cudnnBackendDescriptorType_t`."""

    CONVOLUTION = 1
    ENGINE = 2
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    KNOB = 7
    FORWARD = 10
    BACKWARD_FILTER = 11
    BACKWARD_DATA = 12
    GRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    DEVICE = 38


class Name(IntEnum):
    """`cudnnBackendAttributeName_t`; the operations' come in their order: W, X, Y are three."""

    COMPUTE_TYPE = 100
    MODE = 101
    DILATIONS = 102
    STRIDES = 103
    POST_PADDINGS = 104
    PRE_PADDINGS = 105
    SPATIAL_DIMS = 106
    HEURISTICS_MODE = 200
    HEURISTICS_GRAPH = 201
    HEURISTICS_RESULTS = 202
    HEURISTICS_DEVICE = 204
    CONFIG_ENGINE = 300
    CONFIG_KNOBS = 302
    PLAN_CONFIG = 401
    PLAN_WORKSPACE = 402
    PLAN_DEVICE = 407
    KNOB_TYPE = 600
    KNOB_VALUE = 601
    FORWARD_ALPHA = 700
    FORWARD_BETA = 701
    FORWARD_CONVOLUTION = 702
    FORWARD_W = 703
    FORWARD_X = 704
    FORWARD_Y = 705
    DATA_ALPHA = 706
    DATA_BETA = 707
    DATA_CONVOLUTION = 708
    DATA_W = 709
    DATA_DX = 710
    DATA_DY = 711
    FILTER_ALPHA = 712
    FILTER_BETA = 713
    FILTER_CONVOLUTION = 714
    FILTER_DW = 715
    FILTER_X = 716
    FILTER_DY = 717
    GRAPH_OPERATIONS = 801
    ALIGNMENT = 900
    DATA_TYPE = 901
    DIMENSIONS = 902
    TENSOR_STRIDES = 903
    UNIQUE_ID = 906
    PACK_IDS = 1000
    PACK_POINTERS = 1001
    PACK_WORKSPACE = 1003
    ENGINE_GRAPH = 1300
    ENGINE_INDEX = 1301
    ENGINE_NUMERICAL_NOTES = 1303
    ENGINE_BEHAVIOR_NOTES = 1305
    ENGINE_DEVICE = 1307
    DEVICE_HANDLE = 2701
    DEVICE_JSON = 2702


class Held(IntEnum):
    """`cudnnBackendAttributeType_t`: what an attribute holds."""

    HANDLE = 0
    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    POINTER = 6
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    KNOB_TYPE = 9
    NUMERICAL_NOTE = 11
    DESCRIPTOR = 15
    BEHAVIOR_NOTE = 19
    CHAR = 24


_DTYPES: dict[Held, Any] = {
    Held.HANDLE: np.uint64, Held.INT64: np.int64, Held.FLOAT: np.float32, Held.POINTER: np.uint64,
    Held.DESCRIPTOR: np.uint64, Held.CHAR: np.uint8,
}  # fmt: skip


class CudnnError(Exception):
    """A status that is not success. name: "CUDNN_STATUS_BAD_PARAM"; said: more of the library's."""

    def __init__(self, function: str, status: int, name: str, said: str) -> None:
        super().__init__(f"{function}: {name}")
        self.function, self.status, self.name, self.said = function, status, name, said


_OWN = "set WEFT_GPU_LIBRARIES=0 to run on weft's own kernels"
_PARTS = "parts of different versions of cuDNN are installed, or some are missing"
#: Status, or its thousands -> (error, what to do).
_STATUSES: dict[int, tuple[type[WeftError], str]] = {
    1000: (FailedPreconditionError, "the driver may be older than the library, or the device lost"),
    1002: (ToolchainError, _PARTS), 1008: (ToolchainError, _PARTS),
    2000: (InternalError, ""), 3000: (UnsupportedError, _OWN),
    3005: (ToolchainError, "install a newer driver, or the cuDNN of the driver's CUDA"),
    3006: (ToolchainError, "install a newer driver, or the cuDNN of the driver's CUDA"),
    3007: (UnsupportedError, "this version of cuDNN knows no code for this GPU"),
    3009: (ToolchainError, _PARTS),
    4000: (InternalError, _OWN),
    4003: (ResourceExhaustedError, "the host has no memory for the library's own data"),
    4004: (ResourceExhaustedError, "the device has no memory for the library's own data"),
    5000: (InternalError, "a kernel failed, this one or one before; WEFT_GPU_BLOCKING=1 tells "
                          "which"),
}  # fmt: skip


def failed(error: CudnnError) -> WeftError:
    """What users are told."""
    known = _STATUSES.get(error.status) or _STATUSES.get(error.status // 1000 * 1000)
    kind, hint = known or (InternalError, "")
    said = f" ({error.said})" if error.said else ""
    return kind(f"cuDNN's {error.function} failed: {error.name}{said}", hint=hint or None)


class Api:
    """The functions of a loaded libcudnn. Handles and descriptors are ints. CudnnError."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name in ("cudnnGetVersion", "cudnnGetCudartVersion"):
            getattr(library, name).restype = ctypes.c_size_t
        library.cudnnGetErrorString.restype = ctypes.c_char_p
        pointer, int64 = ctypes.c_void_p, ctypes.c_int64
        library.cudnnGetLastErrorString.argtypes = (pointer, ctypes.c_size_t)
        library.cudnnCreate.argtypes = (pointer,)
        library.cudnnSetStream.argtypes = (pointer, pointer)
        library.cudnnBackendCreateDescriptor.argtypes = (ctypes.c_int, pointer)
        for name in ("cudnnBackendDestroyDescriptor", "cudnnBackendFinalize"):
            getattr(library, name).argtypes = (pointer,)
        given = (pointer, ctypes.c_int, ctypes.c_int, int64)
        library.cudnnBackendSetAttribute.argtypes = (*given, pointer)
        library.cudnnBackendGetAttribute.argtypes = (*given, pointer, pointer)
        library.cudnnBackendExecute.argtypes = (pointer, pointer, pointer)

    def _call(self, function: str, *args: Any) -> None:
        status = int(getattr(self._library, function)(*args))
        if status:
            text = ctypes.create_string_buffer(_TEXT)
            self._library.cudnnGetLastErrorString(text, _TEXT)
            name = self._library.cudnnGetErrorString(status).decode()
            raise CudnnError(function, status, name, text.value.decode(errors="replace").strip())

    def version(self) -> int:
        """92800 for 9.28.0."""
        return int(self._library.cudnnGetVersion())

    def cudart(self) -> int:
        """The release of CUDA that it is built for: 13050."""
        return int(self._library.cudnnGetCudartVersion())

    def create(self) -> int:
        """A handle for the device whose context is current."""
        made = ctypes.c_void_p()
        self._call("cudnnCreate", ctypes.byref(made))
        return int(made.value or 0)

    def set_stream(self, handle: int, stream: int) -> None:
        """Where the handle's calls go from now on."""
        self._call("cudnnSetStream", handle, stream)

    def descriptor(self, kind: Kind) -> int:
        """A new descriptor."""
        made = ctypes.c_void_p()
        self._call("cudnnBackendCreateDescriptor", int(kind), ctypes.byref(made))
        return int(made.value or 0)

    def destroy(self, descriptor: int) -> None:
        """Give it up."""
        self._call("cudnnBackendDestroyDescriptor", descriptor)

    def finalize(self, descriptor: int) -> None:
        """Its attributes stay as they are from now on."""
        self._call("cudnnBackendFinalize", descriptor)

    def set(self, descriptor: int, name: Name, held: Held, values: Sequence[Any]) -> None:
        """Set an attribute."""
        cells = np.array(values, _DTYPES.get(held, np.int32))
        self._call("cudnnBackendSetAttribute", descriptor, int(name), int(held), cells.size,
                   cells.ctypes.data)  # fmt: skip

    def count(self, descriptor: int, name: Name, held: Held) -> int:
        """How many values an attribute has."""
        found = ctypes.c_int64()
        self._call("cudnnBackendGetAttribute", descriptor, int(name), int(held), 0,
                   ctypes.byref(found), None)  # fmt: skip
        return found.value

    def get(self, descriptor: int, name: Name, held: Held, values: Sequence[int]) -> list[int]:
        """The values of an attribute, at most as many as `values`, which are descriptors to be
        filled where it holds such."""
        cells = np.array(values, _DTYPES.get(held, np.int32))
        found = ctypes.c_int64()
        self._call("cudnnBackendGetAttribute", descriptor, int(name), int(held), cells.size,
                   ctypes.byref(found), cells.ctypes.data)  # fmt: skip
        return [int(x) for x in cells[: found.value]]

    def execute(self, handle: int, plan: int, pack: int) -> None:
        """Carry out a plan in the handle's stream."""
        self._call("cudnnBackendExecute", handle, plan, pack)


@functools.cache
def installed() -> bool:
    """Whether there seems to be a libcudnn: in a package, in conda, or on the system."""
    if importlib.util.find_spec("cuda") is None:
        return False
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.cudnn"):
        return True
    conda = os.environ.get("CONDA_PREFIX")
    if conda and (Path(conda) / "lib" / _SONAME).exists():
        return True
    return find_library("cudnn") is not None


def load() -> Api:
    """The library. ToolchainError: what is missing."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        # cuDNN ends the process where it finds no cuBLASLt of its own release
        blas = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path)
        path = pathfinder.load_nvidia_dynamic_lib("cudnn").abs_path
        api = Api(ctypes.CDLL(path))
    except Exception as error:  # of the loader, of cuda.pathfinder, functions that are missing
        said = (str(error).strip() or repr(error)).splitlines()[0]
        raise ToolchainError(f"cuDNN cannot be loaded: {said}", hint=INSTALL) from error
    blas.cublasLtGetVersion.restype = ctypes.c_size_t
    found, wanted = blas.cublasLtGetVersion() // 10000, api.cudart() // 1000
    if found != wanted:
        raise ToolchainError(
            f"{path} is of CUDA {wanted}, the cuBLASLt beside it, which it needs, of CUDA {found}",
            hint=f"install nvidia-cudnn-cu{found}, or nvidia-cublas of CUDA {wanted}",
        )
    return api
