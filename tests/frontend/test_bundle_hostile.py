"""Bundles from anywhere: damaged, cut, put together from others, made to harm. Each is a clear
error, without much memory and without waiting, or the model that was written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

import weft as wf
from weft.frontend.bundle.files import digest_of
from weft.frontend.bundle.structure import structure_from_json, structure_to_json
from weft.frontend.core import pytree
from weft.ir.errors import DataLossError, UnsupportedError, WeftError

OPEN = wf.TensorType(wf.float32, ("n", 3))
TEXT, JSON, WEIGHTS = "serving_default.weft", "bundle.json", "weights.safetensors"
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "good"
    w = wf.Variable(np.arange(3, dtype=np.float32), name="w")
    words = np.array([b"even", b"odd"], object)

    def f(x: Any) -> Any:
        y = x * w.assign_add(wf.ones([3]))
        return {"y": y, "word": wf.take(words, wf.astype(wf.sum(y), wf.int64) % 2)}

    wf.export(f, path, example=OPEN)
    return path


@pytest.fixture
def bundle(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "b"))


def refused(path: Path, match: str, kind: type[WeftError] = DataLossError) -> None:
    with pytest.raises(kind, match=match) as caught:
        wf.load(path)
    assert "test_bundle_hostile" in str(caught.value)


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest of a bundle."""
    manifest = json.loads((path / JSON).read_text())
    change(manifest)
    manifest["sha256"] = digest_of(manifest)
    (path / JSON).write_text(json.dumps(manifest))


def with_text(path: Path, text: str) -> None:
    """Give a bundle another graph, with the sha256 that it has."""
    data = text.encode()
    (path / TEXT).write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    changed(path, lambda m: m["files"].update({TEXT: entry}))


def test_no_bundle(tmp_path: Path, bundle: Path) -> None:
    refused(tmp_path / "nowhere", "has no bundle.json", wf.errors.NotFoundError)
    refused(tmp_path, "has no bundle.json", wf.errors.NotFoundError)
    changed(bundle, lambda m: m.update(weft_bundle=2, weft="9.0"))
    refused(bundle, "has the format 2, this weft reads 1", UnsupportedError)


@pytest.mark.parametrize("name", [TEXT, JSON, WEIGHTS])
def test_missing_cut_and_odd_files(bundle: Path, name: str) -> None:
    data = (bundle / name).read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 2):
        (bundle / name).write_bytes(data[:size])
        refused(bundle, "is damaged")
    (bundle / name).write_bytes(data + b" ")
    if name != JSON:
        refused(bundle, "is damaged")
    os.remove(bundle / name)
    kind = wf.errors.NotFoundError if name == JSON else DataLossError
    refused(bundle, "has no bundle.json" if name == JSON else "no", kind)
    os.mkfifo(bundle / name)  # must not block
    with pytest.raises(WeftError):
        wf.load(bundle)
    os.remove(bundle / name)
    os.mkdir(bundle / name)
    with pytest.raises(WeftError):
        wf.load(bundle)


def test_the_weights_of_another(bundle: Path, tmp_path: Path) -> None:
    w = wf.Variable(np.ones(3, np.float32), name="w")
    wf.export(lambda x: x * w, tmp_path / "other", example=OPEN)
    shutil.copy(tmp_path / "other" / WEIGHTS, bundle / WEIGHTS)
    refused(bundle, "is not the file that was written")


@examples(600, deadline=None)
@given(name=st.sampled_from([TEXT, JSON, WEIGHTS]), data=st.data())
def test_flipped_bits(written: Path, name: str, data: st.DataObject) -> None:
    """An error of weft's, or what was written: the manifest has spaces that say nothing."""
    bundle = written.with_name("flipped")
    shutil.copytree(written, bundle, dirs_exist_ok=True)
    content = bytearray((bundle / name).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    (bundle / name).write_bytes(content)
    try:
        model = wf.load(bundle)
    except WeftError:
        return
    assert name == JSON
    y = model(x=X)
    assert y["y"].numpy().tolist() == (X * [1, 2, 3]).tolist()
    assert y["word"].numpy() == b"even"  # as the sum, 34


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@examples(600, deadline=None)
@given(data=st.data(), value=_JSON)
def test_other_values_in_the_manifest(written: Path, data: st.DataObject, value: Any) -> None:
    """Anything in the place of anything."""
    bundle = written.with_name("changed")
    shutil.copytree(written, bundle, dirs_exist_ok=True)
    manifest = json.loads((bundle / JSON).read_text())
    del manifest["sha256"]
    places = [*_places(manifest)]
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = value
    manifest["sha256"] = digest_of(manifest)
    (bundle / JSON).write_text(json.dumps(manifest))
    try:
        model = wf.load(bundle)
        for one in model.signatures.values():
            one(X)
    except WeftError:
        return


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from _places(node[key])


@pytest.mark.parametrize("name", ["../x.weft", "/etc/passwd", "a\0.weft", "x.py", "a/b.weft", ""])
def test_names_of_files(bundle: Path, name: str) -> None:
    changed(bundle, lambda m: m["files"].update({name: {"bytes": 1, "sha256": ""}}))
    refused(bundle, "is damaged: it names")


def test_deep_and_long(bundle: Path) -> None:
    (bundle / JSON).write_text("[" * 100_000)
    refused(bundle, "is damaged: bundle.json")
    with open(bundle / JSON, "wb") as file:
        file.truncate(1 << 40)  # a hole, which holds nothing
    refused(bundle, "has more than 16,777,216 bytes")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("multiply(", "nothing("),
        ("%x: f32[n,3]", "%x: f32[n,4]"),
        ("f32[n,3]", "f32[n,1000000000000]"),
        ("f32[n,3]", "f32[m,3]"),
        ("return ", "return %x, "),
    ],
)
def test_another_graph(bundle: Path, old: str, new: str) -> None:
    text = (bundle / TEXT).read_text()
    assert old in text
    with_text(bundle, text.replace(old, new, 1))
    refused(bundle, "is damaged")


