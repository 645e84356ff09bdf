"""The names and signatures of the Python array API standard (2025.12), and what it says of the
namespace itself, devices, dtypes, DLPack and the functions that are not elementwise.

Special cases of elementwise functions are in `test_array_api_special.py`; the rest is held against
NumPy by the table of `test_ops_api.py`. The extensions `linalg` and `fft` have tests of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.core.tensor import API_VERSIONS
from weft.ir.errors import InvalidArgumentError, ShapeError, TypeRuleError, UnsupportedError

SIGNATURES = """
__array_namespace_info__()
abs(x, /)
acos(x, /)
acosh(x, /)
add(x1, x2, /)
all(x, /, *, axis=None, keepdims=False)
any(x, /, *, axis=None, keepdims=False)
arange(start, /, stop=None, step=1, *, dtype=None, device=None)
argmax(x, /, *, axis=None, keepdims=False)
argmin(x, /, *, axis=None, keepdims=False)
argsort(x, /, *, axis=-1, descending=False, stable=True)
asarray(obj, /, *, dtype=None, device=None, copy=None)
asin(x, /)
asinh(x, /)
astype(x, dtype, /, *, copy=True, device=None)
atan(x, /)
atan2(x1, x2, /)
atanh(x, /)
bitwise_and(x1, x2, /)
bitwise_invert(x, /)
bitwise_left_shift(x1, x2, /)
bitwise_or(x1, x2, /)
bitwise_right_shift(x1, x2, /)
bitwise_xor(x1, x2, /)
broadcast_arrays(*arrays)
broadcast_shapes(*shapes)
broadcast_to(x, /, shape)
can_cast(from_, to, /)
ceil(x, /)
clip(x, /, min=None, max=None)
concat(arrays, /, *, axis=0)
conj(x, /)
copysign(x1, x2, /)
cos(x, /)
cosh(x, /)
count_nonzero(x, /, *, axis=None, keepdims=False)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
diff(x, /, *, axis=-1, n=1, prepend=None, append=None)
divide(x1, x2, /)
empty(shape, *, dtype=None, device=None)
empty_like(x, /, *, dtype=None, device=None)
equal(x1, x2, /)
exp(x, /)
expand_dims(x, /, axis)
expm1(x, /)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)
finfo(type, /)
flip(x, /, *, axis=None)
floor(x, /)
floor_divide(x1, x2, /)
from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)
full_like(x, /, fill_value, *, dtype=None, device=None)
greater(x1, x2, /)
greater_equal(x1, x2, /)
hypot(x1, x2, /)
iinfo(type, /)
imag(x, /)
isdtype(dtype, kind)
isfinite(x, /)
isin(x1, x2, /, *, invert=False)
isinf(x, /)
isnan(x, /)
less(x1, x2, /)
less_equal(x1, x2, /)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)
log(x, /)
log10(x, /)
log1p(x, /)
log2(x, /)
logaddexp(x1, x2, /)
logical_and(x1, x2, /)
logical_not(x, /)
logical_or(x1, x2, /)
logical_xor(x1, x2, /)
matmul(x1, x2, /)
matrix_transpose(x, /)
max(x, /, *, axis=None, keepdims=False)
maximum(x1, x2, /)
mean(x, /, *, axis=None, keepdims=False)
meshgrid(*arrays, indexing='xy')
min(x, /, *, axis=None, keepdims=False)
minimum(x1, x2, /)
moveaxis(x, source, destination, /)
multiply(x1, x2, /)
negative(x, /)
nextafter(x1, x2, /)
nonzero(x, /)
not_equal(x1, x2, /)
ones(shape, *, dtype=None, device=None)
ones_like(x, /, *, dtype=None, device=None)
permute_dims(x, /, axes)
positive(x, /)
pow(x1, x2, /)
prod(x, /, *, axis=None, dtype=None, keepdims=False)
real(x, /)
reciprocal(x, /)
remainder(x1, x2, /)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)
result_type(*arrays_and_dtypes)
roll(x, /, shift, *, axis=None)
round(x, /)
searchsorted(x1, x2, /, *, side='left', sorter=None)
sign(x, /)
signbit(x, /)
sin(x, /)
sinh(x, /)
sort(x, /, *, axis=-1, descending=False, stable=True)
sqrt(x, /)
square(x, /)
squeeze(x, /, axis)
stack(arrays, /, *, axis=0)
std(x, /, *, axis=None, correction=0.0, keepdims=False)
subtract(x1, x2, /)
sum(x, /, *, axis=None, dtype=None, keepdims=False)
take(x, indices, /, *, axis=None)
take_along_axis(x, indices, /, *, axis=-1)
tan(x, /)
tanh(x, /)
tensordot(x1, x2, /, *, axes=2)
tile(x, repetitions, /)
tril(x, /, *, k=0)
triu(x, /, *, k=0)
trunc(x, /)
unique_all(x, /)
unique_counts(x, /)
unique_inverse(x, /)
unique_values(x, /)
unstack(x, /, *, axis=0)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
vecdot(x1, x2, /, *, axis=-1)
where(condition, x1, x2, /)
zeros(shape, *, dtype=None, device=None)
zeros_like(x, /, *, dtype=None, device=None)
"""

ATTRIBUTES = "dtype device mT ndim shape size T to_device"
OPERATORS = """
abs add and bool complex eq float floordiv ge getitem gt index int invert le lshift lt matmul mod
mul ne neg or pos pow radd rand rfloordiv rlshift rmatmul rmod rmul ror rpow rrshift rshift rsub
rtruediv rxor sub truediv xor array_namespace dlpack dlpack_device
"""
DTYPES = """
bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128
"""


def _standard(row: str) -> tuple[str, inspect.Signature]:
    names: dict[str, Any] = {}
    exec(f"def {row}: ...", names)
    name = row.partition("(")[0]
    return name, inspect.signature(names[name])


@pytest.mark.parametrize("row", SIGNATURES.split("\n")[1:-1])
def test_signature(row: str) -> None:
    """Whatever call the standard allows is one: parameters by place and by name, and defaults. Of
    those by place alone the name is free; further parameters have defaults."""
    name, wanted = _standard(row)
    own = inspect.signature(getattr(wf, name)).parameters
    placed = [p for p in own.values() if p.kind is not p.KEYWORD_ONLY]
    used = set()
    for place, p in enumerate(wanted.parameters.values()):
        if p.kind is p.KEYWORD_ONLY:
            found = own[p.name]
            assert found.kind is not p.POSITIONAL_ONLY
        else:
            found = placed[place]
            assert p.kind is p.POSITIONAL_ONLY or found.name == p.name
            assert found.kind in (p.kind, p.POSITIONAL_OR_KEYWORD)
        if p.default is not p.empty:
            assert (found.default, type(found.default)) == (p.default, type(p.default))
        used.add(found.name)
    assert not [n for n, p in own.items() if n not in used and p.default is p.empty]


def test_names_of_the_namespace() -> None:
    constants = {"e": np.e, "inf": np.inf, "nan": np.nan, "newaxis": None, "pi": np.pi}
    for name, value in constants.items():
        np.testing.assert_equal(getattr(wf, name), value)
    for name in DTYPES.split():
        assert getattr(wf, name) == np.dtype(name)
    rows = SIGNATURES.split("\n")[1:-1]
    assert len(rows) == len({r.partition("(")[0] for r in rows}) == 136
    assert {r.partition("(")[0] for r in rows} <= set(wf.__all__)


def test_names_of_tensors() -> None:
    for name in ATTRIBUTES.split():
        assert hasattr(wf.Tensor, name)
    for name in OPERATORS.split():
        assert callable(getattr(wf.Tensor, f"__{name}__"))
    x = kept = wf.asarray([1, 2])
    x += 1  # there is no __iadd__: tensors are immutable, and Python takes __add__
    assert (x.tolist(), kept.tolist()) == ([2, 3], [1, 2])


# ----------------------------------------------------------------------------------- the namespace
def test_namespace_of_a_tensor() -> None:
    x = wf.asarray(1.0)
    assert x.__array_namespace__() is wf
    for version in API_VERSIONS:
        assert x.__array_namespace__(api_version=version) is wf
    assert wf.__array_api_version__ == API_VERSIONS[-1] == "2025.12"
    for wrong in ("2020.10", "2026.12", 2025):
        with pytest.raises(ValueError, match=r"(?s)no namespace of version .* 2025\.12"):
            x.__array_namespace__(api_version=wrong)  # type: ignore[arg-type]
    assert wf.compile(lambda y: y.__array_namespace__().exp(y))(np.float32(0)) == 1


def test_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    info = wf.__array_namespace_info__()
    assert info.capabilities() == {
        "boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64,
    }  # fmt: skip
    told: list[Any] = []

    def traced(x: Any) -> Any:
        told.append(wf.__array_namespace_info__().capabilities())
        return x[x > 0]

    assert wf.compile(traced)(np.ones(3)).shape == (3,)
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    assert wf.compile(traced, device="gpu:0")(np.ones(3)).shape == (3,)
    assert told == [info.capabilities()] * 2
    with wf.Graph().as_default():
        assert info.capabilities()["boolean indexing"]
        x = wf.placeholder(wf.float32, [3])
        assert x[x > 0].ndim == 1
    assert wf.ones((1,) * 64).ndim == 64


def test_default_dtypes_are_those_of_results() -> None:
    info = wf.__array_namespace_info__()
    assert (info.default_device(), wf.ones(1).device) == ("cpu", "cpu")
    for given in ({}, {"device": "cpu"}, {"device": None}):
        assert info.default_dtypes(**given) == {
            "real floating": wf.asarray(1.5).dtype, "complex floating": wf.asarray(1j).dtype,
            "integral": wf.asarray(1).dtype, "indexing": wf.argmax([1.0]).dtype,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (None, DTYPES),
        ("bool", "bool"),
        ("signed integer", "int8 int16 int32 int64"),
        ("unsigned integer", "uint8 uint16 uint32 uint64"),
        ("integral", "int8 int16 int32 int64 uint8 uint16 uint32 uint64"),
        ("real floating", "float32 float64"),
        ("complex floating", "complex64 complex128"),
        ("numeric", DTYPES.replace("bool", "")),
        (("bool", "complex floating"), "bool complex64 complex128"),
        ((), ""),
    ],
)
def test_dtypes_of_a_kind(kind: Any, names: str) -> None:
    found = wf.__array_namespace_info__().dtypes(kind=kind)
    assert found == {name: getattr(wf, name) for name in names.split()}
    if kind is not None:
        assert [wf.isdtype(d, kind) for d in found.values()] == [True] * len(found)
        assert not any(wf.isdtype(getattr(wf, n), kind) for n in {*DTYPES.split()} - {*found})


def test_what_there_is_no_kind_or_device_of() -> None:
    info = wf.__array_namespace_info__()
    for wrong in ("float32", "float", ("bool", "float")):
        with pytest.raises(InvalidArgumentError, match="is no kind of dtypes"):
            info.dtypes(kind=wrong)
    for wrong in ("gpu:77", "/job:ps"):
        with pytest.raises(InvalidArgumentError, match="there is no device"):
            info.default_dtypes(device=wrong)
        with pytest.raises(InvalidArgumentError, match="there is no device"):
            info.dtypes(device=wrong)


# ------------------------------------------------------------------------------------------ devices
def creations(device: str | None) -> Iterator[wf.Tensor]:
    """A result of each function with `device=`."""
    x = wf.asarray([[1.0, 2.0]])
    yield wf.arange(1, 5, 2, dtype=wf.float32, device=device)
    yield wf.asarray([1, 2], dtype=wf.int8, device=device)
    yield wf.asarray(x, device=device, copy=True)
    yield wf.astype(x, wf.float64, device=device)
    yield wf.empty(2, device=device)
    yield wf.empty_like(x, device=device)
    yield wf.eye(2, 3, k=1, device=device)
    yield wf.from_dlpack(np.arange(2), device=device)
    yield wf.full((2,), 7, device=device)
    yield wf.full_like(x, 7, dtype=wf.int32, device=device)
    yield wf.linspace(0, 1, 3, device=device, endpoint=False)
    yield wf.ones((1, 2), dtype=wf.bool, device=device)
    yield wf.ones_like(x, device=device)
    yield wf.zeros(3, device=device)
    yield wf.zeros_like(x, device=device)
    yield x.to_device(device or "cpu")


def test_creation_on_the_cpu() -> None:
    """Every device that `devices` lists is one of `device=`; the values are the same."""
    assert "cpu" in wf.__array_namespace_info__().devices()
    for device in ("cpu", "/cpu:0", wf.ones(1).device):
        for plain, there in zip(creations(None), creations(device), strict=True):
            assert (there.device, there.dtype) == ("cpu", plain.dtype)
            np.testing.assert_array_equal(there, plain)


def test_creation_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_EMULATE_GPU", "1")
    info = wf.__array_namespace_info__()
    assert info.devices() == ("cpu", "gpu:0")
    assert [*info.dtypes(device="gpu:0", kind=("bool", "complex floating"))] == ["bool"]
    for plain, there in zip(creations(None), creations("gpu:0"), strict=True):
        assert (there.device, there.dtype) == ("gpu:0", plain.dtype)
        assert type(there) is wf.DeviceArray
        np.testing.assert_array_equal(there.numpy(), plain)
        assert there.to_device("gpu:0") is there
        assert wf.zeros_like(there).device == wf.full_like(there, 1).device == "gpu:0"
        assert wf.ones_like(there, device="cpu").device == there.to_device("cpu").device == "cpu"
    with wf.transfer_guard("disallow"):  # it is asked for
        wf.ones(2, device="gpu:0").to_device("cpu")
    inside = wf.compile(lambda x: x + wf.ones_like(there))(np.zeros((1, 2), np.float32))
    np.testing.assert_array_equal(inside, [[1, 1]])


def test_creation_in_a_compiled_function() -> None:
    """Tensors in it say that they are on the CPU; another device is another function's."""
    f = wf.compile(lambda x: x.to_device(x.device) + wf.ones(2, device=x.device))
    np.testing.assert_array_equal(f(np.ones(2, np.float32)), [2, 2])
    with pytest.raises(UnsupportedError, match="which runs on one device") as error:
        wf.compile(lambda x: wf.zeros(2, device="gpu:0") + x)(1.0)
    assert 'wf.zeros(2, device="gpu:0")' in str(error.value)


