"""Compiler of kernels: LLVM makes PTX of kernel source, nvJitLink a cubin. No GPU, no driver.

Both are loaded when the first kernel is compiled, not for cubins that a cache has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.codegen.cuda.cubins.cache import Cc, Cubin, architecture, load_cubin, store_cubin, targets
from weft.codegen.cuda.cubins.ptx import module_text, ptx_of
from weft.codegen.cuda.cubins.resources import read_report
from weft.codegen.cuda.cubins.toolchain import Toolchain, UnknownTarget, Version, toolchain
from weft.codegen.cuda.source.kernel import CudaKernel
from weft.codegen.cuda.source.typecheck import EmulationError
from weft.codegen.llvm.jit import CodegenError
from weft.codegen.llvm.target import LlvmError
from weft.ir.errors import ToolchainError, UnsupportedError
from weft.ir.process import ForkLock

#: The oldest architecture: what CUDA 13 compiles for begins with it.
OLDEST: Cc = (7, 5)
#: Cubins that this process keeps; the least recently compiled go first.
MOST_KEPT = 1024
_kept: dict[tuple[str, Cc], Cubin] = {}
_unknown_targets: dict[Cc, str] = {}  # and what was said of each
_lock = ForkLock()


def compile_kernel(kernel: CudaKernel, cc: Cc, driver: Version | None = None) -> Cubin:
    """The kernel's machine code for compute capability `cc`, (9, 0) for example.

    From this process, a folder of WEFT_CUBINS, the cache on disk, or compiled. Raises
    UnsupportedError for an architecture before sm_75, ToolchainError if there is no toolchain or
    its parts do not fit each other or the driver that shall load it (`driver`: its release of CUDA,
    (13, 0)), CodegenError, with the source, for a kernel that does not compile."""
    check_oldest(cc)
    with _lock:  # two threads may want one kernel
        cubin = _found(kernel, cc)
        if cubin is None:
            toolchain().check(driver)
            check_known(cc)
            cubin = assemble(kernel, emit_ptx(kernel, cc), cc)
            store_cubin(kernel, cc, cubin)
            _keep(kernel, cc, cubin)
        return cubin


def check_oldest(cc: Cc) -> None:
    """UnsupportedError for an architecture before sm_75."""
    if cc < OLDEST:
        raise UnsupportedError(
            f"CUDA kernels are not compiled for {architecture(cc)}",
            hint=f"the oldest architecture is {architecture(OLDEST)}",
        )


def check_known(cc: Cc) -> None:
    """UnknownTarget for an architecture that nvJitLink does not know, ToolchainError where it is
    not installed. It is asked before LLVM, which writes to stderr of what it does not know."""
    nvjitlink, handle = _linker(cc)
    nvjitlink.destroy(handle)


def compile_for_gpu(kernel: CudaKernel, cc: Cc, driver: Version | None = None) -> Cubin:
    """What a GPU of compute capability `cc` is to run: as `compile_kernel`, for the first of
    `targets(cc)` of which there is machine code, or else that the toolchain knows."""
    cubin = known_cubin(kernel, cc)
    if cubin is not None:
        return cubin
    for target in targets(cc):
        if target not in _unknown_targets:
            try:
                return compile_kernel(kernel, target, driver)
            except UnknownTarget as unknown:
                _unknown_targets[target] = unknown.what
    raise UnknownTarget(_unknown_targets[cc])


def known_cubin(kernel: CudaKernel, cc: Cc) -> Cubin | None:
    """As `compile_for_gpu`, but None for what would have to be compiled."""
    for target in targets(cc):
        with suppress(ToolchainError), _lock:  # without one, no cache is asked, but a folder is
            cubin = _found(kernel, target)
            if cubin is not None:
                return cubin
    return None


def _found(kernel: CudaKernel, cc: Cc) -> Cubin | None:
    cubin = _kept.get((kernel.key, cc))
    if cubin is None:
        cubin = load_cubin(kernel, cc)
        if cubin is not None:
            _keep(kernel, cc, cubin)
    return cubin


def _keep(kernel: CudaKernel, cc: Cc, cubin: Cubin) -> None:
    if len(_kept) >= MOST_KEPT:
        del _kept[next(iter(_kept))]
    _kept[kernel.key, cc] = cubin


def describe_kernels(kernels: Sequence[CudaKernel], cc: Cc) -> list[str]:
    """What each kernel takes, one line each, of those that are compiled for `cc` already."""
    width = max((len(kernel.name) for kernel in kernels), default=0)
    lines = []
    for kernel in kernels:
        cubin = known_cubin(kernel, cc)
        told = "not compiled yet" if cubin is None else cubin.report.describe()
        lines.append(f"{kernel.name:<{width}}  {told}")
    return lines


def forget_cubins() -> None:
    """Forget what this process compiled or loaded (for tests)."""
    _kept.clear()


def symbol_of(kernel: CudaKernel) -> str:
    """The kernel's name in its cubin."""
    return "weft_" + kernel.key.replace("-", "_")


