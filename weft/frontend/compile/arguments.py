"""Arguments of a call: their leaves, and the signature that a function is specialised on.

`Signature` says what two calls have in common and how they differ. `scan` and `NamedCalls` are the
quick way for calls that need no conversion, to a key that says all that a signature does: shape and
dtype of each array, the class of each number, the value of each static argument. `flattener` and
`packer` are Python code generated for one structure of nested containers (source text is made and
executed, as `dataclasses` and `namedtuple` do): about 0.1 us a leaf, where `pytree.flatten` takes
1 us."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.device_array import DeviceArray, borrowed_array
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import (
    BUFFERS,
    Tensor,
    as_tensor,
    contiguous,
    foreign_array,
    is_foreign,
    owned_array,
    plain_array,
)
from weft.frontend.core.trace import check_usable
from weft.ir.dataclass import dataclass
from weft.ir.dims import format_shape
from weft.ir.dlpack import is_on_gpu
from weft.ir.dtypes import as_dtype
from weft.ir.errors import TypeRuleError, WeftError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType

if TYPE_CHECKING:
    from weft.runtime.device.array import DeviceValue


Flattener = Callable[[Any], list[Any] | None]
_MAX_DEPTH = 50  # of generated brackets: Python parses 200


class _Source:
    """Lines of a function, and the objects that they refer to by generated names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.count = 0

    def name(self, value: Any) -> str:
        """A global name for an object."""
        name = f"g{len(self.names)}"
        self.names[name] = value
        return name

    def local(self) -> str:
        """A fresh local name."""
        self.count += 1
        return f"v{self.count}"

    def function(self) -> Any:
        """The function, called `made` in the source."""
        exec("\n".join(self.lines), self.names)
        return self.names["made"]


def flattener(structure: pytree.Structure) -> Flattener | None:
    """A function from a tree to its leaves, or to None if the tree has another structure.

    A container where `structure` has a leaf is given back as if it were one. There is no such
    function (None) for structures with classes from `register_pytree`.
    """
    source = _Source()
    source.lines += ["def made(tree):", " try:"]
    leaves: list[str] = []
    if not _take_apart(source, structure, "tree", leaves):
        return None
    source.lines += [
        f"  return [{', '.join(leaves)}]",
        " except (KeyError, AttributeError):",
        "  return None",
    ]
    made: Flattener = source.function()
    return made


def _take_apart(source: _Source, node: pytree.Structure, value: str, leaves: list[str]) -> bool:
    if node is None:
        leaves.append(value)
        return True
    getters = _getters(source, node, value)
    if getters is None:
        return False
    sized = (
        f" or len({value}) != {len(node.children)}"
        if issubclass(node.cls, (dict, list, tuple))
        else ""
    )
    source.lines.append(f"  if type({value}) is not {source.name(node.cls)}{sized}: return None")
    for getter, child in zip(getters, node.children, strict=True):
        inner = source.local()
        source.lines.append(f"  {inner} = {getter}")
        if not _take_apart(source, child, inner, leaves):
            return False
    return True


def _getters(source: _Source, node: pytree.Node, value: str) -> Sequence[str] | None:
    """An expression for each child of a container; None for a class of the user's."""
    if pytree.is_custom(node.cls):
        return None
    if node.cls is type(None):
        return []
    if issubclass(node.cls, dict):
        if node.cls is not dict:  # an OrderedDict's order is part of its structure
            return None
        assert isinstance(node.meta, tuple)
        return [f"{value}[{source.name(key)}]" for key in node.meta]
    if issubclass(node.cls, (tuple, list)):
        return [f"{value}[{i}]" for i in range(len(node.children))]
    return [f"{value}.{name}" for name in pytree.field_names(node.cls)]


def packer(
    structure: pytree.Structure,
    weak: Sequence[bool],
    kinds: Sequence[type[Tensor | DeviceArray]] | None = None,
) -> Callable[[list[Any]], Any]:
    """A function from result arrays to the tree of tensors; `weak` says which of them are weak,
    `kinds` of which class they are, by default Tensor."""
    classes: Sequence[Any] = kinds or [Tensor] * len(weak)
    if pytree.depth(structure) > _MAX_DEPTH:
        return lambda arrays: pytree.unflatten(
            structure, [kind(a, weak=w) for a, w, kind in zip(arrays, weak, classes, strict=True)]
        )
    source = _Source()
    names = {kind: source.name(kind) for kind in dict.fromkeys(classes)}
    leaves = (
        f"{names[kind]}(a[{i}]{', weak=True' if w else ''})"
        for i, (w, kind) in enumerate(zip(weak, classes, strict=True))
    )
    source.lines += ["def made(a):", f" return {_put_together(source, structure, leaves)}"]
    made: Callable[[list[Any]], Any] = source.function()
    return made


