"""The LLVM of kernel source, carried out on this machine's processor.

It is what PTX is made of, but optimised for this processor. What only a GPU has (who a thread is,
barriers, shuffles) is asked of this module; a thread of the grid that may wait for others is a
thread here. Maths are the C library's, or the processor's where they are one instruction.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import binding

from weft.codegen.cuda.cubins.compile import module_text
from weft.codegen.cuda.source.kernel import CudaKernel, Launch

Array = np.ndarray[Any, Any]
_WORD = ctypes.c_uint32
ENTRY = "weft_kernel"
NO_TENSOR_CORES = (7, 0)
# What this processor has not: spaces of memory, kernels, products that are fused unasked.
_GPU_ALONE = re.compile(r"^target .*$| addrspace\(\d\)| ptx_kernel| contract\b", re.MULTILINE)
# What the declared functions of NVVM are here.
_MEANINGS = """
declare i32 @weft_ask(i32)
declare i32 @weft_meet(i32, i32)
declare i32 @weft_shuffle(i32, i32, i32, i32, i32)
declare i32 @weft_vote(i32, i32)
define i32 @nvvm.read.ptx.sreg.laneid() {
  %1 = call i32 @weft_ask(i32 0)
  %2 = and i32 %1, 31
  ret i32 %2
}
define void @nvvm.barrier.cta.sync.aligned.all(i32 %barrier) {
  %1 = call i32 @weft_meet(i32 0, i32 0)
  ret void
}
define i1 @nvvm.barrier.cta.red.or.aligned.all(i32 %barrier, i1 %c) {
  %1 = zext i1 %c to i32
  %2 = call i32 @weft_meet(i32 0, i32 %1)
  %3 = icmp ne i32 %2, 0
  ret i1 %3
}
define void @nvvm.bar.warp.sync(i32 %mask) {
  %1 = call i32 @weft_meet(i32 1, i32 0)
  ret void
}
define float @__nv_rsqrtf(float %x) {
  %1 = call float @llvm.sqrt.f32(float %x)
  %2 = fdiv float 1.0, %1
  ret float %2
}
define double @__nv_rsqrt(double %x) {
  %1 = call double @llvm.sqrt.f64(double %x)
  %2 = fdiv double 1.0, %1
  ret double %2
}
declare float @llvm.sqrt.f32(float)
declare double @llvm.sqrt.f64(double)
"""
_REGISTER = """
define i32 @nvvm.read.ptx.sreg.{name}.x() {{
  %1 = call i32 @weft_ask(i32 {what})
  ret i32 %1
}}
"""
_SHUFFLE = """
define i32 @nvvm.shfl.sync.{name}.i32(i32 %mask, i32 %v, i32 %lane, i32 %bound) {{
  %1 = call i32 @weft_shuffle(i32 %mask, i32 {what}, i32 %v, i32 %lane, i32 %bound)
  ret i32 %1
}}
"""
_VOTE = """
define i1 @nvvm.vote.{name}.sync(i32 %mask, i1 %c) {{
  %1 = zext i1 %c to i32
  %2 = call i32 @weft_vote(i32 {what}, i32 %1)
  %3 = icmp ne i32 %2, 0
  ret i1 %3
}}
"""
_BALLOT = """
define i32 @nvvm.vote.ballot.sync(i32 %mask, i1 %c) {
  %1 = zext i1 %c to i32
  %2 = call i32 @weft_vote(i32 2, i32 %1)
  ret i32 %2
}
"""


def _meanings() -> str:
    """The module of them."""
    text = _MEANINGS + _BALLOT
    for form, names in (
        (_REGISTER, ("tid", "ctaid", "ntid", "nctaid")),
        (_SHUFFLE, ("idx", "up", "down", "bfly")),
        (_VOTE, ("all", "any")),
    ):
        text += "".join(form.format(name=name, what=what) for what, name in enumerate(names))
    return text


def host_text(text: str) -> str:
    """The LLVM of a kernel as a CPU takes it."""
    return _GPU_ALONE.sub("", text).replace("@llvm.nvvm.", "@nvvm.")


class _Grid(threading.local):
    """Who the thread is that asks."""

    thread = block = 0
    threads = blocks = 1
    meeting: Any = None


_here = _Grid()


class _Meeting:
    """The threads of a block: where they wait for each other, and what they hand on."""

    def __init__(self, threads: int) -> None:
        self.block = threading.Barrier(threads)
        counts = [min(32, threads - first) for first in range(0, threads, 32)]
        self.warps = [threading.Barrier(count) for count in counts]
        self.words = [0] * (32 * len(counts))

    def of_warp(self, word: int) -> list[int]:
        """The words of all lanes of the warp."""
        first, lane = _here.thread // 32 * 32, _here.thread % 32
        self.warps[first // 32].wait(timeout=60)
        self.words[first + lane] = word
        self.warps[first // 32].wait(timeout=60)
        found = self.words[first : first + 32]
        self.warps[first // 32].wait(timeout=60)
        return found


@ctypes.CFUNCTYPE(_WORD, _WORD)
def _ask(what: int) -> int:
    return (_here.thread, _here.block, _here.threads, _here.blocks)[what]


@ctypes.CFUNCTYPE(_WORD, _WORD, _WORD)
def _meet(warp: int, condition: int) -> int:
    meeting = _here.meeting
    if warp:
        meeting.warps[_here.thread // 32].wait(timeout=60)
        return 0
    meeting.block.wait(timeout=60)
    meeting.words[_here.thread] = condition
    meeting.block.wait(timeout=60)
    found = any(meeting.words[: _here.threads])
    meeting.block.wait(timeout=60)
    return int(found)


@ctypes.CFUNCTYPE(_WORD, _WORD, _WORD, _WORD, _WORD, _WORD)
def _shuffle(mask: int, mode: int, word: int, lane: int, bound: int) -> int:
    words, own = _here.meeting.of_warp(word), _here.thread % 32
    source = (lane, own - lane, own + lane, own ^ lane)[mode]
    return words[source] if 0 <= source < 32 else word


@ctypes.CFUNCTYPE(_WORD, _WORD, _WORD)
def _vote(mode: int, condition: int) -> int:
    words = _here.meeting.of_warp(condition)[: _here.threads - _here.thread // 32 * 32]
    if mode == 2:
        return sum(bit << lane for lane, bit in enumerate(words))
    return int(all(words) if mode == 0 else any(words))


@lru_cache(maxsize=1)
def _names() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for name, function in {
        "weft_ask": _ask, "weft_meet": _meet, "weft_shuffle": _shuffle, "weft_vote": _vote,
    }.items():  # fmt: skip
        binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value or 0)
    return ctypes.CDLL(ctypes.util.find_library("m"))


@lru_cache(maxsize=64)
def _native(kernel: CudaKernel) -> tuple[Any, Callable[..., None]]:
    library = _names()
    module = binding.parse_assembly(_meanings())
    module.triple = binding.get_process_triple()
    module.link_in(binding.parse_assembly(host_text(module_text(kernel, ENTRY, NO_TENSOR_CORES))))
    for name in [f.name for f in module.functions if f.is_declaration]:
        if name.startswith("__nv_"):
            function = getattr(
                library, name.removeprefix("__nv_")
            )  # a name that is not there fails
            binding.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value or 0)
        else:
            assert name.startswith(("weft_", "llvm.")), name
    # with the processor's own instructions for 16-bit floats: nobody gives the C library's here
    features = binding.get_host_cpu_features().flatten()
    host = binding.Target.from_default_triple()
    machine = host.create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=1, jit=True
    )
    options = binding.create_pipeline_tuning_options(speed_level=2)
    passes = binding.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    engine = binding.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kinds = [ctypes.c_void_p if p.kind == "pointer" else ctypes.c_int64 for p in kernel.parameters]
    return engine, ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(ENTRY))


def run(kernel: CudaKernel, blocks: int, threads: int, args: Sequence[Any]) -> None:
    """Carry the kernel out; arrays are written in place, as `emulator.run` does."""
    _, call = _native(kernel)
    words = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in args]
    waits = "sync" in kernel.source

    def work(block: int, thread: int, meeting: _Meeting | None) -> None:
        _here.thread, _here.block, _here.threads, _here.blocks = thread, block, threads, blocks
        _here.meeting = meeting
        call(*words)

    for block in range(blocks):
        if not waits:
            for thread in range(threads):
                work(block, thread, None)
            continue
        meeting = _Meeting(threads)
        group = [
            threading.Thread(target=work, args=(block, thread, meeting))
            for thread in range(threads)
        ]
        for one in group:
            one.start()
        for one in group:
            one.join()


def native(launch: Launch, args: Sequence[Any]) -> None:
    """A runner for `cuda_graphs.run`."""
    run(launch.kernel, launch.blocks, launch.block_threads, args)
