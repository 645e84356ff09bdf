"""Bad input of every kind: each error says what is wrong, where in the user's file, and what to do.

A row is (name, what the user wrote, class, a part of what is wrong, a part of the hint). The place
must be the line of the lambda itself. Errors about text that is no Python name a place in the text
instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core.pytree import tree_map
from weft.frontend.core.tensor import as_tensor
from weft.ir.analysis.verify import verify
from weft.ir.errors import (
    FailedPreconditionError,
    GradientError,
    InvalidArgumentError,
    NotFoundError,
    ParseError,
    PassError,
    ShapeError,
    TracerError,
    TypeRuleError,
    UnsupportedError,
    VerifyError,
    WeftError,
)
from weft.ir.graph import Block, Graph, Operation
from weft.ir.ops.builder import Builder, make_op
from weft.ir.text.parser import parse_graph
from weft.ir.types import TensorType

X = np.ones((2, 3), np.float32)
N = np.arange(3)


def trace(fn: Callable[..., Any]) -> Callable[[], Any]:
    """What happens when `fn` is traced on one f32[2,3]."""
    return lambda: wf.compile(fn).trace(X)


def in_graph(fn: Callable[[Any], Any]) -> Callable[[], Any]:
    """What happens when `fn` is called on a placeholder f32[batch,3] called x, in its graph."""

    def run() -> Any:
        with wf.Graph("g").as_default():
            return fn(wf.placeholder(wf.float32, [None, 3], name="x"))

    return run


def leaked() -> Any:
    kept: list[Any] = []
    wf.compile(lambda x: kept.append(x)).trace(X)
    return kept[0]


def closed_session() -> Any:
    session = wf.Session(graph=wf.Graph())
    session.close()
    return session


V = wf.Variable([1.0, 2.0], name="v")
LEAKED = leaked()
CLOSED = closed_session()

# fmt: off
CASES: list[tuple[str, Callable[..., Any], type[WeftError], str, str]] = [
    # a value is asked of a symbolic tensor
    ("if", trace(lambda x: 1 if x else 0), TracerError, "a Python condition", "wf.where"),
    ("and", trace(lambda x: x > 0 and x < 1), TracerError, "a Python condition", "wf.where"),
    ("int", trace(lambda x: int(x)), TracerError, "int(tensor)",
     "use the tensor as it is"),
    ("float", trace(lambda x: float(x)), TracerError, "float(tensor)", "wf.astype"),
    ("complex", trace(lambda x: complex(x)), TracerError, "complex(tensor)", "wf.astype"),
    ("index", trace(lambda x: [1, 2][x]), TracerError, "a Python index or size", "wf.take"),
    ("range", trace(lambda x: list(range(x))), TracerError, "a Python index or size",
     "wf.take"),
    ("for", trace(lambda x: [row + 1 for row in x]), TracerError, "iterating over a tensor",
     "wf.unstack"),
    ("unpack", trace(lambda x: (lambda a, b: a)(*x)), TracerError, "iterating", "wf.unstack"),
    ("control flow", trace(lambda x: 1 if x else 0), TracerError, "a Python condition",
     "wf.cond and wf.while_loop"),
    ("in", trace(lambda x: 1.0 in x), TracerError, "`item in tensor`", "wf.any"),
    ("item", trace(lambda x: x.item()), TracerError, "tensor.item()", "return the tensor"),
    ("tolist", trace(lambda x: x.tolist()), TracerError, "tensor.tolist()", "return the tensor"),
    ("numpy", trace(lambda x: x.numpy()), TracerError, "tensor.numpy()", "return the tensor"),
    ("format", trace(lambda x: f"{x:.2f}"), TracerError, "formatting a tensor", "after the step"),
    ("asarray", trace(lambda x: np.asarray(x)), TracerError, "to a NumPy array",
     "wf.sin for np.sin"),
    ("ufunc", trace(lambda x: np.sin(x)), TracerError, "cannot compute np.sin", "use wf.sin"),
    ("ufunc name", trace(lambda x: np.arctan2(x, x)), TracerError, "np.arctan2", "use wf.atan2"),
    ("ufunc out", trace(lambda x: np.add(x, x, out=X.copy())), TracerError, "np.add", "use wf.add"),
    ("function", trace(lambda x: np.concatenate([x, x])), TracerError, "np.concatenate",
     "wf.concat"),
    ("no such function", trace(lambda x: np.median(x)), TracerError, "np.median",
     "weft has no function of that name"),
    ("reduction", trace(lambda x: np.sum(x)), TracerError, "np.sum", "use wf.sum"),
    ("dlpack", trace(lambda x: np.from_dlpack(x)), TracerError, "DLPack", "return the tensor"),
    ("len", in_graph(lambda x: len(x)), TracerError, "the first size", "wf.shape(x)[0]"),
    # a tensor is used where it does not belong
    ("leak", lambda: LEAKED + LEAKED, TracerError, "has ended",
     "return it from the traced function"),
    ("leak to a function", lambda: wf.sin(LEAKED), TracerError, "has ended", "wf.Variable"),
    ("leak into a trace", trace(lambda x: x * LEAKED), TracerError, "has ended", "return it"),
    # concrete tensors
    ("truth of many", lambda: bool(as_tensor([1, 2])), InvalidArgumentError, "shape [2]", "wf.any"),
    ("index with a float", lambda: [1, 2][as_tensor(1.0)], TypeRuleError, "float64", "wf.int64"),
    ("change in place", lambda: as_tensor([1]).__setitem__(0, 2), UnsupportedError,
     "cannot be changed in place", "x.at[index].set"),
    ("not a tensor", lambda: wf.sin(object()), TypeRuleError, "a object is not a tensor",
     "nested lists"),
    ("list of objects", lambda: as_tensor([None]), TypeRuleError, "a list of NoneType", "numbers"),
    ("ragged list", lambda: as_tensor([[1], [2, 3]]), InvalidArgumentError, "not an array",
     "same length"),
    ("huge integer", lambda: as_tensor(2**70), InvalidArgumentError, "does not fit int64", "float"),
    ("complex to real", lambda: as_tensor(1j, "f32"), TypeRuleError, "complex number", "wf.real"),
    ("dtype", lambda: as_tensor(1, "float31"), TypeRuleError, "not a weft dtype", "float32"),
    ("NumPy dtype", lambda: as_tensor(np.zeros(2, "M8[s]")), TypeRuleError, "not a weft dtype",
     "int64"),
    ("device", lambda: as_tensor(1).to_device("tpu"), InvalidArgumentError, "'tpu'",
     "cpu:0"),
    ("round to digits", lambda: round(as_tensor(1.5), 2), UnsupportedError, "whole numbers",
     "wf.round"),
    ("T", lambda: as_tensor(np.ones((2, 3, 4))).T, InvalidArgumentError,
     "x.T takes a matrix, this tensor has rank 3", "x.mT"),
    ("T in a trace", trace(lambda x: wf.sum(x).T), InvalidArgumentError, "has rank 0", "x.mT"),
    ("argnums by name", lambda: wf.grad(wf.sin, argnums="x"), InvalidArgumentError,
     "argnums must be a position or a tuple of positions, got 'x'", "by position"),
    ("argnums float", lambda: wf.value_and_grad(wf.sin, argnums=(0, 1.0)), InvalidArgumentError,
     "got (0, 1.0)", "by position"),
    ("jvp primals", lambda: wf.jvp(wf.sin, 2.0, (1.0,)), InvalidArgumentError,
     "jvp: primals is a float", "wf.jvp(fn, (x,), (tangent,))"),
    ("jvp tangents", lambda: wf.jvp(wf.sin, (2.0,), X), InvalidArgumentError,
     "jvp: tangents is a ndarray", "wf.jvp(fn, (x,), (tangent,))"),
    ("compile a builtin", lambda: wf.compile(max), TypeRuleError,
     "cannot tell the parameters of 'max'", "a Python function"),
    # types and shapes of ops
    ("broadcast", trace(lambda x: x + np.ones(2, np.float32)), ShapeError, "[2,3]", "equal or 1"),
    ("broadcast eagerly", lambda: as_tensor([1, 2]) + as_tensor([1, 2, 3]), ShapeError, "[2]",
     "equal"),
    ("matmul", trace(lambda x: wf.matmul(x, x)), ShapeError, "matmul", ""),
    ("strings and numbers", lambda: wf.add("a", as_tensor([1.0])), TypeRuleError, "string", ""),
    ("unsigned and signed", lambda: as_tensor(N.astype("u8")) + as_tensor(N), TypeRuleError,
     "no common dtype", "wf.astype"),
    ("axis", trace(lambda x: wf.sum(x, axis=2)), InvalidArgumentError, "axis 2 is out of range",
     "-2 to 1"),
    ("reshape", trace(lambda x: wf.reshape(x, (4, 2))), ShapeError, "reshape", ""),
    ("index out of bounds", lambda: wf.take(as_tensor(N), as_tensor([7])), InvalidArgumentError,
     "7", ""),
    # calls of compiled functions
    ("string argument", lambda: wf.compile(lambda x: x)("fast"), TypeRuleError,
     "argument x of 'lambda' is a str", "static_argnames=('x',)"),
    ("nested argument", lambda: wf.compile(lambda x: x)({"a": [None, object()]}), TypeRuleError,
     "argument x['a'][1]", "static_argnames"),
    ("result", trace(lambda x: {"a": (x, {1})}), TypeRuleError, "returned a set at result['a'][1]",
     "None"),
    ("missing argument", lambda: wf.compile(lambda x, y: x)(X), TypeRuleError,
     "missing a required argument: 'y'", "lambda(x, y)"),
    ("unhashable static", lambda: wf.compile(static_argnames="k")(lambda k: 1)([1]), TypeRuleError,
     "'k' is a list, which cannot be hashed", "a tuple for a list"),
    ("static array", lambda: wf.compile(static_argnames="k")(lambda k: 1)(X), TypeRuleError,
     "the static argument 'k' is an array", "out of static_argnames"),
    ("unknown static", lambda: wf.compile(static_argnames="kk")(lambda k: 1), InvalidArgumentError,
     "static_argnames names 'kk'", ""),
    ("not a function", lambda: wf.compile(3), TypeRuleError, "takes a function, got a int",
     "@wf.compile"),  # type: ignore[call-overload]
    ("donate", lambda: wf.compile(donate="k")(lambda x: x), InvalidArgumentError,
     "donate names 'k'", ""),
    ("pass", lambda: wf.compile(passes=["cs"]), PassError, "no pass 'cs'; did you mean 'cse'",
     "dce"),
    ("pass in ir", lambda: wf.compile(lambda x: x).ir(X, after="fse"), PassError, "no pass 'fse'",
     "it is: traced"),
    # containers
    ("structure", lambda: tree_map(max, {"a": (1, 2)}, {"a": [1, 2]}), InvalidArgumentError,
     "differ at ['a']", "same keys, lengths"),
    ("keys", lambda: wf.compile(lambda d: d)({1: X, "b": X}), InvalidArgumentError,
     "types int, str", "one type"),
    # variables
    ("assign dtype", lambda: V.assign(np.ones(2)), TypeRuleError, "float64 value does not fit",
     "wf.float32"),
    ("assign shape", lambda: V.assign([1.0]), ShapeError, "shape [1] does not fit", "wf.reshape"),
    ("assign in place", lambda: V.__iadd__(1), UnsupportedError, "leave the state", "assign_add"),
    ("created again",
     lambda: [f(np.ones(n)) for f in [wf.compile(lambda x: wf.Variable(1.0) * x)] for n in (1, 2)],
     UnsupportedError, "is created again", "first call"),
    ("initial value", trace(lambda x: wf.Variable(x)), InvalidArgumentError,
     "depends on the inputs", "outside"),
    ("initial shape", in_graph(lambda x: wf.Variable(x)), ShapeError,
     "[x_0,3], which is not known", "static"),
    ("initializer", lambda: V.initializer, FailedPreconditionError, "only in a graph",
     "from the start"),
    # dtypes
    ("conj", lambda: wf.conj([True]), TypeRuleError, "wf.conj needs numbers, got bool", ""),
    ("imag", lambda: wf.imag([True]), TypeRuleError, "wf.imag needs numbers, got bool", ""),
    ("logsumexp", lambda: wf.logsumexp([1j]), TypeRuleError,
     "wf.logsumexp takes real numbers, got complex64", ""),
    ("no shape", lambda: wf.ensure_shape([1], None), ShapeError,
     "wf.ensure_shape: None is no shape", "tuple of sizes"),
    ("dtype names", lambda: wf.result_type("int8", "flaot32"), TypeRuleError,
     "'flaot32' is not a weft dtype; did you mean 'float32'", "the dtypes are"),
    # gradients
    ("vector loss", lambda: wf.grad(lambda x: x * 2)(X), GradientError,
     "f32[2,3], not a real scalar", "wf.sum"),
    ("tuple loss", lambda: wf.grad(lambda x: (x, x))(1.0), GradientError, "returned a tuple",
     "has_aux=True"),
    ("integer input", lambda: wf.grad(lambda x: x)(3), GradientError, "is int64", "wf.float32"),
    ("argnums", lambda: wf.grad(lambda x: x, 2)(1.0), GradientError, "argnums 2 is out of range",
     "by position"),
    ("gradients eagerly", lambda: wf.gradients(V * 1.0, [V]), GradientError, "keep no history",
     "wf.grad"),
    ("xs", trace(lambda x: wf.gradients(x, [3])), GradientError, "xs holds a int", "computed from"),
    ("cotangent", lambda: wf.vjp(wf.sin, X)[1](N), InvalidArgumentError,
     "cotangent has type i64[3]", "same dtype"),
    ("custom gradient", lambda: wf.grad(wf.custom_gradient(lambda x: x))(1.0), GradientError,
     "must return (y, grad_fn)", "return the result and a function"),
    # graphs and sessions
    ("missing feed", in_graph(lambda x: wf.Session().run(x)), InvalidArgumentError, "must be fed",
     "feed_dict={x"),
    ("feed shape", in_graph(lambda x: wf.Session().run(x, {x: N})), InvalidArgumentError,
     "shape [3]", "[x_0,3]"),
    ("feed dtype", in_graph(lambda x: wf.Session().run(x, {x: 1j})), TypeRuleError, "complex128",
     "astype"),
    ("fetch", in_graph(lambda x: wf.Session().run([2])), TypeRuleError, "fetches[0] is a int",
     "fetch tensors"),
    ("fetch name", in_graph(lambda x: wf.Session().run("xx")), NotFoundError, "did you mean 'x'",
     "names"),
    ("closed", lambda: CLOSED.run([]), FailedPreconditionError, "is closed", "new wf.Session"),
    ("target", lambda: wf.Session("grpc://a"), InvalidArgumentError, "no address", "tcp://host"),
    ("unknown rank", lambda: wf.placeholder(wf.float32, None), UnsupportedError, "unknown rank",
     "(None, 784)"),
    ("size", in_graph(lambda x: wf.placeholder(wf.float32, [-2])), InvalidArgumentError, "-2",
     "None (any size)"),
    ("placeholder in a function", trace(lambda x: wf.placeholder("f32")), UnsupportedError,
     "for graphs", "argument"),
    # the IR built by hand
    ("unknown op", lambda: make_op("sine"), NotFoundError, "there is no op 'sine'", ""),
    ("arity", lambda: Builder().emit("sin"), TypeRuleError, "'sin' takes 1 operands, got 0", ""),
    ("attribute", lambda: Builder().emit("iota", (), {"shpe": ()}), TypeRuleError,
     "did you mean 'shape'", "shape"),
]
# fmt: on


@pytest.mark.parametrize(
    ("name", "call", "error", "what", "hint"), CASES, ids=[c[0] for c in CASES]
)
def test_errors_say_what_where_and_what_to_do(
    name: str, call: Callable[[], Any], error: type[WeftError], what: str, hint: str
) -> None:
    with pytest.raises(error, match=re.escape(what)) as caught:
        call()
    raised = caught.value
    assert what in raised.what
    assert hint == "" or (raised.hint is not None and hint in raised.hint), raised.hint
    if name not in ("unknown op",):
        assert raised.locations, "no place"
        assert raised.locations[0].file == __file__
        assert raised.locations[0].line in _lines(call), raised
        assert f"at {raised.locations[0]}" in str(raised)


def _lines(call: Callable[[], Any]) -> range:
    """The lines of a row: those of the user's lambda, inside `trace` and `in_graph` too."""
    inner = [c.cell_contents for c in call.__closure__ or () if inspect.isfunction(c.cell_contents)]
    source, start = inspect.getsourcelines(inner[0] if inner else call)
    return range(start, start + len(source))


