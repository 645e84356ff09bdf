"""What a kernel does that a GPU must not be asked to do, told of with its place."""

from __future__ import annotations

from weft.ir.errors import WeftError


class EmulationError(WeftError):
    """A fault in a kernel: which kernel and line of its source, and the block and the thread that
    did it (-1: found before any ran)."""

    def __init__(
        self, what: str, kernel: str, line: int, text: str = "", block: int = -1, thread: int = -1
    ) -> None:
        self.kernel, self.line, self.block, self.thread = kernel, line, block, thread
        who = f", block {block}, thread {thread}" if block >= 0 else ""
        where = f"kernel {kernel}, line {line}{who}"
        super().__init__(f"{where}: {what}" + (f"\n  {text.strip()}" if text else ""))
