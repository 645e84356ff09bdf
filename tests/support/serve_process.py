"""`weft serve` as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paths import ROOT


@contextmanager
def serving(
    *words: str, without: str | None = None, **variables: str
) -> Iterator[tuple[Any, str, list[str]]]:
    """A server in a process: the process, its address, and the lines before that. without: a
    package that is not to be found."""
    program = f"import sys; sys.modules[{without!r}] = None; import weft.frontend.tools.main as m"
    start = ["-m", "weft"] if without is None else ["-c", f"{program}; sys.exit(m.main())"]
    command = [sys.executable, *start, "serve", "--port", "0", *words]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )  # fmt: skip
    try:
        lines: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("serving on "):
                break
            lines.append(line.strip())
        else:
            assert process.stderr is not None
            raise AssertionError(process.stderr.read())
        yield process, line.split("://")[1].strip(), lines
    finally:
        process.kill()
        process.communicate()