def test_there_are_many_kinds() -> None:
    assert len({(c[2], c[3]) for c in CASES}) >= 40


# ------------------------------------------------------------------------------------- other places
@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "graph @f(%x: f32[2]) -> (f32[2]) stage=traced {\n  return %y\n}",
            "%y",
        ),
        ("graph @f(%x: f33[2]) -> () stage=traced {\n  return\n}", "f33"),
        (
            "graph @f() -> (f32[]) stage=traced {\n  %0 = sine() : f32[]\n  return %0\n}",
            "sine",
        ),
        ("graph @f() -> () stage=traced {\n  return\n", ""),
        ("grph @f() -> () stage=traced {\n  return\n}", "graph"),
    ],
)
def test_text_errors_show_the_line_with_a_caret(text: str, match: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text, "model.weft")
    message = str(caught.value)
    assert "model.weft" in message
    assert "^" in message
    assert match in message


def test_a_broken_graph_is_printed_with_the_fault_at_the_op() -> None:
    f32 = TensorType(wf.float32, (2,))
    lost = Builder([f32]).emit1("sin", Builder([f32]).args[0])
    bad = Operation("sin", (lost,), {}, (f32,))
    with pytest.raises(VerifyError, match="sin") as caught:
        verify(Graph("f", Block((), (bad,), bad.results), ()))
    assert "^" in str(caught.value)