def test_creation_in_a_graph() -> None:
    """As in a `wf.device`; what says no device of its own may be anywhere."""
    with wf.Graph().as_default() as graph:
        x = wf.placeholder(wf.float32, [2])
        made = wf.ones_like(x, device="/job:ps/gpu:1")
        constant = wf.asarray([1.0, 2.0], device="/cpu:0")
        cast = wf.astype(x, wf.float16, device="/cpu:0")
        anywhere = wf.zeros(2, device=wf.exp(x).device)
        total = constant + cast + wf.zeros(2, device=x.device)
    assert (made.device, constant.device, cast.device) == ("/job:ps/gpu:1", "/cpu:0", "/cpu:0")
    assert (wf.exp(1.0).device, anywhere.device) == ("cpu", "")
    with wf.Session(graph=graph) as session:
        np.testing.assert_array_equal(session.run(total, {x: [5, 6]}), [6, 8])


def test_wrong_devices() -> None:
    with pytest.raises(InvalidArgumentError, match="no device of this process"):
        wf.zeros(2, device="/job:ps")
    with pytest.raises(InvalidArgumentError, match="no device of this process"):
        wf.ones(2).to_device("/job:ps/gpu:0")
    with pytest.raises(InvalidArgumentError, match="stream 1"):
        wf.ones(2).to_device("cpu", stream=1)
    with pytest.raises(TypeRuleError, match="takes the name of a device, got 0"):
        wf.zeros(2, device=0)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------- copies, DLPack
