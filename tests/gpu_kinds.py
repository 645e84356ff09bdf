"""Where tests of GPUs run: emulated, over a fake driver, or on the machine's own."""

from __future__ import annotations

import pytest

#: The machine's own GPUs, for those who ask: `pytest -m gpu`.
REAL = pytest.param("real", marks=pytest.mark.gpu)
#: A test that has the fixture `place` runs there, too.
on_a_real_one_too = pytest.mark.parametrize("place", ["emulated", REAL], indirect=True)


def need_gpus(count: int) -> None:
    """Skips the test where the driver shows fewer GPUs."""
    from weft.runtime.device import registry

    found = len(registry.gpus())
    if found < count:
        pytest.skip(f"needs {count} GPUs: the driver shows {found}")
