"""Python's parser for several threads.

CPython (3.11, gh-106905) counts the depth of the tree that it makes in one place for all threads:
where another one parses meanwhile, it raises SystemError.
"""

from __future__ import annotations

import ast

from weft.ir.process import ForkLock

_lock = ForkLock()


def parse(text: str) -> ast.Module:
    """`ast.parse(text)`, one thread at a time."""
    with _lock:
        return ast.parse(text)
