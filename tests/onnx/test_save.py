"""`wf.onnx.save`: what it takes, what it writes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_runs import check, close, kinds, run_runtime, saved
from paths import ROOT

import weft as wf

F32 = wf.float32
OPEN = wf.TensorType(F32, ("n", 3))
X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Net(wf.nn.Module):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.hidden = {"w": wf.Variable(rng.standard_normal((3, 4)).astype(np.float32))}
        self.b = wf.Variable(np.linspace(-1, 1, 4, dtype=np.float32), trainable=False)

    def __call__(self, x: Any) -> Any:
        with wf.name_scope("first"):
            y = wf.matmul(x, self.hidden["w"]) + self.b
        return wf.nn.dropout(y, 0.5) if self.training else wf.nn.relu(y)


class TestWhatIsSaved:
    def test_a_module(self, tmp_path: Path) -> None:
        """As after eval(), with its variables' names and the user's scopes; in any process."""
        net = Net()
        path = wf.onnx.save(net, tmp_path / "net.onnx", example=OPEN)
        assert path == tmp_path / "net.onnx"
        model = onnx.load(tmp_path / "net.onnx")
        onnx.checker.check_model(model, full_check=True)
        assert kinds(model) == ["Gemm", "Relu"]
        assert [i.name for i in model.graph.initializer] == ["hidden/w", "b"]
        assert [n.name for n in model.graph.node] == ["first/Gemm", "relu/Relu"]
        close(run_runtime(str(path), [X]), [net.eval()(X)])

    def test_what_it_says_of_itself(self) -> None:
        model = saved(Net(), OPEN, opset=23)
        assert (model.producer_name, model.producer_version) == ("weft", wf.__version__)
        assert model.ir_version == 10
        assert [(o.domain, o.version) for o in model.opset_import] == [("", 23)]
        places = [p.value for n in model.graph.node for p in n.metadata_props]
        assert places
        assert all(p.startswith("test_save.py:") for p in places)

    def test_outputs_that_are_called_as_nodes_and_constants(self) -> None:
        """Those within branches, too, whose names onnxruntime takes for those of the graph."""

        def f(x: Any, up: Any) -> Any:
            moved = wf.cond(up, lambda: x + 1.0, lambda: x * 2.0)
            return {"Mul": x - 3.0, "Add": moved, "constant": moved, "x": x}

        model = saved(f, (OPEN, wf.TensorType(wf.bool, ())))
        assert [o.name for o in model.graph.output] == ["Add", "Mul", "constant", "x_1"]
        for up in (True, False):
            got = run_runtime(model, [X, np.asarray(up)])
            close(got, wf.tree_leaves(f(wf.asarray(X), up)))

    def test_names_and_open_sizes(self) -> None:
        def f(image: Any, *, other: dict[str, Any]) -> Any:
            return {"sum": image + other["b"], "parts": [wf.concat([image, image]), other["a"]]}

        kind = wf.TensorType(F32, ("rows", 3))
        model = saved(f, {"image": kind, "other": {"a": wf.TensorType(F32, (None,)), "b": kind}})
        graph = model.graph
        assert [i.name for i in graph.input] == ["image", "other_a", "other_b"]
        assert [o.name for o in graph.output] == ["parts_0", "parts_1", "sum"]
        sizes = [
            [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in graph.output
        ]
        assert sizes == [["2*rows", 3], [sizes[1][0]], ["rows", 3]]
        assert isinstance(sizes[1][0], str)
        got = run_runtime(model, [X, np.ones(5, np.float32), X])
        close(got, [np.concatenate([X, X]), np.ones(5, np.float32), X + X])

    def test_a_compiled_function(self) -> None:
        @wf.compile(static_argnames="up", input_signature=[OPEN])
        def f(x: Any, up: bool = True) -> Any:
            return x + (1 if up else -1)

        close(run_runtime(saved(f), [X]), [X + 1])

    def test_a_graph_and_a_session(self) -> None:
        """Of which several tensors are outputs, by names or themselves."""
        graph = wf.Graph()
        with graph.as_default():
            x = wf.placeholder(F32, (None, 3), "x")
            w = wf.Variable(np.full((3, 2), 2.0, np.float32), name="w")
            y = wf.matmul(x, w)
            z = wf.nn.softmax(y)
            init = wf.global_variables_initializer()
        with wf.Session(graph=graph) as session:
            session.run(init)
            with graph.as_default():
                session.run(w.assign(np.ones((3, 2), np.float32)))
            model = saved(session, signature=({"x": x}, {"scores": z, "logits": y}))
            assert [o.name for o in model.graph.output] == ["scores", "logits"]
            close(run_runtime(model, [X]), session.run([z, y], {x: X}))

    def test_a_bundle(self, tmp_path: Path) -> None:
        net = Net()
        wf.export(net, tmp_path / "net", example=OPEN)
        wf.export(None, tmp_path / "parts", signatures={"score": (lambda x: x * 2, OPEN)})
        close(run_runtime(saved(wf.load(tmp_path / "net")), [X]), [net.eval()(X)])
        close(run_runtime(saved(wf.load(tmp_path / "parts")["score"]), [X]), [X * 2])
        with pytest.raises(wf.errors.InvalidArgumentError, match="bundle\\['score'\\]"):
            wf.onnx.save(wf.load(tmp_path / "parts"))

    def test_a_bundle_by_the_tool(self, tmp_path: Path) -> None:
        wf.export(
            Net(), tmp_path / "net", example=OPEN, signatures={"twice": (lambda x: x * 2, OPEN)}
        )
        told = weft("compile", "net:twice", "--target", "onnx", "-o", "out", cwd=tmp_path)
        assert told.startswith("wrote out/net_twice.onnx"), told
        close(run_runtime(str(tmp_path / "out" / "net_twice.onnx"), [X]), [X * 2])
        told = weft("compile", "net", "--target", "onnx", "--size", "n=3", cwd=tmp_path)
        assert "without --fetch and --size" in told

    def test_a_gradient(self) -> None:
        check(wf.grad(lambda x: wf.sum(wf.tanh(x) ** 2)), OPEN, (X,))

    def test_results_that_are_arguments_and_constants(self) -> None:
        def f(x: Any) -> Any:
            return x, x, wf.ones((2,)), wf.full((x.shape[0],), 3.0), wf.shape(x), x[0]

        model = check(f, OPEN, (X,))
        assert len({o.name for o in model.graph.output}) == 6

    def test_a_result_called_as_an_argument(self) -> None:
        graph = wf.Graph()
        with graph.as_default():
            x = wf.placeholder(F32, (2, 3), "x")
            y = x * 2
        model = saved(graph, signature=({"x": x}, {"x": y, "constant": wf_identity(graph, y)}))
        close(run_runtime(model, [X]), [X * 2, X * 2])

    def test_what_is_written_to_variables_is_left_out(self) -> None:
        count = wf.Variable(0.0, name="count")

        def f(x: Any) -> Any:
            count.assign_add(1.0)
            return x * 2

        assert kinds(saved(f, OPEN)) == ["Mul"]

        def g(x: Any) -> Any:
            return x * count.assign_add(1.0)

        with pytest.raises(wf.errors.UnsupportedError, match=r"^wf.onnx.save: .*'count'"):
            wf.onnx.save(g, example=OPEN)

    def test_without_freezing(self) -> None:
        """Variables are initialisers by their names, and nothing is folded into them."""
        net = Net()
        scale = wf.Variable(np.full(4, 2.0, np.float32), name="scale")

        def f(x: Any) -> Any:
            return wf.matmul(x, net.hidden["w"]) * scale

        assert len(saved(f, OPEN).graph.initializer) == 1
        model = check(f, OPEN, (X,), freeze=False)
        assert kinds(model) == ["MatMul", "Mul"]
        assert "scale" in [i.name for i in model.graph.initializer]

    def test_equal_constants_are_one(self) -> None:
        one, two = np.ones((3, 3), np.float32) * 0.5, np.eye(3, dtype=np.float32)
        model = saved(lambda x: x @ two + x @ wf.asarray(two.copy()) * one[0], OPEN)
        assert [list(i.dims) for i in model.graph.initializer].count([3, 3]) == 1


def wf_identity(graph: wf.Graph, y: Any) -> Any:
    with graph.as_default():
        return y + 0.0


def weft(*words: str, cwd: Path) -> str:
    """What `weft` says."""
    ran = subprocess.run(
        [sys.executable, "-m", "weft", *words], cwd=cwd, env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.stdout + ran.stderr


class TestFiles:
    def big(self) -> Any:
        w = np.random.default_rng(1).standard_normal((300, 300)).astype(np.float32)
        small, empty = np.arange(4, dtype=np.int64), np.zeros((0, 3), np.float32)
        return lambda x: (wf.matmul(x, w), wf.matmul(x[:, :7], w[:7] * 2), small + 1, empty)

    def test_weights_in_a_file_of_their_own(self, tmp_path: Path) -> None:
        x = np.ones((2, 300), np.float32)
        path = tmp_path / "big.onnx"
        wf.onnx.save(self.big(), path, example=(x,), external_data=True)
        assert path.stat().st_size < 4000 < (tmp_path / "big.onnx.data").stat().st_size
        onnx.checker.check_model(str(path), full_check=True)
        wanted = [np.asarray(v) for v in self.big()(wf.asarray(x))]
        close(run_runtime(str(path), [x]), wanted)
        whole = onnx.load(path)  # reads both
        close(run_runtime(whole, [x]), wanted)

    def test_too_many_weights_for_one_message(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules["weft.frontend.onnx.save"], "MOST_INSIDE", 1000)
        x = np.ones((2, 300), np.float32)
        wf.onnx.save(self.big(), tmp_path / "big.onnx", example=(x,))
        assert (tmp_path / "big.onnx.data").exists()
        with pytest.raises(wf.errors.InvalidArgumentError, match="give a path"):
            wf.onnx.save(self.big(), example=(x,))

    def test_a_path_that_is_taken(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        path.write_text("mine")
        with pytest.raises(wf.errors.AlreadyExistsError, match="replace=True"):
            wf.onnx.save(lambda x: x, path, example=OPEN)
        assert path.read_text() == "mine"
        wf.onnx.save(lambda x: x * 2, path, example=OPEN, replace=True)
        close(run_runtime(str(path), [X]), [X * 2])
        (tmp_path / "n.onnx.data").write_text("mine")
        with pytest.raises(wf.errors.AlreadyExistsError, match=r"n\.onnx\.data"):
            wf.onnx.save(lambda x: x, tmp_path / "n.onnx", example=OPEN, external_data=True)
        assert not (tmp_path / "n.onnx").exists()

    def test_a_url(self) -> None:
        pytest.importorskip("fsspec")
        import fsspec

        wf.onnx.save(lambda x: x * 2, "memory://models/twice.onnx", example=OPEN)
        with fsspec.open("memory://models/twice.onnx", "rb") as file:
            model = onnx.load_from_string(file.read())
        close(run_runtime(model, [X]), [X * 2])


class TestErrors:
    def test_all_ops_at_once(self) -> None:
        """Within loops and branches, too, each with its place and what to do."""

        def f(x: Any) -> Any:
            def body(i: Any, y: Any) -> Any:
                wf.print("{}", y)
                return i + 1, y + wf.random.uniform(wf.random.fold_in(wf.random.key(0), i), (3,))

            _, y = wf.while_loop(lambda i, y: i < 3, body, (0, x[0]))
            return y, wf.linalg.qr(x)[0], wf.lgamma(x)

        with pytest.raises(wf.errors.UnsupportedError) as caught:
            wf.onnx.save(f, example=wf.TensorType(F32, (3, 3)))
        told = str(caught.value)
        for op in ("print", "random_bits", "qr", "lgamma"):
            assert f"op '{op}' (" in told, told
        assert told.count("test_save.py:") >= 5
        assert "leave it out of what is exported" in told
        assert "pass what is drawn as an argument" in told

    def test_state_of_the_host(self) -> None:
        graph = wf.Graph()
        with graph.as_default():
            queue = wf.tf1.FIFOQueue(3, [F32], [()])
            y = queue.dequeue() * 2
        with pytest.raises(wf.errors.UnsupportedError, match=r"op 'dequeue' \(.*test_save.py"):
            wf.onnx.save(graph, signature=({}, {"y": y}))

    def test_complex_numbers(self) -> None:
        with pytest.raises(wf.errors.UnsupportedError, match="no complex numbers"):
            wf.onnx.save(lambda x: wf.abs(x * 1j), example=OPEN)

    def test_sizes_without_a_name(self) -> None:
        """Spatial sizes of convolutions are known."""
        w = np.ones((3, 3, 1, 2), np.float32)
        with pytest.raises(wf.errors.WeftError):
            wf.onnx.save(lambda x: wf.nn.conv2d(x, w), example=wf.TensorType(F32, ("b", "h", 8, 1)))

    def test_wrong_arguments(self) -> None:
        with pytest.raises(wf.errors.InvalidArgumentError, match="it is 20 or 23"):
            wf.onnx.save(lambda x: x, example=OPEN, opset=19)
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"^wf\.onnx\.save: .*no example"):
            wf.onnx.save(lambda x: x)
        with pytest.raises(wf.errors.TypeRuleError, match=r"^wf\.onnx\.save takes a function"):
            wf.onnx.save(7, example=OPEN)
        with pytest.raises(wf.errors.InvalidArgumentError, match="of a graph or session"):
            wf.onnx.save(lambda x: x, example=OPEN, signature=({}, {}))
        with pytest.raises(wf.errors.InvalidArgumentError, match="inputs and outputs by name"):
            wf.onnx.save(wf.Graph())
        with pytest.raises(wf.errors.InvalidArgumentError, match="file of their own"):
            wf.onnx.save(lambda x: x, example=OPEN, external_data=True)

    def test_without_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "onnx", None)
        with pytest.raises(wf.errors.UnsupportedError, match=r"weft\[onnx\]"):
            wf.onnx.save(lambda x: x, example=OPEN)


def test_nothing_is_loaded_before_it_is_used() -> None:
    """`wf.onnx` itself needs no package."""
    code = (
        "import sys, weft as wf\n"
        "wf.onnx.save\n"
        "assert 'onnx' not in sys.modules and 'onnxruntime' not in sys.modules\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
