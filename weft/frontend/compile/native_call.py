"""Calls of compiled functions without Python in between: the tables that the native entry reads.

`callable_class` makes a subclass whose instances CPython calls through a C function of their own
(`weft.runtime.native.call_path.vectorcall`), once a signature is known that it can check: arrays,
tensors and numbers, nested in tuples, lists and dicts with string keys, by position or keyword.
Everything else falls through to the `__call__` that is written in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from weft.frontend.compile.arguments import StaticArray
from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import _current
from weft.ir.process import cpython
from weft.runtime.native import layout as at
from weft.runtime.native.api import NativeApi, native_api, word_of
from weft.runtime.native.step import NativeStep

MOST_ENTRIES = 8  # each is tried in turn
_HEAD = 2  # words of an instance: the C function, and the address of its table
_NUMBER_KINDS = {float: at.LEAF_FLOAT, int: at.LEAF_INT, bool: at.LEAF_BOOL}
_IMMUTABLE = frozenset({bool, int, float, str, type(None), StaticArray})
_BASETYPE, _HAVE_VECTORCALL = 1 << 10, 1 << 11
_T_PYSSIZET, _READONLY, _TP_MEMBERS = 19, 1, 72


class Static:
    """An argument that is part of the signature: the native entry takes this object alone."""

    def __init__(self, value: object) -> None:
        if type(value) not in _IMMUTABLE:
            raise LookupError
        self.value = value


class NativeEntry:
    """One specialisation: how its arguments are recognised and its results put together.

    arguments: in the order in which they are passed, the structure and the number of the first leaf
    of each. leaves: of each its (shape, dtype, weak), and the argument that it was made for.
    keywords: the names of the last arguments. Raises LookupError for what the native entry does not
    know.
    """

    def __init__(
        self,
        arguments: Sequence[tuple[pytree.Structure | Static, int]],
        keywords: tuple[str, ...],
        leaves: Sequence[tuple[Any, Any]],
        step: NativeStep,
        results: pytree.Structure,
        weak: Sequence[bool],
        pack: Callable[..., Any],
    ) -> None:
        self._keep: list[Any] = [step, keywords]
        self._rows: list[int] = []
        self._registers = len(arguments)
        self._leaves = leaves
        for register, (structure, self._leaf_number) in enumerate(arguments):
            if isinstance(structure, Static):
                self._keep.append(structure)
                self._rows += [at.MATCH_SAME, register, id(structure.value), 0]
            else:
                self._match(structure, register)
        program = self._table(self._rows)
        self._pack_rows: list[int] = []
        self._weak = iter(weak)
        self._tensors = self._height = 0
        packer = 0
        try:
            self._pack(results)
        except LookupError:
            packer = id(pack)
            self._keep.append(pack)
        packed = self._table(self._pack_rows)
        self.words = (ctypes.c_int64 * 16)()
        given = {
            at.E_OWNER: id(self), at.E_ARGUMENTS: len(arguments),
            at.E_COUNT: len(arguments) - len(keywords),
            at.E_KEYWORDS: id(keywords) if keywords else 0,
            at.E_PROGRAM: program, at.E_PROGRAM_END: program + 8 * len(self._rows),
            at.E_INPUTS: len(leaves), at.E_REGISTERS: self._registers, at.E_STEP: step.address,
            at.E_PACK: packed, at.E_PACK_END: packed + 8 * len(self._pack_rows),
            at.E_PACKER: packer,
        }  # fmt: skip
        for offset, value in given.items():
            self.words[offset // 8] = value
        # registers, places, results, and the stack of objects with room for the tallest
        self.stack = self._registers + 2 * len(leaves) + 2 * len(weak) + self._height + 8

    def take_used(self) -> bool:
        """Whether it ran since the last time this was asked."""
        used = bool(self.words[at.E_USED // 8])
        self.words[at.E_USED // 8] = 0
        return used

    def _table(self, rows: Sequence[int]) -> int:
        held = (ctypes.c_int64 * max(len(rows), 1))(*rows)
        self._keep.append(held)
        return ctypes.addressof(held)

    # ---------------------------------------------------------------------------------- arguments
    def _match(self, node: pytree.Structure, register: int) -> None:
        if node is None:
            leaf = self._leaf(*self._leaves[self._leaf_number])
            self._rows += [at.MATCH_LEAF, register, leaf, self._leaf_number]
            self._leaf_number += 1
            return
        if node.cls is type(None):
            self._rows += [at.MATCH_NONE, register, 0, 0]
            return
        first = self._registers
        self._registers += len(node.children)
        if node.cls is dict:
            assert isinstance(node.meta, tuple)
            if not all(type(key) is str for key in node.meta):
                raise LookupError  # looking another key up may run Python code
            self._keep.append(node.meta)
            self._rows += [at.MATCH_DICT, register, id(node.meta), first]
        elif node.cls in (tuple, list):
            code = at.MATCH_TUPLE if node.cls is tuple else at.MATCH_LIST
            self._rows += [code, register, len(node.children), first]
        else:
            raise LookupError
        for i, child in enumerate(node.children):
            self._match(child, first + i)

    def _leaf(self, key: Any, given: Any) -> int:
        if not isinstance(key, tuple):
            raise LookupError  # an object that is part of the signature
        shape, dtype, weak = key
        if type(given) in _NUMBER_KINDS:
            return self._table([_NUMBER_KINDS[type(given)], 0, 0, 0])
        if weak:
            raise LookupError
        scalar = 0
        if not shape and dtype.kind in "biuf" and dtype.type.__module__ == "numpy":
            scalar = id(dtype.type)
        self._keep.append(dtype)
        return self._table([at.LEAF_ARRAY, id(dtype), len(shape), scalar, *shape])

    # ------------------------------------------------------------------------------------ results
    def _pack(self, node: pytree.Structure) -> None:
        if node is None:
            weak = id(True) if next(self._weak) else id(False)
            self._pack_rows += [at.PACK_TENSOR, self._tensors, weak, 0]
            self._tensors += 1
            return
        if node.cls is type(None):
            self._pack_rows += [at.PACK_NONE, 0, 0, 0]
            self._height += 1
            return
        codes = {tuple: at.PACK_TUPLE, list: at.PACK_LIST, dict: at.PACK_DICT}
        if node.cls not in codes:
            raise LookupError
        for child in node.children:
            self._pack(child)
        self._keep.append(node.meta)
        self._pack_rows += [codes[node.cls], len(node.children), id(node.meta), 0]
        self._height += 1


class NativeCalls:
    """The table of one compiled function, filled as it meets signatures."""

    def __init__(self, function: object) -> None:
        self._function = id(function)  # it holds this
        self._entries: list[NativeEntry] = []
        self._words = (ctypes.c_int64 * (at.S_ENTRIES // 8 + MOST_ENTRIES))()

    def install(self, entries: Iterable[NativeEntry]) -> None:
        """Make these the signatures that are tried, the first `MOST_ENTRIES` of them."""
        api = native_api()
        if api is None:
            return
        kept = list(entries)[:MOST_ENTRIES]
        words = self._words
        words[at.S_COUNT // 8] = 0  # other threads may call meanwhile
        words[at.S_API // 8] = api.table
        words[at.S_FALLBACK // 8] = id(_fallback)
        words[at.S_TRACE // 8] = id(_current)
        words[at.S_STACK // 8] = max((e.stack for e in kept), default=1)
        for i, entry in enumerate(kept):
            words[at.S_ENTRIES // 8 + i] = ctypes.addressof(entry.words)
        self._entries = kept
        words[at.S_COUNT // 8] = len(kept)
        cls = ctypes.c_int64.from_address(self._function + at.OBJECT_TYPE).value
        offset = ctypes.c_int64.from_address(cls + at.TYPE_VECTORCALL).value
        head = (ctypes.c_int64 * _HEAD).from_address(self._function + offset)
        head[1] = ctypes.addressof(words)
        head[0] = api.functions["vectorcall"]


def _fallback(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What the native entry calls for what it does not know."""
    return type(function).__call__(function, *args, **kwargs)


