"""Bundles: what a model gives in the process that exported it, and in one without its source."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from paths import ROOT

import weft as wf
from weft.frontend.bundle.load import Bundle

F32 = wf.float32
OPEN = wf.TensorType(F32, ("n", 3))


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Parts:
    z: Any
    a: Any


class Net(wf.nn.Module):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.hidden = {"w": wf.Variable(rng.standard_normal((3, 4)).astype(np.float32))}
        self.b = wf.Variable(np.linspace(-1, 1, 4, dtype=np.float32), trainable=False)

    def __call__(self, x: Any) -> Any:
        y = wf.matmul(x, self.hidden["w"]) + self.b
        return wf.nn.dropout(y, 0.5) if self.training else wf.nn.relu(y)


def exported(path: Path, model: Any, example: Any = None, **more: Any) -> Bundle:
    wf.export(model, path / "model", example=example, **more)
    return wf.load(path / "model")


def bits(tree: Any) -> Any:
    return wf.tree_map(lambda x: (np.asarray(x).dtype, np.asarray(x).tobytes()), tree)


def x_of(rows: int) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, 3)).astype(np.float32)


class TestFunctions:
    def test_a_module_in_another_process(self, tmp_path: Path) -> None:
        """The same bits, with nothing of this module there, from any folder."""
        model = Net()
        here = wf.compile(lambda x: model.eval()(x), input_signature=[OPEN])
        wf.export(model, tmp_path / "model", example=OPEN)
        np.save(tmp_path / "x.npy", x_of(5))
        code = (
            "import sys, numpy as np, weft as wf\n"
            "m = wf.load('model')\n"
            "assert 'test_bundle' not in sys.modules\n"
            "print(sorted(m.variables), m.trainable_variables()[0].name)\n"
            "np.save('y.npy', m(np.load('x.npy')))\n"
        )
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        assert told.stdout.strip() == "['b', 'hidden/w'] hidden/w"
        assert bits(np.load(tmp_path / "y.npy")) == bits(here(x_of(5)))

    def test_open_sizes(self, tmp_path: Path) -> None:
        """One trace for all sizes, 0 and 1 among them; not for other ones."""
        model = exported(tmp_path, lambda x: wf.sum(x * 2, axis=1), OPEN)
        for rows in (0, 1, 2, 7):
            assert bits(model(x_of(rows))) == bits(wf.sum(wf.asarray(x_of(rows)) * 2, axis=1))
        with pytest.raises(wf.errors.InvalidArgumentError, match=r"argument x .* says f32\[n,3\]"):
            model(np.ones((2, 4), np.float32))

    def test_how_values_nest(self, tmp_path: Path) -> None:
        def f(pair: Pair, *, named: dict[str, Any], more: list[Any]) -> Any:
            total = pair.left + pair.right + named["b"] - named["a"]
            return (
                [total, (more[0],)], None, Pair(pair.right, more[0] * 2),
                Parts(z=total * 3, a=more[0] * 5), OrderedDict(z=total, a=more[0]), {7: total},
            )  # fmt: skip

        kind = wf.TensorType(F32, ())
        given = {
            "pair": Pair(kind, kind), "named": {"b": kind, "a": kind}, "more": [kind],
        }  # fmt: skip
        model = exported(tmp_path, f, given)
        one, two, three, four, five = (np.float32(i) for i in (1, 2, 4, 8, 16))
        calls = {"named": {"b": three, "a": four}, "more": [five]}
        got = model(Pair(one, two), **calls)
        wanted = f(wf.tree_map(wf.asarray, Pair(one, two)), **wf.tree_map(wf.asarray, calls))
        assert bits(got[:3]) == bits(wanted[:3])
        assert type(got[2]).__name__ == "Pair"
        assert float(got[2].left) == 2.0
        assert got[1] is None
        assert {k: float(v) for k, v in got[3].items()} == {"z": -3.0, "a": 80.0}
        assert list(got[4]) == ["z", "a"]
        assert type(got[4]) is OrderedDict
        assert {k: float(v) for k, v in got[5].items()} == {7: -1.0}
        with pytest.raises(wf.errors.WeftError):
            model(Pair(one, two), named={"b": three}, more=[five])

    def test_weak_results_stay_weak(self, tmp_path: Path) -> None:
        model = exported(tmp_path, lambda x: (2.5, wf.sum(x)), OPEN)
        two, _ = model(x_of(2))
        assert (two + wf.ones([1], dtype=wf.float16)).dtype is wf.float16

    def test_a_compiled_function_with_a_signature(self, tmp_path: Path) -> None:
        kinds = [wf.TensorType(F32, (None,)), wf.TensorType(wf.int64, ())]

        @wf.compile(static_argnames="up", input_signature=kinds)
        def f(x: Any, k: Any, up: bool = True) -> Any:
            return x * wf.astype(k, F32) + (1 if up else -1)

        model = exported(tmp_path, f)
        assert model(np.ones(2, np.float32), np.int64(3)).numpy().tolist() == [4, 4]
        assert str(inspect.signature(model["serving_default"])) == "(x, k)"

    def test_several_signatures_share_variables(self, tmp_path: Path) -> None:
        w = wf.Variable(2.0, name="w")

        def up(x: Any) -> Any:
            return x + w.assign_add(1.0)

        scalar = wf.TensorType(F32, ())
        wf.export(None, tmp_path / "m", signatures={"up": (up, scalar), "read": lambda: w.read()})
        model = wf.load(tmp_path / "m")
        assert list(model.variables) == ["w"]
        assert float(model["up"](np.float32(10))) == 13.0
        assert float(model["read"]()) == 3.0
        assert float(w) == 2.0
        with pytest.raises(wf.errors.NotFoundError, match="no signature 'raed'; did you mean"):
            model["raed"]
        with pytest.raises(wf.errors.NotFoundError, match="it has: up, read"):
            model(1.0)

    def test_what_is_written_is_written_in_order(self, tmp_path: Path) -> None:
        v = wf.Variable(np.arange(3, dtype=np.float32), name="v")
        seen = wf.Variable(np.int64(0), name="seen", trainable=False)

        def f(x: Any) -> Any:
            first = v.read()
            v.assign(v * x)
            seen.assign_add(1)
            v.assign_sub(wf.ones([3]))
            return first, v.read(), seen.read()

        model = exported(tmp_path, f, wf.TensorType(F32, ()))
        same = wf.compile(f)
        for k in (2, 3):
            assert bits(model(np.float32(k))) == bits(same(np.float32(k)))
        assert bits(model.variables["v"].read()) == bits(v.read())
        assert not model.variables["seen"].trainable

    def test_random_numbers_go_on(self, tmp_path: Path) -> None:
        """The generator of the bundle is its own, and begins where the one here was."""
        wf.tf1.set_random_seed(7)
        f = wf.compile(lambda x: wf.nn.dropout(x, 0.5))
        model = exported(tmp_path, lambda x: wf.nn.dropout(x, 0.5), OPEN)
        first, second = model(x_of(50)), model(x_of(50))
        assert bits(first) == bits(f(x_of(50)))
        assert bits(second) == bits(f(x_of(50))) != bits(first)

    @pytest.mark.share(2)
    @pytest.mark.parametrize(
        "f",
        [
            lambda x: wf.cond(wf.sum(x) > 0, lambda: x + 1, lambda: x * 2),
            lambda x: wf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * y), (0, x)),
            lambda x: wf.scan(lambda c, row: (c + row, c * row), x[0], x),
            lambda x: wf.nonzero(x > 0)[0] * 2,
            lambda x: wf.linalg.eigvalsh(wf.matrix_transpose(x) @ x),
            lambda x: wf.strings.as_string(wf.astype(wf.sum(x), wf.int64)),
            lambda x: (wf.unique_values(wf.round(x)), wf.sort(x, axis=0), wf.argmax(x)),
            lambda x: wf.fft.rfft(x, axis=1),
        ],
    )
    def test_control_flow_and_sizes_of_values(self, tmp_path: Path, f: Callable[..., Any]) -> None:
        model = exported(tmp_path, f, OPEN)
        same = wf.compile(f, input_signature=[OPEN])
        for rows in (2, 5):
            assert bits(model(x_of(rows))) == bits(same(x_of(rows)))

    def test_a_part_of_others(self, tmp_path: Path) -> None:
        """Gradients, maps, other functions, sessions, and training on."""
        net = Net()
        model = exported(tmp_path, net, OPEN)
        x = x_of(4)

        def loss(x: Any, f: Any) -> Any:
            return wf.sum(wf.square(f(x)))

        for of in (wf.grad, lambda g: wf.vmap(wf.grad(g, argnums=0), in_axes=(0, None))):
            given = wf.asarray(x)[:, None, :] if of is not wf.grad else wf.asarray(x)
            ours = of(lambda x, _: loss(x, model))(given, 0.0)
            own = of(lambda x, _: loss(x, lambda x: net.eval()(x)))(given, 0.0)
            np.testing.assert_allclose(np.asarray(ours), np.asarray(own), rtol=1e-6)
        twice = wf.compile(lambda x: model(model(x)[:, :3]))
        assert twice(x).shape == (4, 4)
        with wf.Graph().as_default(), wf.Session() as session:
            fed = wf.placeholder(F32, [None, 3])
            y = model(fed)
            session.run(wf.global_variables_initializer())
            got = session.run(y, {fed: x})
        assert bits(got) == bits(model(x))
        optimizer = wf.train.Adam(0.1)

        @wf.compile
        def step(x: Any) -> Any:
            value = loss(x, model)
            optimizer.minimize(value, model.trainable_variables())
            return value

        losses = [float(step(x)) for _ in range(5)]
        assert losses[-1] < losses[0]
        assert float(wf.sum(wf.square(wf.asarray(model(x))))) < losses[-1]

    def test_shapes_are_checked_in_traces(self, tmp_path: Path) -> None:
        model = exported(tmp_path, lambda x, y: x @ y, (OPEN, wf.TensorType(F32, (3, "n"))))
        with pytest.raises(wf.errors.ShapeError, match=r"'x' of 'serving_default' is f32\[2,4\]"):
            wf.compile(lambda: model(wf.ones([2, 4]), wf.ones([3, 2])))()
        with pytest.raises(wf.errors.TypeRuleError, match=r"'y' of .* is f64\[3,2\]"):
            wf.compile(lambda: model(wf.ones([2, 3]), wf.ones([3, 2], dtype=wf.float64)))()
        with pytest.raises(wf.errors.ShapeError, match="sizes 2 and 5 for 'n'"):
            wf.compile(lambda: model(wf.ones([2, 3]), wf.ones([3, 5])))()

    def test_large_constants_are_weights(self, tmp_path: Path) -> None:
        """Each once, whatever signatures use it; the text of the graph stays short."""
        table = wf.asarray(np.arange(6000, dtype=np.float32).reshape(2000, 3))
        words = np.array([f"word {i}".encode() for i in range(300)], object)
        model = exported(
            tmp_path, lambda i: wf.take(table, i, axis=0), wf.TensorType(wf.int64, ("k",)),
            signatures={"sum": (lambda x: wf.sum(table) + x, wf.TensorType(F32, ())),
                        "word": (lambda i: wf.take(words, i), wf.TensorType(wf.int64, ("k",)))},
        )  # fmt: skip
        assert model(np.array([3, 1])).numpy().tolist() == [[9, 10, 11], [3, 4, 5]]
        assert float(model["sum"](np.float32(0))) == float(wf.sum(table))
        assert model["word"](np.array([7])).numpy().tolist() == [b"word 7"]
        assert sorted(model.manifest["weights"]) == ["constant", "constant_1"]
        assert not model.variables
        assert (tmp_path / "model" / "serving_default.weft").stat().st_size < 2000

    def test_no_folder_of_this_machine_is_in_it(self, tmp_path: Path) -> None:
        exported(tmp_path, Net(), OPEN)
        text = "".join(p.read_text() for p in (tmp_path / "model").glob("*.[wj]*"))
        assert 'file test_bundle = "test_bundle.py"' in text
        assert str(ROOT) not in text

    def test_a_url(self) -> None:
        url = f"memory://bundles/{np.random.default_rng().integers(1 << 60)}"
        wf.export(lambda x: x * 2, url, example=OPEN)
        assert bits(wf.load(url)(x_of(2))) == bits(wf.asarray(x_of(2)) * 2)
        with pytest.raises(wf.errors.AlreadyExistsError):
            wf.export(lambda x: x * 2, url, example=OPEN)


class TestGraphs:
    def build(self) -> tuple[Any, Any, Any]:
        x = wf.placeholder(F32, ["batch", 3], name="x")
        w = wf.Variable(wf.ones([3, 2]), name="w")
        y = wf.name_tensor(wf.matmul(x, w), "y")
        return x, w, y

    def test_a_session(self, tmp_path: Path) -> None:
        """What leads from the inputs to the outputs, with the values that this session has."""
        with wf.Graph().as_default() as graph, wf.Session(own_variables=True) as session:
            x, w, y = self.build()
            train = w.assign_add(wf.ones([3, 2]))
            session.run(wf.global_variables_initializer())
            session.run(train)
            wf.export(session, tmp_path / "m", signatures={
                "serving_default": ({"rows": x}, {"y": y}),
                "by_name": ({"y": "y:0"}, {"half": y / 2}),
            })  # fmt: skip
            wanted = session.run(y, {x: x_of(4)})
        model = wf.load(tmp_path / "m")
        assert bits(model(x_of(4))["y"]) == bits(model(rows=x_of(4))["y"]) == bits(wanted)
        assert bits(model["by_name"](wanted)["half"]) == bits(wanted / 2)
        assert model["by_name"].cache_info().made == 1
        del graph

    def test_what_is_written(self, tmp_path: Path) -> None:
        with wf.Graph().as_default() as graph:
            v = wf.Variable(np.float32(1), name="v")
            x = wf.placeholder(F32, [], name="x")
            new = v.assign_add(x)
            wf.Session().run(wf.global_variables_initializer())
            wf.export(graph, tmp_path / "m", signatures={"add": ({"x": x}, {"new": new})})
        model = wf.load(tmp_path / "m")
        assert [float(model["add"](np.float32(2))["new"]) for _ in range(2)] == [3, 5]

    def test_errors(self, tmp_path: Path) -> None:
        with wf.Graph().as_default() as graph:
            x, _, y = self.build()
            z = y + wf.placeholder(F32, [], name="z")

            def export(*given: Any) -> None:
                wf.export(graph, tmp_path / "m", signatures={"s": given})

            with pytest.raises(wf.errors.InvalidArgumentError, match=r"'z'.* must be fed"):
                export({"x": x}, {"z": z})
            with pytest.raises(wf.errors.FailedPreconditionError, match="'w'"):
                export({"x": x}, {"y": y})  # no initializer ran
            with pytest.raises(wf.errors.NotFoundError, match="'yy'"):
                export({"x": x}, {"y": "yy"})
            with pytest.raises(wf.errors.TypeRuleError, match="pair of dicts"):
                export([x], [y])
            with pytest.raises(wf.errors.InvalidArgumentError, match="named 'a b'"):
                export({"a b": x}, {"y": y})
            with pytest.raises(wf.errors.InvalidArgumentError, match="nothing to export"):
                wf.export(graph, tmp_path / "m")
        assert not (tmp_path / "m").exists()


def test_sizes_that_meet(tmp_path: Path) -> None:
    """Open sizes of one name may be open sizes of two elsewhere, checked when it runs."""
    kind = wf.TensorType(F32, ("n",))
    model = exported(tmp_path, lambda a, b: a + b, (kind, kind))
    ones, twos = np.ones(3, np.float32), np.full(3, 2, np.float32)
    with wf.Graph().as_default(), wf.Session() as session:
        a, b = (wf.placeholder(F32, [None]) for _ in range(2))
        y = model(a, b)
        assert session.run(y, {a: ones, b: twos}).tolist() == [3, 3, 3]
        with pytest.raises(wf.errors.ShapeError):
            session.run(y, {a: ones, b: twos[:2]})
    masked = wf.compile(lambda x, z: model(x[x > 0], z[z > 0]))
    assert masked(ones, twos).numpy().tolist() == [3, 3, 3]


class TestErrors:
    def refused(self, tmp_path: Path, kind: type, match: str, model: Any, example: Any) -> None:
        with pytest.raises(kind, match=match) as caught:
            wf.export(model, tmp_path / "m", example=example)
        assert not any(tmp_path.iterdir())
        assert __file__ in str(caught.value)

    def test_what_only_this_process_has(self, tmp_path: Path) -> None:
        odd = wf.elementwise(lambda x: x if x > 1 else 0.0)
        queue = wf.tf1.FIFOQueue(3, [F32], [[]])
        py = wf.errors.UnsupportedError
        self.refused(tmp_path, py, "calls Python",
                     lambda x: wf.py_function(np.sin, [x], F32, [4, 3]), OPEN)  # fmt: skip
        self.refused(tmp_path, py, "needs code of yours", lambda x: odd(x), OPEN)
        self.refused(tmp_path, py, "lives in this process only", lambda x: queue.dequeue(), OPEN)
        op = wf.register_op("bundle_double", elementwise=True, reference=lambda x: x + x)
        try:
            self.refused(tmp_path, py, "op 'bundle_double'", op, OPEN)
        finally:
            from weft.frontend.extend.ops import unregister_op

            unregister_op("bundle_double")

    def test_examples(self, tmp_path: Path) -> None:
        bad = wf.errors.InvalidArgumentError
        self.refused(tmp_path, bad, "cannot be called with its example", lambda x, y: x, OPEN)
        self.refused(tmp_path, bad, "has no example", lambda x: x, None)
        self.refused(tmp_path, wf.errors.TypeRuleError, "has 3 at k",
                     lambda x, k: x, (OPEN, 3))  # fmt: skip
        self.refused(tmp_path, wf.errors.UnsupportedError, "any number of arguments",
                     lambda *xs: xs[0], (OPEN, OPEN))  # fmt: skip
        self.refused(tmp_path, wf.errors.TypeRuleError, "takes a function", 3, None)
        self.refused(tmp_path, wf.errors.TypeRuleError, "returned a object",
                     lambda x: object(), OPEN)  # fmt: skip

    def test_names_that_python_keeps(self, tmp_path: Path) -> None:
        """What is written can be loaded."""

        class _Hidden(NamedTuple):
            a: Any

        model = exported(tmp_path, lambda x: (_Hidden(x), OrderedDict([("b", x), (1, x)])), OPEN)
        hidden, ordered = model(x_of(1))
        assert bits(hidden.a) == bits(ordered[1]) == bits(ordered["b"]) == bits(x_of(1))
        with wf.Graph().as_default() as graph:
            y = wf.placeholder(F32, [], name="y")
            with pytest.raises(wf.errors.InvalidArgumentError, match="named 'lambda'"):
                wf.export(graph, tmp_path / "g", signatures={"s": ({"lambda": y}, {"y": y})})

    def test_a_loaded_model_again(self, tmp_path: Path) -> None:
        w = wf.Variable(np.float32(3), name="__metadata__")
        model = exported(tmp_path, lambda x: x * w.assign_add(1.0), OPEN)
        model(x_of(1))
        wf.export(model, tmp_path / "again")
        assert bits(wf.load(tmp_path / "again")(x_of(1))) == bits(x_of(1) * np.float32(5))

    def test_a_link_is_followed(self, tmp_path: Path) -> None:
        wf.export(lambda x: x, tmp_path / "v1", example=OPEN)
        (tmp_path / "current").symlink_to("v1")
        wf.export(lambda x: x + 1, tmp_path / "current", example=OPEN, replace=True)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["current", "v1"]
        assert (tmp_path / "current").is_symlink()
        assert bits(wf.load(tmp_path / "v1")(x_of(1))) == bits(x_of(1) + np.float32(1))

    def test_the_old_one_stays_where_a_rename_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wf.export(lambda x: x, tmp_path / "m", example=OPEN)
        rename, calls = os.rename, []

        def failing(a: Any, b: Any) -> None:
            calls.append(a)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            rename(a, b)

        monkeypatch.setattr(os, "rename", failing)
        with pytest.raises(wf.errors.FailedPreconditionError, match="No space left"):
            wf.export(lambda x: x + 1, tmp_path / "m", example=OPEN, replace=True)
        assert [p.name for p in tmp_path.iterdir()] == ["m"]
        assert bits(wf.load(tmp_path / "m")(x_of(1))) == bits(x_of(1))

    def test_what_is_there_already(self, tmp_path: Path) -> None:
        path = tmp_path / "m"
        wf.export(lambda x: x, path, example=OPEN)
        with pytest.raises(wf.errors.AlreadyExistsError, match="replace=True"):
            wf.export(lambda x: x + 1, path, example=OPEN)
        wf.export(lambda x: x + 1, path, example=OPEN, replace=True)
        assert bits(wf.load(path)(x_of(1))) == bits(x_of(1) + np.float32(1))
        assert [p.name for p in tmp_path.iterdir()] == ["m"]
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        with pytest.raises(wf.errors.AlreadyExistsError, match="it is no bundle"):
            wf.export(lambda x: x, tmp_path / "other", example=OPEN, replace=True)

    def test_names(self, tmp_path: Path) -> None:
        for name in ("", "../up", "a/b", "x" * 101, 3):
            with pytest.raises(wf.errors.InvalidArgumentError, match="no name for a signature"):
                wf.export(None, tmp_path / "m", signatures={name: (lambda x: x, OPEN)})  # type: ignore[dict-item]


class TestFrozen:
    def test_no_variables(self, tmp_path: Path) -> None:
        model = exported(tmp_path, Net(), OPEN, freeze=True)
        assert not model.variables
        assert repr(model) == f"<bundle {tmp_path}/model: serving_default(x); 0 variables>"
        wf.export(Net(), tmp_path / "live", example=OPEN)
        np.testing.assert_allclose(
            np.asarray(model(x_of(3))), np.asarray(wf.load(tmp_path / "live")(x_of(3))), rtol=1e-6
        )

    def test_what_it_writes_is_left_out(self, tmp_path: Path) -> None:
        count = wf.Variable(np.int64(0))

        def f(x: Any) -> Any:
            count.assign_add(1)
            return x * 2

        model = exported(tmp_path, f, OPEN, freeze=True)
        assert bits(model(x_of(2))) == bits(x_of(2) * np.float32(2))
        assert not model.manifest["weights"]
        with pytest.raises(wf.errors.UnsupportedError, match="which each call changes"):
            wf.export(lambda x: wf.nn.dropout(x), tmp_path / "x", example=OPEN, freeze=True)

    def test_deep_networks(self, tmp_path: Path) -> None:
        """All scales of 60 layers are folded, in one walk."""
        rng = np.random.default_rng(4)
        layers = [[wf.Variable((rng.random(s) + 0.5).astype(np.float32))
                   for s in ((5, 5), 5, 5, 5)] for _ in range(60)]  # fmt: skip

        def f(x: Any) -> Any:
            for w, mean, scale, offset in layers:
                x = wf.nn.relu((wf.matmul(x, w / 5) - mean) * scale + offset)
            return x

        model = exported(tmp_path, f, wf.TensorType(F32, ("n", 5)), freeze=True)
        text = (tmp_path / "model" / "serving_default.weft").read_text()
        assert text.count("multiply(") == 0
        assert text.count("matmul(") == 60
        x = rng.random((2, 5)).astype(np.float32)
        np.testing.assert_allclose(np.asarray(model(x)), np.asarray(f(wf.asarray(x))), rtol=1e-4)

    @pytest.mark.share(2)
    @pytest.mark.parametrize(
        ("dtype", "scale", "weight"),
        [("float16", 200.0, 1000.0), ("float16", 1e-4, 1e-3), ("float32", np.inf, 1.0),
         ("float32", 0.0, 1.0), ("float32", 1e-30, 1e-15)],
    )  # fmt: skip
    def test_scales_that_weights_do_not_hold(
        self, tmp_path: Path, dtype: str, scale: float, weight: float
    ) -> None:
        w = wf.asarray(np.full((2, 3), weight, dtype))
        x = np.array([[1e-3, -2e-3]], dtype)

        def f(x: Any) -> Any:
            return wf.matmul(x, w) * np.array([scale] * 3, dtype)

        model = exported(tmp_path, f, x, freeze=True)
        assert bits(model(x)) == bits(wf.compile(f)(x))

    def test_weights_that_two_products_share(self, tmp_path: Path) -> None:
        w = wf.Variable(np.arange(1600, dtype=np.float32).reshape(40, 40))
        model = exported(
            tmp_path, lambda x: (wf.matmul(x, w) * 2, wf.matmul(x, w * 1) * 3),
            wf.TensorType(F32, ("n", 40)), freeze=True,
        )  # fmt: skip
        assert len(model.manifest["weights"]) == 1

    @pytest.mark.parametrize("groups", [1, 2])
    def test_batch_normalisation(self, tmp_path: Path, groups: int) -> None:
        """Of a convolution: one product and one addition are left."""
        rng = np.random.default_rng(3)
        w = wf.Variable(rng.standard_normal((3, 3, 4 // groups, 8)).astype(np.float32))
        mean, variance, scale, offset = (
            wf.Variable((rng.random(8) + 0.5).astype(np.float32)) for _ in range(4)
        )

        def f(x: Any) -> Any:
            y = wf.nn.conv2d(x, w, padding="SAME", groups=groups) + wf.ones([8])
            return wf.nn.relu(wf.nn.batch_norm(y, mean, variance, offset, scale))

        kind = wf.TensorType(F32, ("n", 6, 6, 4))
        model = exported(tmp_path, f, kind, freeze=True)
        text = (tmp_path / "model" / "serving_default.weft").read_text()
        ops = [line.split("= ")[1].split("(")[0] for line in text.splitlines() if "= " in line]
        assert ops.count("conv") == ops.count("add") == 1
        assert not {"multiply", "subtract", "rsqrt"} & set(ops)
        x = rng.standard_normal((2, 6, 6, 4)).astype(np.float32)
        np.testing.assert_allclose(np.asarray(model(x)), np.asarray(f(wf.asarray(x))),
                                   rtol=2e-5, atol=2e-5)  # fmt: skip


def test_the_manifest_is_for_people_and_others(tmp_path: Path) -> None:
    wf.export(Net(), tmp_path / "m", example=OPEN)
    told = json.loads((tmp_path / "m" / "bundle.json").read_text())
    (signature,) = told["signatures"].values()
    assert signature["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n", 3]}]
    assert [one["shape"] for one in signature["outputs"]] == [["n", 4]]
    assert told["weights"]["b"] == {"dtype": "float32", "shape": [4], "trainable": False}
    assert set(told["files"]) == {"serving_default.weft", "weights.safetensors"}