def emit_ptx(kernel: CudaKernel, cc: Cc) -> str:
    """The kernel's PTX for `cc`: the same text in every process. Errors as `compile_kernel`."""
    maths = toolchain().libdevice.path
    try:
        return ptx_of(module_text(kernel, symbol_of(kernel), cc, Path(maths)), cc)
    except EmulationError as error:
        raise _failed(kernel, cc, "the reader of kernel source", str(error)) from error
    except LlvmError as error:
        raise _failed(kernel, cc, "LLVM", str(error)) from error


def assemble(kernel: CudaKernel, ptx: str, cc: Cc) -> Cubin:
    """The cubin of the kernel's PTX, by nvJitLink. Errors as `compile_kernel`."""
    nvjitlink, handle = _linker(cc)
    try:
        data = ptx.encode()
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), kernel.name)
        nvjitlink.complete(handle)
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        log = _log(nvjitlink.get_info_log_size, nvjitlink.get_info_log, handle)
    except nvjitlink.nvJitLinkError as error:
        log = _log(nvjitlink.get_error_log_size, nvjitlink.get_error_log, handle)
        raise _failed(kernel, cc, "nvJitLink", f"{error}\n{log}") from error
    finally:
        nvjitlink.destroy(handle)
    symbol = symbol_of(kernel)
    return Cubin(bytes(code), symbol, read_report(bytes(code), symbol, log))


def _linker(cc: Cc) -> tuple[Any, Any]:
    """nvJitLink, and a handle of it. Errors as `check_known`."""
    found = toolchain()
    from cuda.bindings import nvjitlink

    # -v: the log says what is spilled; with nvJitLink's own -verbose, 12.8 writes to stdout
    options = [f"-arch={architecture(cc)}", "-Xptxas=-v"]
    try:
        return nvjitlink, nvjitlink.create(len(options), options)
    except nvjitlink.nvJitLinkError as error:
        raise _unknown(found, cc) from error


def _log(size: Any, read: Any, handle: int) -> str:
    text = bytearray(size(handle))
    if text:
        read(handle, text)
    return text.decode(errors="replace").strip("\0")


def _unknown(found: Toolchain, cc: Cc) -> UnknownTarget:
    return UnknownTarget(
        f"nvJitLink {found.nvjitlink.version} ({found.nvjitlink.path}) does not know "
        f"{architecture(cc)}"
    )


def _failed(kernel: CudaKernel, cc: Cc, tool: str, log: str) -> CodegenError:
    lines = enumerate(kernel.source.splitlines(), 1)
    source = "\n".join(f"{number:4} {line}" for number, line in lines)
    return CodegenError(
        f"kernel '{kernel.name}' does not compile for {architecture(cc)}; {tool} says\n"
        f"{log.strip()}\nof the source\n{source}"
    )