def test_a_signature_of_other_types(bundle: Path) -> None:
    """Its graph is whole, and another one."""
    one = {"name": "x", "dtype": "float32", "shape": ["m", 3]}
    changed(bundle, lambda m: m["signatures"]["serving_default"].update(inputs=[one]))
    refused(bundle, "the inputs of 'serving_default' are not those of its graph")


def test_memory_that_a_text_asks_for(bundle: Path) -> None:
    text = "graph @f() -> (f32[1000000,1000000]) stage=traced {{\n  {}\n  return %0\n}}\n"
    entry = {"dtype": "float32", "shape": [1000000, 1000000], "name": "y", "weak": False}

    def change(m: dict[str, Any]) -> None:
        m["signatures"]["serving_default"].update(
            inputs=[], outputs=[entry], parameters=[], result=0, weights=[], updates=[]
        )

    kind = "f32[1000000,1000000]"
    with_text(bundle, text.format(f"%0 = constant() {{value={kind} splat(0.0)}} : {kind}"))
    changed(bundle, change)
    refused(bundle, "splat makes")


def test_files_and_python_functions(bundle: Path, tmp_path: Path) -> None:
    """What a graph may do to files is for who loads it to say."""
    path = tmp_path / "note"
    path.write_bytes(b"abc")

    def read(name: Any) -> Any:
        return wf.tf1.read_file(name)

    wf.export(read, tmp_path / "reader", example=wf.TensorType(wf.string, ()))
    with pytest.raises(wf.errors.PermissionDeniedError, match="op 'read_file'"):
        wf.load(tmp_path / "reader")
    name = np.array(str(path).encode(), object)
    assert wf.load(tmp_path / "reader", allow_files=True)(name).numpy() == b"abc"
    elsewhere = wf.load(tmp_path / "reader", allow_files=tmp_path / "reader")
    with pytest.raises(wf.errors.PermissionDeniedError):
        elsewhere(name)


@given(st.recursive(
    st.just(np.float32(0)) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    | st.dictionaries(st.integers(), inner, max_size=3),
))  # fmt: skip
def test_structures(tree: Any) -> None:
    _, structure = pytree.flatten(tree)
    back, order = structure_from_json(json.loads(json.dumps(structure_to_json(structure, "x"))))
    assert back == structure
    assert order == list(range(pytree.count_leaves(structure)))


@pytest.mark.parametrize(
    "data",
    [
        "*", 1, True, [], {}, {"tuple": 0}, {"dict": [["a"]]}, {"dict": [["a", 0], ["a", 1]]},
        {"dict": [["a", 0], [1, 1]]}, {"dict": [[[], 0]]}, {"list": [0, 0]}, {"list": [1, 2]},
        {"namedtuple": "a b", "fields": ["x"], "parts": [0]}, {"list": [-1]},
        {"namedtuple": "T", "fields": ["_x"], "parts": [0]},
        {"namedtuple": "T", "fields": ["class"], "parts": [0]},
        {"namedtuple": "T", "fields": ["x", "x"], "parts": [0, 1]},
    ],
)  # fmt: skip
def test_no_structures(data: Any) -> None:
    with pytest.raises(DataLossError, match="says nothing of how values nest"):
        structure_from_json(data)


def test_structures_that_nest_too_often() -> None:
    data: Any = 0
    for _ in range(200):
        data = {"tuple": [data]}
    with pytest.raises(DataLossError):
        structure_from_json(data)
    tree: Any = np.float32(0)
    for _ in range(200):
        tree = (tree,)
    with pytest.raises(UnsupportedError, match="nests more than 100 times"):
        structure_to_json(pytree.flatten(tree)[1], "x")