def test_asarray_copies() -> None:
    """copy=True: always; False: never, else ValueError; None: only what may change."""
    array = np.arange(4, dtype=np.float32)
    tensor = wf.asarray(array)
    assert not np.shares_memory(tensor, array)
    assert wf.asarray(tensor) is wf.asarray(tensor, copy=False) is tensor
    assert not np.shares_memory(wf.asarray(tensor, copy=True), tensor)
    assert not np.shares_memory(wf.asarray(array, copy=True), array)
    for shown in (array, memoryview(array), array.reshape(2, 2)):
        assert np.shares_memory(wf.asarray(shown, copy=False), array)
    assert np.shares_memory(wf.asarray(array, dtype="float32", copy=False), array)
    for given, dtype in [
        (array, wf.float64), (tensor, wf.float64), (array[::2], None), ([1, 2], None), (1.5, None),
        (array.astype(">f4"), None), (np.array(["a"], object), None),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=r"asarray\(copy=False\) would have to copy"):
            wf.asarray(given, dtype=dtype, copy=False)
    reuse = wf.compile(lambda x: x + 1, donate="x")
    kept = wf.asarray(tensor, copy=True)
    reuse(tensor)
    np.testing.assert_array_equal(kept, array)


class Shown:
    """An array that shows itself by DLPack alone."""

    def __init__(self, array: Any, error: Exception | None = None) -> None:
        self.array, self.error = array, error

    def __dlpack__(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_from_dlpack_copies() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    for x in (array, Shown(array)):
        for options in ({}, {"copy": False}, {"device": "cpu"}, {"device": "cpu", "copy": False}):
            assert np.shares_memory(wf.from_dlpack(x, **options), array)
        for copied in (wf.from_dlpack(x, copy=True), wf.from_dlpack(x, copy=True, device="cpu")):
            assert not np.shares_memory(copied, array)
            np.testing.assert_array_equal(copied, array)
    np.testing.assert_array_equal(wf.from_dlpack(array.T), array.T)
    with pytest.raises(BufferError, match="not contiguous"):
        wf.from_dlpack(array.T, copy=False)
    with pytest.raises(AttributeError, match="a list has no DLPack"):
        wf.from_dlpack([1, 2])
    with pytest.raises(BufferError, match="cannot be taken through DLPack: no memory"):
        wf.from_dlpack(Shown(array, BufferError("no memory")))


@pytest.mark.parametrize("name", DTYPES.split())
def test_dlpack_of_a_tensor(name: str) -> None:
    x = wf.asarray([[0, 1, 1]], dtype=name)
    assert x.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(wf.from_dlpack(x), x)
    for options in ({}, {"copy": False}, {"copy": True}, {"device": "cpu"}):
        taken = np.from_dlpack(x, **options)  # type: ignore[arg-type]
        np.testing.assert_array_equal(taken, x)
        assert taken.dtype == x.dtype
        assert np.shares_memory(taken, x) is not options.get("copy", False)
        assert taken.flags.writeable is bool(options.get("copy"))
    for version in (None, (0, 8), (1, 0), (9, 0)):
        kind = "dltensor_versioned" if version is not None and version >= (1, 0) else "dltensor"
        capsule = x.__dlpack__(max_version=version, dl_device=(1, 0), stream=None)
        assert f'"{kind}"' in repr(capsule)


def test_dlpack_refuses() -> None:
    x = wf.ones(2)
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(RuntimeError, match="stream"):
        x.__dlpack__(stream=1)
    with pytest.raises(TypeError):
        x.__dlpack__(versoin=None)  # type: ignore[call-arg]
    with pytest.raises(wf.errors.TracerError):
        wf.compile(lambda y: y.__dlpack__())(1.0)


# ---------------------------------------------------------------------------------- dtype functions
def test_finfo_and_iinfo() -> None:
    for name, part in [("float32", "float32"), ("complex64", "float32"), ("complex128", "float64"),
                       ("float64", "float64")]:  # fmt: skip
        numpy, x = np.finfo(part), wf.zeros(1, dtype=name)
        for info in (wf.finfo(getattr(wf, name)), wf.finfo(x)):
            assert info.dtype is getattr(wf, part)
            for field in ("bits", "eps", "max", "min", "smallest_normal"):
                assert getattr(info, field) == getattr(numpy, field)
                assert type(getattr(info, field)) is (int if field == "bits" else float)
    for name in ("int8", "uint16", "int64", "uint64"):
        whole, of = np.iinfo(name), wf.iinfo(wf.zeros(1, dtype=name))
        assert (of.dtype.name, of.bits, of.max, of.min) == (name, whole.bits, whole.max, whole.min)
        assert {type(of.bits), type(of.max), type(of.min)} == {int}


@pytest.mark.parametrize("a", DTYPES.split())
@pytest.mark.parametrize("b", DTYPES.split())
def test_promotion_table(a: str, b: str) -> None:
    """Within a kind the standard's table (NumPy's). Of two kinds: beyond the standard, which leaves
    that to libraries, the higher one; can_cast says whether the result is the target."""
    x, y = getattr(wf, a), getattr(wf, b)
    if {a, b} & {"uint64"} and {x.kind, y.kind} == {"int", "uint"}:
        with pytest.raises(TypeRuleError):
            wf.result_type(x, y)
        assert not wf.can_cast(x, y)
        return
    order = ("bool", "int", "uint", "float", "complex")
    if (x.is_integer and y.is_integer) or (x.is_inexact and y.is_inexact):
        expected = getattr(wf, np.result_type(a, b).name)
    else:
        expected = max(x, y, key=lambda d: order.index(d.kind))
    assert wf.result_type(x, y) is wf.result_type(wf.zeros(1, dtype=x), y) is expected
    assert wf.result_type(y, wf.zeros((), dtype=x)) is expected
    assert wf.can_cast(x, y) is wf.can_cast(wf.zeros(1, dtype=x), y) is (expected is y)


def test_result_type_of_python_scalars() -> None:
    for array, scalar, expected in [
        ("int8", 1, "int8"), ("uint64", 1, "uint64"), ("float32", 1, "float32"),
        ("float32", 1.5, "float32"), ("float32", 1j, "complex64"), ("float64", 1j, "complex128"),
        ("complex64", 1.5, "complex64"), ("bool", True, "bool"),
    ]:  # fmt: skip
        x = wf.ones(2, dtype=array)
        assert wf.result_type(x, scalar) == wf.result_type(scalar, x.dtype) == expected
        made = wf.logical_and(x, scalar) if array == "bool" else wf.add(scalar, x)
        assert made.dtype == expected
    assert wf.result_type(wf.int8, wf.uint8, 7) is wf.int16


# ---------------------------------------------------------------------------------- other functions
def _both(function: Any, *operands: Any) -> Iterator[Any]:
    """The results eagerly and compiled, as lists of NumPy arrays."""
    for call in (function, wf.compile(lambda *xs: function(*xs))):
        made = call(*operands)
        yield [np.asarray(m) for m in made] if isinstance(made, (tuple, list)) else np.asarray(made)


X = np.array([[3, 1, 2], [0, 5, 4]], np.int16)
SORTED = np.array([1.0, 3.0, 3.0, 5.0])

CORNERS: dict[str, tuple[Any, Any]] = {
    "take, from the end": (lambda x: wf.take(x, [2, -1, -3], axis=1), X[:, [2, 2, 0]]),
    "take, unsigned": (lambda x: wf.take(x[0], np.uint8([2, 0])), X[0, [2, 0]]),
    "take, nothing": (lambda x: wf.take(x, np.array([], int), axis=0), X[:0]),
    "take_along_axis": (lambda x: wf.take_along_axis(x, [[-1], [0]]), [[2], [0]]),
    "searchsorted, number": (lambda x: wf.searchsorted(SORTED, 3), 1),
    "searchsorted, right": (lambda x: wf.searchsorted(SORTED, 3.0, side="right"), 3),
    "searchsorted, NaN": (lambda x: wf.searchsorted(SORTED, [np.nan, -np.inf]), [4, 0]),
    "searchsorted, shape": (lambda x: wf.searchsorted(SORTED, [[0.0], [9.0]]), [[0], [4]]),
    "searchsorted, sorter": (
        lambda x: wf.searchsorted(x[0], [2, 9], sorter=wf.argsort(x[0])), [1, 3]),
    "repeat, each": (lambda x: wf.repeat(x, 2), np.repeat(X, 2)),
    "repeat, counts": (lambda x: wf.repeat(x, [0, 2], axis=0), X[[1, 1]]),
    "repeat, one count": (lambda x: wf.repeat(x, np.array([2]), axis=1), np.repeat(X, 2, 1)),
    "tile, fewer": (lambda x: wf.tile(x, (2,)), np.tile(X, 2)),
    "tile, more": (lambda x: wf.tile(x, (2, 1, 1)), np.tile(X, (2, 1, 1))),
    "tile, none": (lambda x: wf.tile(x, ()), X),
    "unstack": (lambda x: wf.unstack(x, axis=-1), [X[:, 0], X[:, 1], X[:, 2]]),
    "count_nonzero": (lambda x: wf.count_nonzero(x, axis=(0, 1), keepdims=True), [[5]]),
    "cumulative_sum": (
        lambda x: wf.cumulative_sum(x, axis=1, include_initial=True),
        np.array([[0, 3, 4, 6], [0, 0, 5, 9]])),
    "cumulative_prod": (
        lambda x: wf.cumulative_prod(x, axis=0, include_initial=True, dtype=wf.float64),
        np.array([[1.0, 1, 1], [3, 1, 2], [0, 5, 8]])),
    "cumulative_sum, nothing": (
        lambda x: wf.cumulative_sum(x[0, :0], include_initial=True), np.array([0])),
    "diff": (lambda x: wf.diff(x, n=2), np.diff(X, n=2)),
    "diff, none": (lambda x: wf.diff(x, n=0), X),
    "diff, ends": (
        lambda x: wf.diff(x, axis=0, prepend=x[:1], append=x[:1]),
        np.diff(X, axis=0, prepend=X[:1], append=X[:1])),
    "meshgrid": (lambda x: wf.meshgrid(x[0], x[1, :2]), [*np.meshgrid(X[0], X[1, :2])]),
    "broadcast_arrays": (
        lambda x: wf.broadcast_arrays(x, x[0]), [*np.broadcast_arrays(X, X[0])]),
    "expand_dims": (lambda x: wf.expand_dims(x, (0, -1)), X[None, :, :, None]),
    "arange, down": (lambda x: 1 / wf.arange(0, -1, -0.5), np.float32([np.inf, -2])),
    "mask without axes": (lambda x: [x[np.asarray(True)], x[np.asarray(False)]],
                          [X[None], X[None][:0]]),
    "clip, ends": (lambda x: wf.clip(x, -(10**9), 10**9), X),
    "clip, wide": (lambda x: wf.clip(x, np.int64(2), np.array([10**9])), np.clip(X, 2, 9)),
    "clip, all": (lambda x: wf.clip(x, np.uint64([2**60])), np.full_like(X, 2**15 - 1)),
    "clip, unsigned": (
        lambda x: wf.clip(wf.astype(x, wf.uint8), np.int8([-1]), max=np.int32(4)),
        np.clip(X, 0, 4).astype(np.uint8)),
    "clip, floats": (
        lambda x: wf.clip(x.astype(wf.float32), np.array([1.1]), 3),
        np.clip(X.astype(np.float32), np.float32(1.1), 3)),
    "isin": (lambda x: wf.isin(x, [5, 3]), np.isin(X, [5, 3])),
    "isin, none": (lambda x: wf.isin(x, [5, 3], invert=True), ~np.isin(X, [5, 3])),
    "isin, number": (lambda x: wf.isin(x, 4), X == 4),
}  # fmt: skip


@pytest.mark.share(6)
@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    function, expected = CORNERS[name]
    for got in _both(function, X):
        if isinstance(expected, list) and isinstance(got, list):
            assert len(got) == len(expected)
        pairs = zip(got, expected, strict=True) if isinstance(got, list) else [(got, expected)]
        for a, b in pairs:
            np.testing.assert_array_equal(a, b, strict=isinstance(b, np.ndarray))


AXES: dict[str, Any] = {
    **{name: lambda x, name=name: getattr(wf, name)(x, axis=2)
       for name in ("all", "argmax", "argsort", "concat", "count_nonzero", "cumulative_sum", "diff",
                    "flip", "max", "sort", "squeeze", "std", "sum", "unstack")},
    "expand_dims": lambda x: wf.expand_dims(x, axis=3),
    "expand_dims, several": lambda x: wf.expand_dims(x, axis=(0, -5)),
    "fft": lambda x: wf.fft.fft(x, axis=-3),
    "moveaxis": lambda x: wf.moveaxis(x, 0, 2),
    "permute_dims": lambda x: wf.permute_dims(x, (0, 2)),
    "repeat": lambda x: wf.repeat(x, 2, axis=2),
    "roll": lambda x: wf.roll(x, 1, axis=(0, 2)),
    "stack": lambda x: wf.stack([x, x], axis=3),
    "take": lambda x: wf.take(x, [0], axis=2),
    "take, index": lambda x: wf.take(x, [0, 2], axis=0),
    "take_along_axis": lambda x: wf.take_along_axis(x, [[0]], axis=2),
    "vecdot": lambda x: wf.vecdot(x, x, axis=-3),
    "vector_norm": lambda x: wf.linalg.vector_norm(x, axis=2),
}  # fmt: skip


@pytest.mark.parametrize("name", AXES)
def test_axes_that_are_not_there(name: str) -> None:
    """IndexError, as the standard wants of `expand_dims`, and ValueError (NumPy: both)."""
    x = np.ones((2, 3), np.complex64 if name == "fft" else np.float32)
    for call in (AXES[name], wf.compile(lambda t: AXES[name](t))):
        with pytest.raises(IndexError) as caught:
            call(x)
        assert isinstance(caught.value, ValueError)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("start", "stop", "num", "dtype"),
    [
        (0, 829, 829, "uint16"), (1, 2**53 + 1313, 6635, "uint64"), (0, 2**64 - 1, 2, "uint64"),
        (2**63 - 1, -(2**63), 5, "int64"), (-(2**63), 2**63 - 1, 7, "int64"), (5, -7, 4, "int8"),
        (127, -128, 3, "int8"), (3, 9, 1, "int32"), (3, 9, 0, "int32"), (False, True, 3, "int8"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace_of_integers(start: int, stop: int, num: int, dtype: str, endpoint: bool) -> None:
    """Exact, and rounded down where they are not whole."""
    gaps = max(num - endpoint, 1)
    expected = np.array([start + i * (stop - start) // gaps for i in range(num)], dtype)

    def call() -> wf.Tensor:
        return wf.linspace(start, stop, num, dtype=getattr(wf, dtype), endpoint=endpoint)

    for got in (call(), wf.compile(call)()):
        np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype"),
    [
        (0, 10, 2**64 - 1, "uint64"), (2**63, 2**64 - 1, 2**61, "uint64"), (0, 9, -1, "uint64"),
        (2**64 - 1, 2**63, -(2**61), "uint64"), (1, 2**64 - 1, 2**63 + 5, "uint64"),
        (-(2**63), 2**63 - 1, 2**63, "int64"), (-(2**63), 2**63 - 1, 2**62, "int64"),
        (2**63 - 1, -(2**63), -(2**63), "int64"), (3, 5, 2**70, "int8"), (2**70, 0, 1, "int8"),
        (0, 2**100, 2**98, "float64"), (2**63, 2**64, 2**61, "float64"), (0, 5, 2**70, "complex64"),
    ],
)  # fmt: skip
def test_arange_of_large_integers(start: int, stop: int, step: int, dtype: str) -> None:
    """Any that the dtype has, and as floats any."""

    def call() -> wf.Tensor:
        return wf.arange(start, stop, step, dtype=getattr(wf, dtype))

    expected = np.array(list(range(start, stop, step)), dtype)
    for got in (call(), wf.compile(call)()):
        np.testing.assert_array_equal(got, expected, strict=True)


def test_arange_of_integers_that_do_not_fit() -> None:
    for start, dtype in [(2**63, wf.int64), (2**64, wf.uint64), (-(2**63) - 1, wf.int64)]:
        with pytest.raises(InvalidArgumentError, match="does not fit int64"):
            wf.arange(start, start + 2, dtype=dtype)


@pytest.mark.parametrize(("a", "b"), [((3,), (1,)), ((1,), (3,)), ((2, 3), (2, 1)), ((2,), (2,))])
def test_cross_takes_three_elements(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """The axis of the vectors is not broadcast."""
    with pytest.raises(ShapeError, match="must have size 3"):
        wf.linalg.cross(wf.ones(a), wf.ones(b))


def test_results_are_tuples_with_the_names_of_fields() -> None:
    for made in (wf.unstack(X), wf.meshgrid(X[0]), wf.broadcast_arrays(X, X), wf.nonzero(X)):
        assert isinstance(made, tuple)
    for function, fields in [
        (wf.unique_all, ("values", "indices", "inverse_indices", "counts")),
        (wf.unique_counts, ("values", "counts")),
        (wf.unique_inverse, ("values", "inverse_indices")),
    ]:
        assert type(function(X)).__match_args__ == fields  # type: ignore[attr-defined]


def test_unique_of_nan_and_zeros() -> None:
    """Each NaN is a value that occurs once, also complex ones; zeros of both signs are one."""
    x = np.array([[0.0, np.nan, 2.0], [-0.0, np.nan, 2.0]])
    values, indices, inverse, counts = wf.unique_all(x)
    np.testing.assert_array_equal(values, [0, 2, np.nan, np.nan])
    np.testing.assert_array_equal(indices, [0, 2, 1, 4])
    np.testing.assert_array_equal(counts, [2, 2, 1, 1])
    np.testing.assert_array_equal(inverse, [[0, 2, 1], [0, 3, 1]])
    assert wf.unique_counts(np.array([complex(np.nan, 1)] * 2)).counts.tolist() == [1, 1]


@pytest.mark.share(9)
@pytest.mark.parametrize("count", [0, 3, 16, 17, 200])
@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float32", "complex64"])
def test_isin_against_numpy(count: int, name: str) -> None:
    """Few elements are looked for one by one, many in their order; shapes and NaN as `equal`."""
    rng = np.random.default_rng(count)
    x1, x2 = (rng.integers(0, 99, n).astype(name) for n in (60, count))
    if name in ("float32", "complex64"):
        x1[:3], x2[:2] = np.nan, np.nan
        x1[3], x2[2:3] = -0.0, 0.0
    x1, x2 = x1.reshape(3, 20), x2.reshape(1, -1)
    for invert in (False, True):
        for got in _both(lambda a, b, invert=invert: wf.isin(a, b, invert=invert), x1, x2):
            np.testing.assert_array_equal(got, np.isin(x1, x2, invert=invert), strict=True)


def test_isin_promotes_and_takes_sizes_that_are_not_known() -> None:
    assert wf.isin(np.int8([1, 2]), np.float32([1.5, 2.0])).tolist() == [False, True]
    assert wf.isin(2, [1, 2]).shape == ()
    assert wf.isin(np.array(["a", "b"]), ["b"]).tolist() == [False, True]
    with pytest.raises(TypeRuleError, match=r"wf\.isin.*no common dtype"):
        wf.isin(np.uint64([1]), np.int64([1]))
    with wf.Graph().as_default() as graph:
        x, y = (wf.placeholder(wf.int64, [None]) for _ in range(2))
        found = wf.isin(x, y)
    with wf.Session(graph=graph) as session:
        for n in (0, 1, 40):
            fed = {x: np.arange(30, 50), y: np.arange(n)}
            np.testing.assert_array_equal(session.run(found, fed), np.arange(30, 50) < n)


def test_broadcast_shapes() -> None:
    for shapes in [(), ((),), ((3,), ()), ((2, 1), (3,)), ((0,), (1,)), ((5, 1, 4), (7, 1), (1,))]:
        assert wf.broadcast_shapes(*shapes) == np.broadcast_shapes(*shapes)
    with pytest.raises(ShapeError, match=r"wf\.broadcast_shapes: shapes \[2\], \[3\]"):
        wf.broadcast_shapes((2,), (3,))
    with wf.Graph().as_default():
        x = wf.placeholder(wf.float32, [None, 1])
        assert wf.broadcast_shapes(x.shape, (1, 4)) == (x.shape[0], 4)
