"""Numbers and records of NVIDIA's driver, for `fake_driver`."""

from __future__ import annotations

import enum


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906
    CUDA_ERROR_CAPTURED_EVENT = 907
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908


OK = CUresult.CUDA_SUCCESS


class Attribute(enum.IntEnum):
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
    CU_DEVICE_ATTRIBUTE_CLOCK_RATE = 13
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE = 36
    CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH = 37
    CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115


#: Of an H100, the clocks in kHz.
ATTRIBUTES = {75: 9, 76: 0, 13: 1_980_000, 16: 132, 36: 2_619_000, 37: 5120, 115: 1}


class PointerAttribute(enum.IntEnum):
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9


class PoolAttribute(enum.IntEnum):
    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4


class CaptureMode(enum.IntEnum):
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class _Location:
    type = id = None


class FakeAccess:
    """`CUmemAccessDesc`."""

    flags = None

    def __init__(self) -> None:
        self.location = _Location()


class MemoryType(enum.IntEnum):
    CU_MEMORYTYPE_DEVICE = 2


class FakeNode:
    """`CUDA_KERNEL_NODE_PARAMS` and `CUDA_MEMCPY3D`: what is set."""


class LocationType(enum.IntEnum):
    CU_MEM_LOCATION_TYPE_DEVICE = 1


class AccessFlags(enum.IntEnum):
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
