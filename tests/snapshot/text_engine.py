"""An engine that makes text of kernels and no code: several times as fast as compiling them, and
for any instruction set, whatever this machine has. What needs an address of a kernel gets one that
ends the process: nothing may run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from weft.codegen.llvm import jit
from weft.codegen.llvm.compile import compile_text, llvm_text
from weft.codegen.llvm.engine import emit_text
from weft.codegen.llvm.jit import Kernel
from weft.codegen.llvm.target import using

_ABORT = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value or 0


@dataclass(frozen=True, eq=False)
class TextCode:
    """Implements `weft.codegen.llvm.jit.Code`."""

    text: str
    address: int = _ABORT
    from_disk: bool = False
    can_go: bool = True

    def llvm(self) -> str:
        return self.text

    def asm(self) -> str:
        raise NotImplementedError("the snapshot makes no machine code")


class TextEngine:
    """Engine of `jit` that keeps text; optimized: whether LLVM's passes are done."""

    def __init__(self, optimized: bool) -> None:
        self._optimized = optimized

    def compile(self, kernels: Sequence[Kernel]) -> list[TextCode | Exception]:
        made: list[TextCode | Exception] = []
        for kernel in kernels:
            try:
                made.append(TextCode(self._text(kernel)))
            except Exception as error:  # the caller's to look at
                made.append(error)
        return made

    def _text(self, kernel: Kernel) -> str:
        # the symbol is the same for all: kernels that are equal have equal texts
        text = emit_text(kernel, "kernel")
        if self._optimized:
            with using(kernel.isa):
                text = llvm_text(compile_text(text, kernel.loops).bitcode)
        return f"; {kernel.name}\n{text}"

    def start(self, kernels: Sequence[Kernel]) -> None:
        """Nothing is begun before it is asked for."""

    def is_done(self, key: str) -> bool:
        return False

    def wait(self) -> None:
        """Nothing is under way."""

    def later(self, job: Callable[[], None]) -> None:
        job()

    def load(self, files: Mapping[str, str]) -> None:
        """Nothing is on disk."""


@contextmanager
def only_text(isa: str, optimized: bool = False) -> Iterator[None]:
    """For the rest of this process kernels are text, within for the instruction set `isa`."""
    engine = TextEngine(optimized)
    jit._engine = cache(lambda: engine)
    with using(isa):
        yield
