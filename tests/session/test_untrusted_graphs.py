"""Graphs that somebody else wrote: what they name is neither shown, read nor written unasked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft as wf
from weft.frontend.tools.main import main
from weft.ir.analysis.verify import verify
from weft.ir.graph import Graph as IRGraph
from weft.ir.locations import Location
from weft.ir.ops.builder import Builder
from weft.ir.ops.io import USES_FILES
from weft.ir.spec import ConstArray
from weft.ir.text.parser import parse_graph
from weft.ir.text.printer import print_graph
from weft.ir.types import TensorType
from weft.runtime.cluster.part import read_part
from weft.runtime.files.permissions import confined, grant
from weft.runtime.resources.store import Store

PermissionDeniedError = wf.errors.PermissionDeniedError


# ------------------------------------------------------------------------------- places (loc(...))
@pytest.mark.parametrize("kind", ["device", "pipe", "file"])
def test_a_place_in_a_file_shows_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    named = Path("/dev/zero") if kind == "device" else tmp_path / "secret.py"
    if kind == "pipe":
        os.mkfifo(named)
    elif kind == "file":
        named.write_text("password\n")
    text = f'graph @g(%x: f32[2]) -> (f32[3]) stage=traced {{\n  %y = exp(%x) : f32[3] loc("{named}":1:1)\n  return %y\n}}\n'  # noqa: E501
    (tmp_path / "g.weft").write_text(text)
    status: list[int] = []
    thread = threading.Thread(
        target=lambda: status.append(main(["run", str(tmp_path / "g.weft"), "--seed", "0"])),
        daemon=True,
    )
    thread.start()
    thread.join(20)
    assert status == [2], "an error waits for the file that it is said to be in"
    said = capsys.readouterr().err
    assert "exp" in said
    assert "password" not in said
    assert Location(str(named), 1, 1).describe() == f"{named}:1:1"


def test_the_users_own_lines_are_shown() -> None:
    with pytest.raises(wf.errors.ShapeError, match=r"wf\.matmul\(np\.zeros") as caught:
        wf.matmul(np.zeros((2, 3)), np.zeros((2, 3)))
    (place,) = caught.value.locations
    assert "wf.matmul(np.zeros" in place.describe()
    exec(compile("import weft as wf\nwf.name_tensor", "/dev/zero", "exec"), {})
    namespace: dict[str, Any] = {"wf": wf}
    exec(compile("def f(): wf.matmul(1.0, 2.0)", "/dev/zero", "exec"), namespace)
    with pytest.raises(wf.errors.WeftError, match="/dev/zero:1"):
        namespace["f"]()


# ------------------------------------------------------------------------------- leave to use files
def file_graph() -> str:
    """A graph with every op that uses files."""
    with wf.Graph("files").as_default() as graph:
        name = wf.placeholder(wf.string, [], name="name")
        wf.name_tensor(wf.read_file(name), "text")
        wf.write_file(name, wf.constant("written"), name="write")
        wf.name_tensor(wf.matching_files(name), "matching")
        queue = wf.FIFOQueue(9, wf.string, [[]], name="names")
        queue.enqueue(name, name="put")
        wf.name_tensor(wf.WholeFileReader().read(queue)[1], "record")
        v = wf.Variable(1.0, name="v")
        wf.train.Saver([v]).build()
        wf.global_variables_initializer()
    return graph.as_text()


def ops_of(text: str) -> set[str]:
    return {op.name for op in parse_graph(text).walk()} & USES_FILES


def test_files_need_leave(tmp_path: Path) -> None:
    text = file_graph()
    assert ops_of(text) == USES_FILES
    for wrong in (None, False, [], ()):
        with pytest.raises(PermissionDeniedError, match="allow_files='DIR'"):
            wf.Graph.from_text(text, allow_files=wrong)
    (tmp_path / "g.weft").write_text(text)
    with pytest.raises(PermissionDeniedError, match="test_untrusted_graphs"):
        wf.Graph.load(tmp_path / "g.weft")
    with pytest.raises(wf.errors.InvalidArgumentError, match="neither a folder"):
        wf.Graph.from_text(text, allow_files=3)  # type: ignore[arg-type]
    with wf.Graph().as_default() as graph:
        with pytest.raises(PermissionDeniedError):
            wf.import_graph_def(text)
        with wf.Session() as session, pytest.raises(PermissionDeniedError):
            session.extend(text)
        assert not graph.resources
        wf.import_graph_def(text, name="in", allow_files=tmp_path)
        with wf.Session() as session:
            session.extend(text, name="ex", allow_files=True)
    for name in USES_FILES:  # each alone
        graph_of_one = parse_graph(text)
        for op in graph_of_one.walk():
            op.name = op.name if op.name == name else "other"
        with pytest.raises(PermissionDeniedError, match=f"op '{name}'"):
            grant(graph_of_one, None)


def test_a_folder_bounds_what_they_use(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a").write_text(f"text {folder.name}")
    (inside / "link").symlink_to(outside / "a")
    first = wf.Graph.from_text(file_graph(), allow_files=inside)
    again = wf.Graph.from_text(first.as_text(), allow_files=True)  # its bound is in its text
    for graph in (first, again):
        with wf.Session(graph=graph) as session:
            session.run("init")
            ok = {"name": str(inside / "a")}
            assert session.run("text", ok).startswith(b"text in")
            assert session.run("matching", {"name": f"{inside}/[a]"}).tolist() == [
                os.fsencode(inside / "a")
            ]
            session.run("put", ok)
            assert session.run("record").startswith(b"text in")
            bad = [outside / "a", inside / ".." / "out" / "a", inside / "link", Path("/etc/passwd")]
            for path in bad:
                fed = {"name": str(path)}
                for fetch in ("text", "write", "matching"):
                    with pytest.raises(PermissionDeniedError, match="may not use the file"):
                        session.run(fetch, fed)
                session.run("put", fed)
                with pytest.raises(PermissionDeniedError, match="may not use the file"):
                    session.run("record")
            with pytest.raises(PermissionDeniedError):
                session.run("matching", {"name": f"{inside}/../out/*"})
            with pytest.raises(PermissionDeniedError):
                session.run("matching", {"name": f"{inside}*"})
            assert (outside / "a").read_text() == "text out"
    with pytest.raises(PermissionDeniedError, match=f"uses files in {inside}"):
        wf.Graph.from_text(first.as_text(), allow_files=outside)


def test_checkpoints_of_a_graph_stay_in_the_folder(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        wf.train.Saver([wf.Variable(1.0, name="v")]).build()
        wf.global_variables_initializer()
    loaded = wf.Graph.from_text(graph.as_text(), allow_files=tmp_path / "in")
    with wf.Session(graph=loaded) as session:
        session.run("init")
        for fetch in ("save", "restore_all"):
            session.run(fetch, {"filename": str(tmp_path / "in" / "m")})
        (tmp_path / "m.safetensors").write_bytes((tmp_path / "in/m.safetensors").read_bytes())
        for fetch in ("save", "restore_all"):
            with pytest.raises(PermissionDeniedError):
                session.run(fetch, {"filename": str(tmp_path / "m")})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["a", "..", ".", "", "up", "in"]), max_size=6))
def test_confined_follows_dots_and_links(tmp_path_factory: Any, parts: list[str]) -> None:
    root = tmp_path_factory.getbasetemp() / "confined"
    if not root.exists():
        (root / "in" / "a").mkdir(parents=True)
        (root / "in" / "up").symlink_to(root)
        (root / "in-side").mkdir()
    path = os.path.join(root, "in", *parts)
    inside = (root / "in").resolve() in [Path(path).resolve(), *Path(path).resolve().parents]
    try:
        assert confined(path, [str(root / "in")]) == path
        assert inside
    except PermissionDeniedError:
        assert not inside
    with pytest.raises(PermissionDeniedError):
        confined(str(root / "in-side" / "x"), [str(root / "in")])


@pytest.mark.parametrize("compiled", [[], ["--compiled"]], ids=["interpreted", "compiled"])
def test_the_command_line_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compiled: list[str]
) -> None:
    (tmp_path / "secret").write_text("password")
    with wf.Graph().as_default() as graph:
        wf.name_tensor(wf.read_file(str(tmp_path / "secret")), "y")
    (tmp_path / "g.weft").write_text(print_graph(graph.ir([graph._named["y"]])))
    run = ["run", str(tmp_path / "g.weft"), "--print", *compiled]
    assert main(run) == 2
    said = capsys.readouterr()
    assert "password" not in said.out + said.err
    assert "--allow-files DIR" in said.err
    if compiled:
        assert main([*run, "--allow-files", str(tmp_path / "other")]) == 2
        assert main([*run, "--allow-files", "/else", "--allow-files", str(tmp_path)]) == 0
        assert "password" in capsys.readouterr().out


@pytest.mark.slow
# ----------------------------------------------------------------------------------------- clusters
def test_a_task_gives_no_leave_to_whom_it_does_not_know(tmp_path: Path) -> None:
    """Graphs of another process: refused on a loopback port without a secret, unless said."""
    client = (
        "import sys, weft as wf\n"
        "target, key = sys.argv[1], sys.argv[2] or None\n"
        "y = wf.read_file(sys.argv[3])\n"
        "with wf.Graph().as_default():\n"
        "    y = wf.read_file(wf.constant(sys.argv[3]))\n"
        "    with wf.Session(cluster=wf.train.Cluster(target, key_file=key)) as session:\n"
        "        try:\n"
        "            print(session.run(y))\n"
        "        except wf.errors.PermissionDeniedError as error:\n"
        "            print('denied', error.hint)\n"
    )
    secret, key = tmp_path / "secret", tmp_path / "key"
    secret.write_text("password")
    assert main(["keygen", str(key)]) == 0
    cases: list[tuple[str, dict[str, Any], bool]] = [
        ("127.0.0.1:0", {}, False),
        ("127.0.0.1:0", {"allow_files": tmp_path}, True),
        ("127.0.0.1:0", {"allow_files": tmp_path / "other"}, False),
        ("127.0.0.1:0", {"key_file": key}, True),
        ("127.0.0.1:0", {"key_file": key, "allow_files": False}, False),
        (f"ipc://{tmp_path}/socket", {}, True),
    ]
    for address, options, allowed in cases:
        with wf.train.Server({"local": [address]}, **options) as server:
            given_key = str(options.get("key_file", ""))
            done = subprocess.run(
                [sys.executable, "-c", client, server.target, given_key, str(secret)],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            assert ("password" in done.stdout) == allowed, (address, options, done.stdout)
            cluster = wf.train.Cluster(server.target, key_file=options.get("key_file"))
            with wf.Graph().as_default(), wf.Session(cluster=cluster) as here:
                if options.get("allow_files") is None:  # a session of this process
                    assert here.run(wf.read_file(wf.constant(str(secret)))) == b"password"


def test_parts_are_bound_to_the_folders_of_the_task(tmp_path: Path) -> None:
    with wf.Graph().as_default() as graph:
        wf.name_tensor(wf.read_file("/etc/passwd"), "y")
    text = graph.as_text()
    with pytest.raises(PermissionDeniedError, match="weft worker --allow-files DIR"):
        read_part(text, [], Store("t"), {}, frozenset(), "structured")
    bound = grant(grant(parse_graph(file_graph()), tmp_path), [tmp_path / "a", "/else"])
    bounds = {op.attrs["within"] for op in bound.walk() if op.name in USES_FILES}
    assert bounds == {(str((tmp_path / "a").resolve()),)}


# ----------------------------------------------------------------------------------------- literals
def test_strings_in_constants_are_bytes() -> None:
    text = 'graph @g() -> (string[]) stage=traced {\n  %y = constant() {value=string[] "a"} : string[]\n  return %y\n}\n'  # noqa: E501
    with pytest.raises(wf.errors.ParseError, match='bytes in quotes after b, as in b"text"'):
        parse_graph(text)
    assert parse_graph(text.replace('"a"', 'b"a"')).ops
    builder = Builder([])
    builder.emit("constant", [], {"value": ConstArray(np.array(["a", b"b"], object))})
    made = IRGraph("g", builder.block([builder.ops[0].result]), (), "traced")
    assert made.results[0].type == TensorType(wf.string, (2,))
    with pytest.raises(wf.errors.VerifyError, match="no byte strings"):
        verify(made)
