"""What docs/guide/extending.md shows is what happens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from paths import ROOT

from weft.frontend.extend.ops import unregister_op

PAGE = ROOT / "docs" / "guide" / "extending.md"


def test_python_blocks_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 8
    # a kernel's module is where Numba looks for its global names
    names: dict[str, Any] = {"__name__": "extending"}
    try:
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
        assert names["soft_sign"]([1.0, -3.0]).numpy().tolist() == [0.5, -0.75]
        assert names["values"].numpy().tolist() == [10, 8]
        assert names["where"].numpy().tolist() == [1, 0]
        x = np.eye(2, dtype=np.float32)
        np.testing.assert_allclose(names["layer"](x, 3 * x).numpy(), 0.75 * x)
        assert names["top"](np.array([[1.0, 5.0], [4.0, 2.0]]))[0].numpy().tolist() == [10, 8]
        assert names["slope"](np.array([1.0, -3.0])).numpy().tolist() == [0.25, 0.0625]
        assert names["totals"] == [6, 15]
    finally:
        for name in ("soft_sign", "largest"):
            unregister_op(name)