def prepare() -> NativeApi | None:
    """The native call path with what it must know of tensors; None where there is none."""
    api = native_api()
    if api is not None and not api.words[at.TENSOR // 8]:
        data, value, trace, weak = np.zeros(1), object(), object(), object()
        probe = Tensor(data, value, trace, weak)  # type: ignore[arg-type]
        for offset, held in ((at.TENSOR_DATA, data), (at.TENSOR_VALUE, value),
                             (at.TENSOR_TRACE, trace), (at.TENSOR_WEAK, weak)):  # fmt: skip
            api.set(offset, word_of(probe, held))
        api.set(at.TENSOR, id(Tensor))
    return api


# ------------------------------------------------------------------------------------------- types
class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("function", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint), ("slots", ctypes.c_void_p),
    )  # fmt: skip


_specs: list[Any] = []  # CPython may keep the names that it was given


def callable_class(base: type) -> type:
    """A subclass of `base` whose instances end with the two words of `_HEAD`, zero at first: then
    CPython calls `base.__call__`. By PyType_FromSpecWithBases, all of it public C API."""
    size = base.__basicsize__
    name = f"{base.__module__}.{base.__name__}".encode()
    members = (_Member * 2)(
        _Member(b"__vectorcalloffset__", _T_PYSSIZET, size, _READONLY, None), _Member()
    )
    slots = (_Slot * 2)(_Slot(_TP_MEMBERS, ctypes.addressof(members)), _Slot())
    spec = _Spec(name, size + 8 * _HEAD, 0, _BASETYPE | _HAVE_VECTORCALL, ctypes.addressof(slots))
    _specs.append((spec, slots, members, name))
    make = cpython.PyType_FromSpecWithBases
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    made: type = make(ctypes.addressof(spec), (base,))
    made.__module__, made.__qualname__ = base.__module__, base.__qualname__
    return made