def _put_together(source: _Source, node: pytree.Structure, leaves: Iterator[str]) -> str:
    if node is None:
        return next(leaves)
    children = [_put_together(source, child, leaves) for child in node.children]
    if node.cls is tuple:
        return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
    if node.cls is list:
        return f"[{', '.join(children)}]"
    if node.cls is type(None):
        return "None"
    if node.cls is dict:
        assert isinstance(node.meta, tuple)
        pairs = zip(node.meta, children, strict=True)
        return "{" + ", ".join(f"{source.name(key)}: {child}" for key, child in pairs) + "}"
    build = source.name(lambda made, node=node: pytree.build(node, made))
    return f"{build}([{', '.join(children)}])"


Array = np.ndarray[Any, Any]
#: Of one leaf: (shape, NumPy dtype, weak), or an `Identity`.
LeafKey = tuple[tuple[int, ...], Any, bool] | Hashable


class Identity:
    """An object that is itself part of the signature, such as a Variable passed as an argument."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(self.value)


class StaticArray:
    """An array as a static argument: part of the compiled code, equal to another of the same dtype,
    shape and bytes. Nobody writes to it."""

    __slots__ = ("_key", "array")

    def __init__(self, array: Array) -> None:
        data = tuple(array.ravel().tolist()) if array.dtype.hasobject else array.tobytes()
        self._key = (array.dtype.str, array.shape, data)
        self.array = array.copy()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticArray) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return repr(self.array)


@dataclass(frozen=True, slots=True)
class Signature:
    """The signature of a call. names: of the bound arguments (None: all positional). static: (name,
    typed key, value)."""

    structure: pytree.Structure
    leaves: tuple[LeafKey, ...]
    names: tuple[str, ...] | None = None
    static: tuple[tuple[str, Hashable], ...] = ()

    def fields(self, parameters: Sequence[str]) -> dict[str, str]:
        """What each argument leaf and static argument is, in words, by its path."""
        out = {}
        for path, leaf in zip(self.paths(parameters), self.leaves, strict=True):
            out[path] = describe_leaf(leaf)
        out.update((name, f"static {_static_text(key)}") for name, key in self.static)
        return out

    def paths(self, parameters: Sequence[str]) -> list[str]:
        """Where each leaf is in the arguments: `params['w'][0]`."""
        assert self.structure is not None
        children = self.structure.children
        names = [*(self.names or parameters)]
        names += [f"arg{i}" for i in range(len(names), len(children))]
        return [
            p
            for name, child in zip(names, children, strict=False)
            for p in pytree.paths(child, name)
        ]


def describe_leaf(leaf: LeafKey) -> str:
    """`f32[2,3]`, `f64[] weak`."""
    if isinstance(leaf, tuple):
        shape, dtype, weak = leaf
        return f"{as_dtype(dtype).short}{format_shape(shape)}{' weak' if weak else ''}"
    return repr(leaf)


def _static_text(key: Hashable) -> str:
    if isinstance(key, tuple) and len(key) == 2:
        kind, value = key
        if kind in (tuple, frozenset):
            return "(" + ", ".join(_static_text(v) for v in value) + ")"
        return value if kind is float else repr(value)
    return repr(key)


def static_key(name: str, value: Any) -> Hashable:
    """A key that tells 1 from 1.0 and True, and 0.0 from -0.0. TypeRuleError for unhashable
    values."""
    if isinstance(value, (Operators, np.ndarray)):
        hint = f"take '{name}' out of static_argnames, or pass a tuple of Python numbers"
        if isinstance(value, Tensor) and value._data is None:
            hint = f"make '{name}' static in the function that is being traced too, or {hint}"
        raise TypeRuleError(
            f"the static argument '{name}' is an array, which would compile anew for each one",
            hint=hint,
            location=caller_location(),
        )
    if type(value) is tuple:
        return (tuple, tuple(static_key(name, v) for v in value))
    if type(value) is float:
        return (float, repr(value))
    try:
        hash(value)
    except TypeError:
        raise TypeRuleError(
            f"the static argument '{name}' is a {type(value).__name__}, which cannot be hashed",
            hint="use a hashable value: a tuple for a list, a frozen dataclass for a dict",
            location=caller_location(),
        ) from None
    return (type(value), value)


_SCALARS = {
    bool: np.dtype(np.bool_),
    int: np.dtype(np.int64),
    float: np.dtype(np.float64),
    complex: np.dtype(np.complex128),
}


def leaf_of(value: Any) -> tuple[LeafKey, Array | None]:
    """The key of an argument leaf, and the array to pass (None for what is part of the signature).

    TypeRuleError for what is neither a tensor nor a container; TracerError for a leaked tensor.
    """
    if isinstance(value, Tensor):
        if value._data is None:
            check_usable(value, None)
        data = value._data
        assert data is not None
        return (data.shape, data.dtype, value.weak), data
    if type(value) in _SCALARS:
        return ((), _SCALARS[type(value)], type(value) is not bool), scalar_array(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = contiguous(plain_array(value))
        if array.dtype.kind in "OSU":
            array = owned_array(array)
        try:
            dtype = as_dtype(array.dtype)
        except WeftError as error:
            raise error.at(caller_location()) from None
        return (array.shape, dtype.numpy, False), array
    if isinstance(value, TensorType):  # for .trace and .ir: a type stands for any value of it
        return (value.static_shape, value.dtype.numpy, False), None
    if isinstance(value, Operators):
        return Identity(value), None
    if is_foreign(value):
        return leaf_of(foreign_array(value))
    for kind in _SCALARS:
        if isinstance(value, kind):  # a subclass, such as an IntEnum
            return leaf_of(kind(value))
    if isinstance(value, BUFFERS):
        return leaf_of(np.asarray(value))
    if isinstance(value, (str, bytes)) or not hasattr(value, "__array__"):
        raise TypeError
    return leaf_of(as_tensor(value))


def device_leaf(value: Any) -> tuple[LeafKey, DeviceValue] | None:
    """As `leaf_of` for an array on a device, weft's or another library's; None for all else."""
    if type(value) is not DeviceArray:
        if isinstance(value, (Operators, np.ndarray)) or not is_on_gpu(value):
            return None
        value = borrowed_array(value)
    held = value._held
    return (held.shape, held.dtype, value.weak), held


def scalar_array(value: bool | int | float | complex) -> Array:
    """A Python scalar as a 0-d array. InvalidArgumentError for an integer beyond int64."""
    data = as_tensor(value)._data
    assert data is not None
    return data


def leaves_of(
    function: str, leaves: Sequence[Any], structure: pytree.Structure, names: Sequence[str],
    on_gpu: bool = False,
) -> tuple[tuple[LeafKey, ...], list[Any]]:  # fmt: skip
    """Keys and arrays of all leaves; on_gpu: what is on a device stays there. TypeRuleError naming
    the argument that is no tensor."""
    keys: list[LeafKey] = []
    arrays: list[Any] = []
    for i, leaf in enumerate(leaves):
        try:
            key, array = (device_leaf(leaf) if on_gpu else None) or leaf_of(leaf)
        except TypeError as error:
            if isinstance(error, WeftError):
                raise
            path = Signature(structure, (), tuple(names)).paths(names)[i]
            raise TypeRuleError(
                f"argument {path} of '{function}' is a {type(leaf).__name__}, not a tensor: "
                f"{leaf!r:.60}",
                hint=_no_tensor_hint(structure, i, path, leaf),
                location=caller_location(),
            ) from None
        keys.append(key)
        arrays.append(array)
    return tuple(keys), arrays


def _no_tensor_hint(structure: pytree.Structure, i: int, path: str, leaf: object) -> str:
    """What to do with leaf `i`, which is no tensor: an argument, or a part of one."""
    around = pytree.container_of(structure, i)
    argument = path.split("[")[0].split(".")[0]
    if argument == path:
        hint = (
            f"compile with static_argnames=({path!r},) if it is a setting that the code depends on"
        )
        text = isinstance(leaf, (str, bytes))
        return f"{hint}; wf.asarray('...') makes a tensor of a string" if text else hint
    if not pytree.field_names(around):
        return (
            f"pass it as an argument of its own, named in static_argnames; '{argument}' as a whole "
            "holds tensors"
        )
    field = path.rsplit(".", 1)[-1]
    name = around.__name__
    rest = [n for n in pytree.field_names(around) if n != field]
    children = "".join(f"x.{n}, " for n in rest).rstrip()
    made = ", ".join([f"{n}=c[{k}]" for k, n in enumerate(rest)] + [f"{field}=m"])
    return (
        f"say that '{field}' is no tensor but part of the signature: wf.register_pytree({name}, "
        f"lambda x: (({children}), x.{field}), lambda m, c: {name}({made}))"
    )


def has_value(array: Array | None, key: LeafKey) -> bool:
    """Whether a leaf can be passed in a call: a type has no value."""
    return array is not None or isinstance(key, Identity)


def holds_symbolic(tree: Any) -> bool:
    """Whether a leaf is a tensor of a graph. It looks at no array on a device."""
    return any(
        isinstance(x, Tensor) and type(x) is not DeviceArray and x._data is None
        for x in pytree.tree_leaves(tree)
    )


def passes_as_is(given: Any, key: LeafKey) -> bool:
    """Whether an argument needs no conversion, whatever its value: of byte order, of strings, or of
    a number to the dtype that an input signature gives."""
    if not isinstance(key, tuple):
        return True
    if type(given) is np.ndarray:
        return bool(given.dtype == key[1] and given.dtype.kind != "O")
    return bool(key[2]) or not _is_weak(given)


def _is_weak(given: Any) -> bool:
    if isinstance(given, Tensor):
        return given.weak
    return isinstance(given, (int, float, complex)) and not isinstance(given, (bool, np.generic))


def differences(new: Signature, old: Signature, parameters: Sequence[str]) -> list[str]:
    """The fields in which `new` differs from `old`, one line each."""
    if new.structure != old.structure or new.names != old.names:
        a, b = pytree.describe(new.structure), pytree.describe(old.structure)
        return [f"the structure of the arguments: {a} instead of {b}"]
    mine, theirs = new.fields(parameters), old.fields(parameters)
    lines = [
        f"{name}: {mine[name]} instead of {theirs.get(name, 'not given')}"
        for name in mine
        if mine[name] != theirs.get(name)
    ]
    lines += [f"{name}: not given instead of {theirs[name]}" for name in theirs if name not in mine]
    return lines or ["an object passed as an argument is another one"]


NUMBERS = {float: np.dtype(np.float64), int: np.dtype(np.int64), bool: np.dtype(np.bool_)}
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_BEHAVED = 0x101  # flags of an array that is C-contiguous and aligned
#: Equal values are alike: not so 0.0 and -0.0, (1,) and (1.0,).
_PLAIN_STATIC = frozenset({int, bool, str, type(None), StaticArray})


def scan(leaves: Sequence[Any], key: list[Any], arrays: list[Any], on_gpu: bool = False) -> bool:
    """Append the key and the array of each leaf; False at the first one that needs a closer
    look. on_gpu: arrays that are on a device may stay there."""
    for a in leaves:
        kind = type(a)
        if kind is Tensor:
            data = a._data
            if data is None or a.weak:
                return False
        elif kind is np.ndarray:
            data = a
            if data.flags.num & _BEHAVED != _BEHAVED:
                return False
        elif kind in NUMBERS and (kind is not int or _INT_MIN <= a <= _INT_MAX):
            key.append(kind)
            arrays.append(np.array(a, NUMBERS[kind]))
            continue
        elif kind is DeviceArray:
            data = a._held
            if a.weak or not on_gpu:
                return False
        else:
            return False
        key.append(data.shape)  # shape first: a dtype compares equal to the class float
        key.append(data.dtype)
        arrays.append(data)
    return True


class NamedCalls:
    """`scan` for calls with keywords or static arguments of one function."""

    def __init__(self, signature: inspect.Signature, static: frozenset[str], on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = signature.parameters
        self._usable = all(p.kind in plain for p in parameters.values())
        self._position = {name: i for i, name in enumerate(parameters)}
        self._static = static
        self._static_at = frozenset(self._position[name] for name in static)
        self._most = sum(p.kind is plain[0] for p in parameters.values())

    def scan(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], key: list[Any], arrays: list[Any]
    ) -> bool:
        """As the function `scan`; arrays are appended in the order of the parameters."""
        count = len(args)
        if not self._usable or count > self._most:
            return False
        key.append(count)
        dynamic = [a for i, a in enumerate(args) if i not in self._static_at]
        for i in self._static_at:
            if i < count:
                if type(args[i]) not in _PLAIN_STATIC:
                    return False
                key += (type(args[i]), args[i])
        last = count - 1
        for name, value in kwargs.items():
            key.append(name)
            if name in self._static:
                if type(value) not in _PLAIN_STATIC:
                    return False
                key += (type(value), value)
                continue
            position = self._position.get(name, -1)
            if position <= last:  # unknown, given twice, or out of order
                return False
            last = position
            dynamic.append(value)
        return scan(dynamic, key, arrays, self._on_gpu)
