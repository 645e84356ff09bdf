"""Run by test_device_convolutions.py: NVIDIA's cuDNN plans for GPUs that it is told of.

It takes a GPU's properties as JSON since 9.8, and then lists engines, says what they do to numbers,
and makes plans, with no GPU and no driver. What it cannot do so is to carry them out.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from weft.ir.errors import FailedPreconditionError, InternalError, ToolchainError, UnsupportedError
from weft.runtime.device.gemm_conv import Conv
from weft.runtime.device.libraries import cudnn
from weft.runtime.device.libraries.cudnn import Cudnn, Descriptors, Plan
from weft.runtime.device.libraries.cudnn_api import Api, Held, Kind, Name

#: An H100 SXM by published figures. NVIDIA documents no keys, just that descriptions are kept and
#: read: they are from what the library says of one that is missing, and from its strings.
H100 = {
    "deviceName": "NVIDIA H100 80GB HBM3", "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000,
    "totalGlobalMem": 85017755648, "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "multiProcessorCount": 132,
    "warpSize": 32, "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
    "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
    "supportCoopLaunch": 1, "smClockRateKHz": 1980000, "memClockRateKHz": 2619000,
    "memoryBusWidth": 5120, "l2CacheSize": 52428800,
}  # fmt: skip
#: What heuristics go by most; all else is left as the H100 has it.
OTHERS = {
    "T4": {"deviceVer": 750, "multiProcessorCount": 40, "maxSharedMemoryPerBlockOptin": 65536},
    "A100": {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 166912},
    "B200": {"deviceVer": 1000, "multiProcessorCount": 148},
}
KINDS: tuple[Any, ...] = ("conv", "conv_input", "conv_kernel")
DTYPES: tuple[tuple[str, Any], ...] = (
    ("f32", "ieee"), ("f32", "tf32"), ("f16", "ieee"), ("bf16", "ieee"),
)  # fmt: skip
#: window, strides, lo, post, dilation, groups, inside, outside; x has 28 x 30 (x 6).
GEOMETRIES: dict[str, tuple[Any, ...]] = {
    "3x3": ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 32, 80),
    "strided": ((3, 3), (2, 2), (0, 0), (1, 1), (1, 1), 1, 32, 80),
    "dilated": ((3, 3), (1, 1), (2, 2), (2, 2), (2, 2), 1, 32, 80),
    "odd channels": ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 1, 3, 61),
    "grouped": ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 2, 16, 32),
    "depthwise": ((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), 32, 1, 1),
    "1 axis": ((5, 1), (1, 1), (2, 0), (2, 0), (1, 1), 1, 32, 80),
    "3 axes": ((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1, 32, 80),
}


def convolution(kind: Any, dtype: str, mode: Any, geometry: str) -> Conv:
    window, strides, pre, post, dilation, groups, inside, outside = GEOMETRIES[geometry]
    large = (28, 30, 6)[: len(window)]
    rows = zip(large, window, strides, pre, post, dilation, strict=True)
    small = tuple([(n + p + q - (k - 1) * d - 1) // s + 1 for n, k, s, p, q, d in rows])
    return Conv(kind, dtype, mode, 8, groups, inside, outside, large, window, small, strides, pre,
                post, dilation)  # fmt: skip


def plans(api: Api, name: str, properties: dict[str, Any], geometry: str) -> None:
    """Each kind and dtype has engines, their plans can be made anew from what is kept of them, and
    what they say of their numbers is what the mode demands."""
    library = Cudnn.described(api, json.dumps(H100 | properties).encode())
    for kind in KINDS:
        for dtype, mode in DTYPES:
            conv = convolution(kind, dtype, mode, geometry)
            found = library.algorithms(conv, 6)
            what = f"{name} {geometry} {conv.describe()}"
            # sm_75 has no bf16: weft's own kernels do it then
            assert bool(found) == (dtype != "bf16" or name != "T4"), what
            assert len({one.code for one in found}) == len(found), what
            for one in found:
                assert library.checked(conv, one.code) == one, what
                made = library.prepared(conv, one, 0)
                assert isinstance(made, cudnn.ConvCall), what
            print(what, [f"{one.label}: {one.workspace}" for one in found])


def attributes(library: Cudnn) -> None:
    """What is set is what the library has then."""
    api, held = library._api, Descriptors(library)
    conv = convolution("conv", "bf16", "ieee", "3x3")
    plan = Plan(library, conv, cudnn._Engine.of(library.algorithms(conv, 1)[0].code))
    tensors = [one for one in plan._held._made if _has(api, one, Name.UNIQUE_ID)]
    found = {}
    for one in tensors:
        (uid,) = api.get(one, Name.UNIQUE_ID, Held.INT64, [0])
        found[uid] = (
            api.get(one, Name.DIMENSIONS, Held.INT64, [0] * 8),
            api.get(one, Name.TENSOR_STRIDES, Held.INT64, [0] * 8),
            api.get(one, Name.DATA_TYPE, Held.DATA_TYPE, [0]),
        )
    assert found == {
        1: ([8, 32, 28, 30], [28 * 30 * 32, 1, 30 * 32, 32], [9]),
        2: ([80, 32, 3, 3], [9 * 32, 1, 3 * 32, 32], [9]),
        3: ([8, 80, 28, 30], [28 * 30 * 80, 1, 30 * 80, 80], [9]),
    }
    with pytest.raises(InternalError, match=r"cudnnBackendFinalize failed: CUDNN_STATUS_BAD_PARAM"):
        held.make(Kind.TENSOR, (Name.DIMENSIONS, Held.INT64, [1, 2, 3, 4]))


def _has(api: Api, descriptor: int, name: Name) -> bool:
    try:
        return bool(api.get(descriptor, name, Held.INT64, [0]))
    except cudnn.CudnnError:
        return False


def filters_in_wefts_order(api: Api) -> None:
    """Why filters are turned: strides of weft's order are accepted, but plans have no room for a
    copy in the other order, as they have for (out, in, window...)."""
    library = Cudnn.described(api, json.dumps(H100).encode())
    conv = convolution("conv", "f16", "ieee", "3x3")
    engine = cudnn._Engine.of(library.algorithms(conv, 1)[0].code)
    shape, rooms = [80, 32, 3, 3], []
    original = cudnn._tensor
    for steps in ([288, 1, 96, 32], [1, 80, 3 * 32 * 80, 32 * 80], [288, 9, 3, 1]):

        def tensor(held: Any, uid: int, *rest: Any, steps: Any = steps) -> int:
            if uid != 2:
                return original(held, uid, *rest)
            return held.make(
                Kind.TENSOR, (Name.DATA_TYPE, Held.DATA_TYPE, [2]),
                (Name.DIMENSIONS, Held.INT64, shape), (Name.TENSOR_STRIDES, Held.INT64, steps),
                (Name.UNIQUE_ID, Held.INT64, [2]), (Name.ALIGNMENT, Held.INT64, [16]),
            )  # fmt: skip

        cudnn._tensor = tensor
        rooms.append(Plan(library, conv, engine).workspace)
    cudnn._tensor = original
    assert rooms[0] == rooms[1], rooms
    assert rooms[2] >= rooms[0] + 80 * 32 * 9 * 2, rooms


def main() -> None:
    assert cudnn.installed()
    api = cudnn.load()
    with pytest.raises((FailedPreconditionError, ToolchainError), match="cuDNN's cudnnCreate fail"):
        Cudnn(api, 13000, lambda: None)
    with pytest.raises(ToolchainError, match=r"CUDA 13, the NVIDIA driver runs CUDA 12\.8"):
        Cudnn(api, 12080, lambda: None)
    with pytest.raises(InternalError, match=r"CUDNN_STATUS_BAD_PARAM \(.*HasMember"):
        Cudnn.described(api, b"{}")
    library = Cudnn.described(api, json.dumps(H100).encode())
    attributes(library)
    filters_in_wefts_order(api)
    for geometry in GEOMETRIES:
        plans(api, "H100", {}, geometry)
    for name, properties in OTHERS.items():
        plans(api, name, properties, "3x3")
    exact = convolution("conv", "f32", "ieee", "3x3")
    fast = library.algorithms(convolution("conv", "f32", "tf32", "3x3"), 1)[0]
    assert library.checked(exact, fast.code) is None, "tensor cores where ieee is asked for"
    with pytest.raises(UnsupportedError, match="is not as exact as ieee"):
        library.prepared(exact, fast, 0)
    # without a handle the library refuses calls itself
    call = library.prepared(exact, library.algorithms(exact, 1)[0], 0)
    with pytest.raises(InternalError, match="cudnnSetStream failed: CUDNN_STATUS_BAD_PARAM"):
        call(np.zeros(3, np.int64), 0)
    library.sweep()
    print("ok")


main()
