"""Errors as people meet them who come from another library: names, keywords, tracebacks."""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core import foreign_names
from weft.frontend.core.operators import FOREIGN_NAMES
from weft.frontend.tools.main import main
from weft.ir.errors import (
    InternalError,
    InvalidArgumentError,
    ShapeError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.locations import definition_location

X = np.ones((2, 3), np.float32)
MODULES = {"wf": wf, **{f"wf.{n}": getattr(wf, n) for n in ("nn", "random", "linalg", "fft",
                                                           "train", "data", "losses", "metrics",
                                                           "initializers", "image", "sparse")},
           "x": wf.ones(2)}  # fmt: skip


def found(path: str) -> bool:
    """Whether a dotted name is one of weft's."""
    value: Any = wf
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value is not None


PUBLIC = ["nn", "random", "linalg", "fft", "train", "data", "losses", "metrics", "initializers",
          "image", "sparse", "summary", "tf1"]  # fmt: skip


class TestNames:
    @pytest.mark.parametrize(("module", "name", "hint"), foreign_names.all_rows())
    def test_each(self, module: str, name: str, hint: str) -> None:
        """Not a name of weft's, and what the hint names is one."""
        with pytest.raises(AttributeError) as caught:
            getattr(MODULES[module], name)
        assert str(caught.value).splitlines()[1] == f"  hint: {hint}"
        named = re.findall(r"wf(?:\.[A-Za-z_]\w*)+", hint)
        assert [n for n in named if not found(n)] == []

    def test_there_are_a_hundred(self) -> None:
        rows = foreign_names.all_rows()
        assert len(rows) > 200
        assert len(set(rows)) == len(rows)

    @pytest.mark.parametrize("x", [wf.ones(2), wf.Variable(1.0)], ids=["tensor", "variable"])
    def test_attributes_of_tensors(self, x: Any) -> None:
        """Each has its hint, none is seen otherwise."""
        rows = [name for module, name, _ in foreign_names.all_rows() if module == "x"]
        assert sorted(rows) == sorted(FOREIGN_NAMES.split())
        assert not any(hasattr(x, name) or hasattr(type(x), name) for name in rows)
        assert not set(rows) & set(dir(x))
        assert "reshape" in dir(x)
        with pytest.raises(AttributeError, match=rf"'{type(x).__name__}' object.*\n.*x\.ndim"):
            x.dim()
        with pytest.raises(AttributeError, match=r"has no attribute 'blub'$"):
            x.blub  # noqa: B018

    @pytest.mark.parametrize(
        ("module", "name", "here"),
        [(wf, "relu", "wf.nn.relu"), (wf, "Adam", "wf.train.Adam"), (wf.nn, "einsum", "wf.einsum"),
         (wf.linalg, "one_hot", "wf.one_hot")],
    )  # fmt: skip
    def test_of_another_module(self, module: Any, name: str, here: str) -> None:
        with pytest.raises(AttributeError, match=f"hint: {re.escape(here)}$"):
            getattr(module, name)

    def test_python_guesses_the_others(self) -> None:
        with pytest.raises(AttributeError) as caught:
            wf.nn.softmaxx  # type: ignore[attr-defined]  # noqa: B018
        assert (caught.value.name, caught.value.obj) == ("softmaxx", wf.nn)

    @pytest.mark.parametrize("name", [*PUBLIC, "lookup"])
    def test_dir(self, name: str) -> None:
        """Public names and no others."""
        module = getattr(wf, name)
        assert [n for n in dir(module) if not n.startswith("__")] == sorted(module.__all__)

    def test_dir_of_errors(self) -> None:
        shown = [getattr(wf.errors, n) for n in dir(wf.errors) if not n.startswith("__")]
        assert len(shown) > 20
        assert all(issubclass(error, wf.errors.WeftError) for error in shown)


class TestImports:
    @pytest.mark.parametrize("name", [*PUBLIC, "errors"])
    def test_modules(self, name: str) -> None:
        """`import weft.nn` is `wf.nn`."""
        module = importlib.import_module(f"weft.{name}")
        assert module is getattr(wf, name)
        assert module.__spec__ is not None
        assert module.__spec__.name == module.__name__

    def test_names_of_another_library(self) -> None:
        with pytest.raises(ImportError, match=r"cannot import name 'jit'.*\n.*hint: wf.compile"):
            from weft import jit  # type: ignore[attr-defined]  # noqa: F401
        with pytest.raises(ImportError, match=r"'Linear'.*\n.*hint: weft has no classes"):
            from weft.frontend.nn import Linear  # type: ignore[attr-defined]  # noqa: F401
        with pytest.raises(ImportError, match="'blub'"):
            from weft import blub  # type: ignore[attr-defined]  # noqa: F401
        with pytest.raises(ModuleNotFoundError, match=r"weft\.blub"):
            importlib.import_module("weft.blub")


class TestCalls:
    """A keyword that a function has not: in a trace its signature is said."""

    @staticmethod
    def notes(call: Callable[[Any], Any]) -> list[str]:
        with pytest.raises(TypeError) as caught:
            wf.compile(call)(X)
        return list(caught.value.__notes__)

    def test_keyword(self) -> None:
        first, second = self.notes(lambda x: wf.sum(x, dim=0))  # type: ignore[call-arg]
        assert first == "  hint: 'dim' is axis here"
        assert second == "  hint: the signature is wf.sum(x, /, axis=None, *, dtype=None, " \
            "keepdims=False)"  # fmt: skip

    def test_keyword_of_a_submodule(self) -> None:
        notes = self.notes(lambda x: wf.nn.softmax(x, dims=-1))  # type: ignore[call-arg]
        assert notes[0] == "  hint: 'dims' is axis here"
        assert notes[1].startswith("  hint: the signature is wf.nn.softmax(")

    def test_keyword_of_losses(self) -> None:
        notes = self.notes(lambda x: (wf.losses.l2_regularizer(0.1, dim=1), x)[1])  # type: ignore[call-arg]
        assert notes[-1].startswith("  hint: the signature is wf.losses.l2_regularizer(")

    def test_what_has_no_like_here(self) -> None:
        notes = self.notes(lambda x: wf.exp(x, out=x))  # type: ignore[call-arg]
        assert notes[0] == "  hint: 'out' is not there: results are new tensors"

    def test_too_many_arguments(self) -> None:
        (note,) = self.notes(lambda x: x + wf.zeros(2, 3))  # type: ignore[misc]
        assert note.startswith("  hint: the signature is wf.zeros(shape")

    def test_in_the_block_of_a_graph(self) -> None:
        with pytest.raises(TypeError) as caught, wf.Graph().as_default():
            wf.mean(X, keepdim=True)  # type: ignore[call-arg]
        assert caught.value.__notes__[0] == "  hint: 'keepdim' is keepdims here"

    def test_methods_and_classes(self) -> None:
        notes = self.notes(lambda x: x.sum(dim=1))
        assert notes[0] == "  hint: 'dim' is axis here"
        notes = self.notes(lambda x: wf.train.Adam(lr=0.1) and x)  # type: ignore[call-arg]
        assert notes[0] == "  hint: 'lr' is learning_rate here"
        assert notes[1].startswith("  hint: the signature is wf.train.Adam(learning_rate=")

    def test_eager_calls(self) -> None:
        with pytest.raises(TypeError) as caught:
            wf.nn.softmax(X, dim=1)  # type: ignore[call-arg]
        assert caught.value.__notes__[0] == "  hint: 'dim' is axis here"
        with pytest.raises(TypeError) as caught:
            wf.scan(lambda c, x: (c, x), X[0], X, backwards=True)  # type: ignore[call-arg]
        (note,) = caught.value.__notes__
        assert note.startswith("  hint: the signature is wf.scan(f, init=..., xs=None, length=None")

    @pytest.mark.parametrize(
        "call",
        [
            lambda x: dropout(x, rate=1),  # type: ignore[call-arg]
            lambda x: np.zeros(3, foo=1),  # type: ignore[call-overload]
            lambda x: split(x, 2, axis=1),  # type: ignore[call-arg]
        ],
    )
    def test_functions_of_others_get_none(self, call: Any) -> None:
        """Though weft has one of the same name."""
        with pytest.raises(TypeError) as caught:
            wf.compile(call)(X)
        assert not hasattr(caught.value, "__notes__")


def dropout(x: Any, p: Any) -> Any:
    return x * p


def split(x: Any) -> Any:
    return x


def product(x: Any) -> Any:
    return wf.matmul(x, x)


def gradient(x: Any) -> Any:
    return wf.grad(lambda y: wf.sum(product(y)))(x)


class TestTracebacks:
    @pytest.fixture(autouse=True)
    def hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("WEFT_TRACEBACK")

    @staticmethod
    def files(error: BaseException) -> list[str]:
        return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]

    @pytest.mark.parametrize("call", [wf.compile(gradient), gradient, wf.compile(product)])
    def test_only_frames_of_the_user(self, call: Any) -> None:
        with pytest.raises(ShapeError) as caught:
            call(X)
        mine, own = Path(__file__).name, self.files(caught.value)
        # what the user calls from outside adds its own frames on the way out
        assert own[-1] == mine
        assert len([f for f in own if f != mine]) <= 2

    @pytest.mark.parametrize(
        "call",
        [
            lambda f: wf.vjp(f, X), lambda f: wf.jvp(f, (X,), (X,)), lambda f: f.trace(X),
            lambda f: f.ir(X), lambda f: f.explain(X), lambda f: f.summary(X), lambda f: f.cost(X),
            lambda f: wf.cond(True, lambda: f(X), lambda: X),
            lambda f: wf.switch_case(0, [lambda: f(X)]),
            lambda f: wf.while_loop(lambda x: wf.sum(x) < 9, f, (X,)),
            lambda f: wf.fori_loop(0, 3, lambda i, x: f(x), X),
            lambda f: wf.scan(lambda c, x: (f(c), x), X, X), lambda f: wf.map_fn(f, X[None]),
            lambda f: wf.custom_gradient(lambda x: (f(x), lambda g: g))(X),
            lambda f: wf.train.SGD(0.1).minimize(lambda: f(X)),
        ],
    )  # fmt: skip
    def test_what_runs_functions(self, call: Any) -> None:
        with pytest.raises(ShapeError) as caught:
            call(wf.compile(product))
        own = self.files(caught.value)
        assert own[-1] == Path(__file__).name
        # of weft's the last one that the user called adds its own frame on the way out
        assert len([f for f in own if f != Path(__file__).name]) <= 1

    def test_all_frames(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WEFT_TRACEBACK", "full")
        with pytest.raises(ShapeError) as caught:
            wf.compile(gradient)(X)
        assert "specializations.py" in self.files(caught.value)

    def test_faults_of_weft_keep_theirs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # called with arguments that it does not take, by weft
        monkeypatch.setattr("weft.frontend.compile.function.trace_function", definition_location)
        with pytest.raises(TypeError) as caught:
            wf.compile(product)(X)
        assert "specializations.py" in self.files(caught.value)

        def internal(*_: Any, **__: Any) -> Any:
            raise InternalError("a fault")

        monkeypatch.setattr("weft.frontend.compile.function.trace_function", internal)
        with pytest.raises(InternalError) as second:
            wf.compile(product)(X)
        assert "specializations.py" in self.files(second.value)

    def test_errors_of_the_users_code(self) -> None:
        def broken(x: Any) -> Any:
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine") as caught:
            wf.compile(broken)(X)
        assert "specializations.py" not in self.files(caught.value)


class TestNamesInErrors:
    """An error names the public function that was called; else the op."""

    @pytest.mark.parametrize(
        ("call", "begin"),
        [
            (lambda x: wf.reshape(x, (4, 2)), "wf.reshape: f32[2,3] has 6 elements"),
            (lambda x: wf.concat([x, x[0]]), "wf.concat: (f32[2,3], f32[3]) differ"),
            (lambda x: wf.bitwise_and(x, x), "wf.bitwise_and takes integer or bool"),
            (lambda x: x & x, "op 'bitwise_and' takes integer or bool"),
            (lambda x: wf.broadcast_to(x, (2, 2)), "wf.broadcast_to: f32[2,3] does not broadcast"),
        ],
    )
    @pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
    def test_each(self, call: Any, begin: str, traced: bool) -> None:
        with pytest.raises(wf.errors.WeftError) as caught:
            (wf.compile(call) if traced else call)(wf.asarray(X))
        assert caught.value.what.startswith(begin)
        assert str(caught.value).startswith(begin)


class TestHints:
    def test_a_number_where_a_dtype_belongs(self) -> None:
        with pytest.raises(TypeRuleError, match=r"-0.05 is not a weft dtype\n.*\n.*minval="):
            wf.random.uniform(wf.random.key(0), (2,), -0.05, 0.05)  # type: ignore[call-arg]

    def test_dtypes_by_name(self) -> None:
        """As NumPy's: equal to their names, taken by NumPy, and in types."""
        assert wf.float32 == "float32" == wf.ones(2).dtype
        assert wf.float32 == np.float32 != wf.float64
        assert wf.bfloat16 == wf.bfloat16.numpy
        assert wf.float32 not in (np.float64, "float64", float, None, 32)
        assert np.zeros(2, wf.float32).dtype == np.float32
        assert {wf.float32: 1}[wf.float32] == 1
        assert wf.TensorType("float32", 3) == wf.TensorType(wf.float32, (3,))
        double = wf.compile(lambda x: 2 * x, input_signature=[wf.TensorType(np.float32, [None])])
        assert double(np.ones(3, np.float32)).shape == (3,)

    @pytest.mark.parametrize("use", [bool, int, float, range, lambda n: [1, 2][n]])
    def test_arguments_that_are_python_values(self, use: Any) -> None:
        @wf.compile
        def step(x: Any, training: Any) -> Any:
            use(training)
            return x

        hint = r"hint: wf\.compile\(static_argnames='training'\) makes the argument a Python value"
        with pytest.raises(TracerError, match=hint):
            step(X, 1)

    @pytest.mark.parametrize(
        ("call", "given"),
        [
            (lambda x: x if wf.sum(x) > 0 else -x, X),
            (lambda x: x * float(x), X),
            (lambda x: x.numpy(), X),
            (lambda x: int(x["k"]), {"k": 1}),
            (wf.grad(lambda w: w * float(w)), np.float32(3)),
        ],
    )
    def test_other_tensors(self, call: Any, given: Any) -> None:
        """What is no argument, no single number, or a part of an argument cannot be static."""
        with pytest.raises(TracerError) as caught:
            wf.compile(call)(given)
        assert "static_argnames" not in str(caught.value)

    @pytest.mark.parametrize(
        ("device", "hint"),
        [("cuda", "GPUs are 'gpu:0'"), ("cuda:1", "GPUs are 'gpu:0'"), ("tpu", "'cpu:0' and on")],
    )
    def test_devices(self, device: str, hint: str) -> None:
        with pytest.raises(InvalidArgumentError, match=hint):
            wf.compile(lambda x: x, device=device)
        with pytest.raises(InvalidArgumentError, match=hint), wf.device(device):
            pass

    @pytest.mark.parametrize(
        ("a", "b", "options", "hint"),
        [
            ((2, 3), (2, 4), {}, "with transpose_a=True they fit"),
            ((2, 3), (4, 3), {}, "with transpose_b=True they fit"),
            ((2, 3), (2, 3), {}, "with transpose_a=True or transpose_b=True they fit"),
            ((2, 3), (2, 4), {"transpose_b": True}, None),
            ((3, 2), (2, 4), {"transpose_a": True}, "with transpose_a=False they fit"),
            ((2, 3), (4, 5), {}, None),
            ((3,), (2, 2), {}, None),
        ],
    )
    def test_products(self, a: Any, b: Any, options: Any, hint: str | None) -> None:
        with pytest.raises(ShapeError) as caught:
            wf.matmul(np.ones(a), np.ones(b), **options)
        assert (caught.value.hint or "").split(";")[0] == (hint or "")

    def test_elements_of_variables(self) -> None:
        w = wf.Variable(np.zeros((3, 2), np.float32), name="w")
        with pytest.raises(
            UnsupportedError, match=r"elements of the variable 'w'.*\n.*\n.*w\.assig"
        ):
            w[0] = 1.0
        w.scatter_update([0], np.ones((1, 2), np.float32))
        w.assign(w.at[1].set(2.0))
        np.testing.assert_array_equal(w.numpy(), [[1, 1], [2, 2], [0, 0]])

    def test_a_python_program(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "model.py"
        path.write_text("print(1)\n", encoding="utf-8")
        for command in ("run", "opt", "explain"):
            assert main([command, str(path)]) == 2
            said = capsys.readouterr().err
            assert f"{path} is a Python program, not the text of a graph" in said
            assert f"`python {path}` runs it" in said

    def test_top_takes_host_and_port(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["top", "localhost"]) == 2
        assert "'localhost' is no address of a task\n  hint: 'host:port'" in capsys.readouterr().err
