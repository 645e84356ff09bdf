"""NVIDIA's driver, by `cuda.bindings.driver`: loaded when first needed, its errors as weft's.

Each function of the driver gives (status, value...). `Driver.call` takes the status away."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from weft.ir.errors import (
    FailedPreconditionError,
    InternalError,
    ResourceExhaustedError,
    ToolchainError,
    WeftError,
)

_INSTALL = "pip install 'weft[cuda13]' brings what weft needs beside the driver"
#: What a kernel that failed leaves behind: every call of the driver fails so from then on.
_BROKEN = frozenset(
    f"CUDA_ERROR_{what}"
    for what in (
        *("ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC"),
        *("ILLEGAL_INSTRUCTION", "HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "LAUNCH_TIMEOUT"),
        *("ASSERT", "ECC_UNCORRECTABLE"),
    )
)
#: "Potentially unsafe" while a stream is captured (`cuThreadExchangeStreamCaptureMode`), or may be.
_UNSAFE = frozenset(
    (
        *("cuMemAlloc", "cuMemFree", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemPoolTrimTo"),
        *("cuMemHostAlloc", "cuMemFreeHost", "cuModuleLoadData", "cuModuleGetFunction"),
        *("cuStreamSynchronize", "cuEventSynchronize", "cuEventQuery", "cuGraphInstantiate"),
        *("cuCtxSynchronize", "cuCtxRecordEvent"),
    )
)
#: What the driver says of machine code that is not for it.
_NOT_LOADED = frozenset(
    f"CUDA_ERROR_{what}"
    for what in ("INVALID_IMAGE", "NO_BINARY_FOR_GPU", "UNSUPPORTED_PTX_VERSION")
)
#: What ran out, by the function that said so.
_MEMORY = {
    "cuMemHostAlloc": "the host's pinned memory ran out: fewer threads that call at once need less",
    "": "smaller batches, or fewer compiled functions that are kept, need less of the device",
}
_EMULATE = "set WEFT_EMULATE_GPU=1 to run on an emulated device, which is slow"


class Driver:
    """The functions of the driver. `module`: instead of cuda.bindings.driver, for tests.

    FailedPreconditionError where there are no bindings, no driver, no GPU, or a driver that is
    older than the bindings.
    """

    def __init__(self, module: Any = None) -> None:
        self.api = _load() if module is None else module
        try:
            (status, *_) = self.api.cuInit(0)
        except RuntimeError as error:  # the bindings look for libcuda here: "Failed to dlopen ..."
            raise FailedPreconditionError(
                f"there is no GPU to use: no NVIDIA driver is installed here ({error})",
                hint=f"install the driver of the GPU, or {_EMULATE}",
            ) from None
        name = self.name_of(status)
        if name == "CUDA_ERROR_NO_DEVICE":
            raise FailedPreconditionError(
                "there is no GPU to use: the NVIDIA driver finds none", hint=_EMULATE
            )
        if name == "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" or self._is_older():
            raise self._too_old()
        self._check(status, "cuInit")
        if self.call("cuDeviceGetCount") == 0:
            raise FailedPreconditionError(
                "there is no GPU to use: the NVIDIA driver finds none",
                hint=f"CUDA_VISIBLE_DEVICES may hide them; or {_EMULATE}",
            )

    def call(self, function: str, *args: Any) -> Any:
        """Call a function of the driver; its value, a tuple of several, None if it has none.
        InternalError with the driver's words if it fails, ResourceExhaustedError for memory."""
        status, *values = self._asked(function, args)
        if int(status) != 0:
            self._check(status, function)
        return values[0] if len(values) == 1 else tuple(values) or None

    def tried(self, function: str, *args: Any) -> tuple[str, Any]:
        """As `call`, with the status' name ("" if it worked) in place of an error."""
        status, *values = self._asked(function, args)
        return (self.name_of(status) if int(status) else "", values[0] if values else None)

    def _asked(self, function: str, args: Sequence[Any]) -> Any:
        """What the driver says. Some calls end what any thread records in GLOBAL mode, which is
        what PyTorch records in, unless it is said that they have nothing to do with it."""
        do = getattr(self.api, function)
        if function not in _UNSAFE:
            return do(*args)
        exchange = self.api.cuThreadExchangeStreamCaptureMode
        _, before = exchange(self.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        try:
            return do(*args)
        finally:
            exchange(before)

    def load(self, image: int, kernel: str) -> Any:
        """The module of the cubin at an address, which holds `kernel`. ToolchainError for machine
        code that this driver, or this GPU, does not take."""
        status, module = self._asked("cuModuleLoadData", (image,))
        if self.name_of(status) in _NOT_LOADED:
            raise ToolchainError(
                f"the NVIDIA driver, of CUDA {version_text(self.version)}, does not load the "
                f"machine code of kernel '{kernel}': {self.name_of(status)}",
                hint="a cubin of WEFT_CUBINS may be of a newer CUDA, or for another GPU: install a "
                "newer driver, or compile it again (weft compile --target)",
            )
        self._check(status, "cuModuleLoadData")
        return module

    def name_of(self, status: Any) -> str:
        """`CUDA_ERROR_OUT_OF_MEMORY`."""
        return str(getattr(status, "name", status))

    def words_of(self, status: Any) -> str:
        """`CUDA_ERROR_OUT_OF_MEMORY (out of memory)`."""
        words = self.api.cuGetErrorString(status)[1]
        text = words.decode() if isinstance(words, bytes) else str(words)
        return f"{self.name_of(status)} ({text})"

    @property
    def version(self) -> int:
        """13000 for CUDA 13.0: the newest that the driver can run."""
        return int(self.call("cuDriverGetVersion"))

    def _is_older(self) -> bool:
        status, version = self.api.cuDriverGetVersion()
        return int(status) == 0 and int(version) // 1000 < int(self.api.CUDA_VERSION) // 1000

    def _too_old(self) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"the NVIDIA driver is too old: it runs CUDA {version_text(self.version)}, weft's "
            f"packages are of CUDA {version_text(int(self.api.CUDA_VERSION))}",
            hint="install a newer driver, or weft[cuda] for CUDA 12 in place of weft[cuda13]",
        )

    def _check(self, status: Any, function: str) -> None:
        if int(status) == 0:
            return
        said = f"the NVIDIA driver's {function} failed: {self.words_of(status)}"
        if self.name_of(status) == "CUDA_ERROR_OUT_OF_MEMORY":
            raise ResourceExhaustedError(said, hint=_MEMORY.get(function, _MEMORY[""]))
        raise InternalError(said)


class DeviceDriver(Driver):
    """The functions of the driver, for one device. fails: makes the error for a status that a
    kernel leaves behind when it fails, of its words; whoever asks the driver for anything then gets
    it."""

    def __init__(self, driver: Driver, fails: Callable[[str], WeftError]) -> None:
        self.api, self._fails = driver.api, fails

    def tried(self, function: str, *args: Any) -> tuple[str, Any]:
        """As of any driver, but raises if a kernel has failed."""
        status, *values = self._asked(function, args)
        self.look(status)
        return (self.name_of(status) if int(status) else "", values[0] if values else None)

    def look(self, status: Any) -> None:
        """Raise the error if a kernel has failed."""
        if int(status) and self.name_of(status) in _BROKEN:
            raise self._fails(self.words_of(status))

    def _check(self, status: Any, function: str) -> None:
        self.look(status)
        super()._check(status, function)


def version_text(version: int) -> str:
    """13.0 for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _load() -> Any:
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise FailedPreconditionError(
            f"there is no GPU to use: the package cuda-bindings is not installed ({error})",
            hint=f"{_INSTALL}; or {_EMULATE}",
        ) from None
