"""Machine code of the same text that another test, process or run has had LLVM make.

Half of the suite's processor time is LLVM's, and its code depends on nothing but the text of a
module, the instruction set, and what the key below holds. All else is as ever: weft emits each
kernel, counts it as compiled, links and runs it; its own cache on disk stays off.
`pytest --cache-clear` forgets the code.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from functools import cache
from pathlib import Path

from weft.codegen.llvm import compile as compiling
from weft.codegen.llvm import engine, target
from weft.codegen.llvm.compile import ObjectCode

_LENGTH = 8


def remember(folder: Path) -> None:
    """From now on what LLVM makes of a text is looked for in the folder first, and kept there."""
    compile_text = engine.compile_text

    def known_or_compiled(text: str, loops: bool = True) -> ObjectCode:
        key = f"{_depends_on(target.isa())}\n{loops}\n{text}"
        path = folder / hashlib.sha256(key.encode()).hexdigest()
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            size = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
            return ObjectCode(data[_LENGTH:size], data[size:])
        made = compile_text(text, loops)
        with contextlib.suppress(OSError):  # a test may have filled the disk
            part = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}")
            part.write_bytes(len(made.code).to_bytes(_LENGTH, "little") + made.code + made.bitcode)
            part.replace(path)
        return made

    engine.compile_text = known_or_compiled


@cache
def _depends_on(isa: str) -> str:
    """Processor, LLVM, and the passes."""
    sources = (Path(str(module.__file__)).read_text("utf-8") for module in (compiling, target))
    return "\n".join([isa, target.machine_line(), *sources])
