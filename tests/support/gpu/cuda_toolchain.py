"""Whether tests can compile CUDA kernels: without the toolchain they are skipped, saying so, but in
CI, which installs it, they fail. `.ci/run` sets WEFT_TEST_CUDA=0 for the step that has none."""

from __future__ import annotations

import os
from functools import cache

import pytest

from weft.codegen.cuda.cubins.toolchain import toolchain
from weft.ir.errors import ToolchainError

#: The architectures that kernels are compiled for in tests.
TARGETS = ((7, 5), (8, 0), (9, 0), (10, 0))


@cache
def why_missing() -> str:
    try:
        toolchain()
    except ToolchainError as error:
        return str(error)
    return ""


def must_be_there() -> bool:
    return os.environ.get("CI") == "true" and os.environ.get("WEFT_TEST_CUDA") != "0"


needs_toolchain = pytest.mark.skipif(
    bool(why_missing()) and not must_be_there(), reason=f"no CUDA toolchain: {why_missing()}"
)
