"""What docs/guide/gpu.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

import pytest
from paths import ROOT

from weft.codegen.cuda.cubins.toolchain import Library, Toolchain
from weft.ir.errors import ToolchainError

PAGE = (ROOT / "docs" / "guide" / "gpu.md").read_text(encoding="utf-8")


def test_python_blocks_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "0")  # the page sets it, this sets it back
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    namespace: dict[str, Any] = {"__name__": "gpu"}
    exec(compile(block, "docs/guide/gpu.md", "exec"), namespace)
    shown = capsys.readouterr().out
    assert "/gpu:0: emulated" in shown
    assert "kernels, for sm_90" in shown


def test_the_error_that_is_shown() -> None:
    libdevice, nvjitlink = (Library(name, "...", "13.0.88") for name in ("libdevice", "nvJitLink"))
    found = Toolchain("", libdevice, nvjitlink, (13, 0))
    with pytest.raises(ToolchainError) as caught:
        found.check(driver=(12, 8))
    assert caught.value.what in PAGE
