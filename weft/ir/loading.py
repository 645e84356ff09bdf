"""Modules of weft that are loaded with the first use of one of their names, and when loading began.

A child that is forked while a thread loads a module would have half a module: `fork.loading`.
"""

from __future__ import annotations

import importlib
import sys
import time

from weft.ir.collector import collector_paused
from weft.ir.fork import loading

#: When this process began to read weft's sources, roughly (seconds since the epoch). Of a file that
#: changed later nobody knows which text runs.
LOADED_AT = time.time()


def load(module: str, name: str | None = None) -> object:
    """A module, or what it calls `name`. Errors as those of `import`."""
    with loading, collector_paused(old=module not in sys.modules):
        found = importlib.import_module(module)
    return found if name is None else getattr(found, name)
