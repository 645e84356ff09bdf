"""Files of the cache whose checksum fits and whose content does not: damaged like any other."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgotten_kernels import forget_kernels_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_runs import traced
from scale_kernels import scale_kernel, scaled

import weft as wf
from weft.codegen.cuda.cubins.cache import Cubin
from weft.codegen.llvm import cache as cache_key
from weft.codegen.llvm import jit
from weft.codegen.llvm.cache import (
    CHOICE_SUFFIX,
    CUBIN_SUFFIX,
    PLAN_SUFFIX,
    SUFFIX,
    CachedRecord,
    DamagedFileError,
    KernelCache,
    _seal,
    _unseal,
    read_name,
    unpack,
)
from weft.codegen.llvm.jit import wait_for_background
from weft.runtime.native.executable import compile_graph

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own, turned on."""
    where = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE", "1")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(where))
    monkeypatch.setattr(cache_key, "LOADED_AT", math.inf)
    for known in (cache_key._common, cache_key._plan_sources):
        known.cache_clear()
    return where


Fields = dict[str, Any]


def rewrite(path: Path, change: Callable[[Fields, bytes], tuple[Any, bytes]]) -> None:
    """Change the content of a file, with a checksum that fits."""
    fields, payload = change(*_unseal(path.suffix, path.read_bytes()))
    path.write_bytes(_seal(path.suffix, fields, payload))


KERNELS: dict[str, Callable[[Fields, bytes], tuple[Any, bytes]]] = {
    "no code": lambda f, p: ({k: v for k, v in f.items() if k != "code"}, p),
    "a size that is text": lambda f, p: ({**f, "code": "9"}, p),
    "a size below 0": lambda f, p: ({**f, "code": -1, "bitcode": len(p) + 1}, p),
    "short": lambda f, p: (f, p[: len(p) // 2]),
    "a list": lambda f, p: ([1, 2], p),
    "no description": lambda f, p: ({"name": "x"}, p),
    "null": lambda f, p: (None, p),
    "other code": lambda f, p: (f, bytes(len(p))),
    "half an ELF": lambda f, p: ({**f, "code": 100, "bitcode": len(p) - 100}, p),
    "another symbol": lambda f, p: ({**f, "symbol": "nothing"}, p),
}


@pytest.mark.parametrize("what", KERNELS)
def test_kernels(folder: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    kernels = [scale_kernel(f"foreign.{what}.{k}", 5.0 + k) for k in range(3)]
    jit.compile_kernels(kernels)
    wait_for_background()
    files = {f: f.read_bytes() for f in folder.iterdir()}
    bad = next(f for f in files if b"foreign" in files[f] and kernels[1].name in read_name(f))
    rewrite(bad, KERNELS[what])
    forget_kernels_of(kernel.key for kernel in kernels)
    compiled = jit.compile_count()
    with caplog.at_level(logging.WARNING, "weft.compile"):
        table = jit.compile_kernels(kernels)
        wait_for_background()
    assert [scaled(table[k.key]) for k in kernels] == [5.0, 6.0, 7.0]
    assert jit.compile_count() == compiled + 1
    assert [r for r in caplog.records if "is damaged" in r.getMessage()]
    assert {f: f.read_bytes() for f in folder.iterdir()} == files
    assert isinstance(read_name(bad), str)


PLANS: dict[str, Callable[[Fields, bytes], tuple[Any, bytes]]] = {
    "short": lambda f, p: (f, p[:-8]),
    "empty": lambda f, p: (f, b""),
    "nothing but names": lambda f, p: ({k: f[k] for k in ("name", "description")}, p),
    "results": lambda f, p: ({**f, "results": 3}, p),
    "a dtype": lambda f, p: ({**f, "results": [[[3], "f99"]]}, p),
    "kernels": lambda f, p: ({**f, "kernels": [["a"]]}, p),
    "arrays": lambda f, p: ({**f, "arrays": [["no"]]}, p),
}


@pytest.mark.parametrize("what", PLANS)
def test_plans(folder: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    graph = traced(lambda x: wf.exp(x) - 41.5, X)
    first = compile_graph(graph, {})
    wait_for_background()
    (file,) = folder.glob(f"*{PLAN_SUFFIX}")
    good = file.read_bytes()
    rewrite(file, PLANS[what])
    with caplog.at_level(logging.WARNING, "weft.compile"):
        again = compile_graph(graph, {})
        wait_for_background()
    assert "is damaged" in caplog.text
    np.testing.assert_array_equal(again.run([X])[0], first.run([X])[0])
    assert file.read_bytes() == good


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    suffix=st.sampled_from([SUFFIX, PLAN_SUFFIX, CUBIN_SUFFIX, CHOICE_SUFFIX]),
    fields=st.recursive(
        st.none() | st.integers() | st.text(max_size=3) | st.booleans(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["code", "bitcode", "symbol", "report", "rows", "kernels", "sizes"]
                ),
                inner,
            )
        ),
        max_leaves=8,
    ),
    payload=st.binary(max_size=20),
    named=st.booleans(),
)
def test_any_content_is_a_miss(
    tmp_path_factory: Any, suffix: str, fields: Any, payload: bytes, named: bool
) -> None:
    cache = KernelCache(tmp_path_factory.getbasetemp() / "any-content")
    cache.store_record("d", suffix, CachedRecord("n", {}, b""))
    (path,) = cache.folder.glob(f"*{suffix}")
    if named and isinstance(fields, dict):
        fields = {**fields, "name": "n", "description": "d"}
    path.write_bytes(_seal(suffix, fields, payload))
    assert isinstance(read_name(path), str)

    def read(found: CachedRecord) -> object:
        return Cubin.of(found.fields, found.payload)

    assert cache.load_record("d", suffix, read) is None
    if suffix == SUFFIX:
        assert cache.load("d") is None or json.loads(json.dumps(fields))["code"] >= 0
        try:
            unpack(path.read_bytes())
        except DamagedFileError:
            return
