"""Native code for packets (`packet_path.py`): compiled, with its tables and its context.

Tasks have programs for it (`native_parts.py`), sessions send the RUNs of a step by it."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.codegen.llvm import jit
from weft.codegen.llvm.emitter import Emitter
from weft.codegen.native_language import LANGUAGE_VERSION, emit_source
from weft.comm import wire
from weft.runtime.cluster import packet_layout as to
from weft.runtime.cluster import packet_path
from weft.runtime.native import layout as at
from weft.runtime.native.api import (
    NativeApi,
    begin_native_api,
    function_address,
    is_native_api_known,
    method_address,
    native_api_or_none,
)
from weft.runtime.native.step import new_builtin

if TYPE_CHECKING:
    from weft.comm.link import LinkWords

_EXPORTS = ("take", "free_run", "recall", "begin_run", "fan_out")


@cache
def packet_kernel() -> jit.Kernel:
    """The code, as a kernel that stores its functions' addresses."""
    source = inspect.getsource(packet_path)
    numbers = [(k, v) for one in (to, at) for k, v in vars(one).items() if type(v) is int]

    def emit(e: Emitter) -> None:
        emit_source(e, source, {"at": at, "to": to}, _EXPORTS)

    told = f"{source}{numbers}{LANGUAGE_VERSION}"
    digest = hashlib.sha256(told.encode()).hexdigest()
    return jit.Kernel(f"packets-{digest}", "packets", emit, loops=False)


def _functions() -> dict[str, int]:
    address = jit.compile_kernels([packet_kernel()])[packet_kernel().key]
    found = (ctypes.c_int64 * len(_EXPORTS))()
    store = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    store(address)(ctypes.addressof(found), 0, 0, 0)
    return dict(zip(_EXPORTS, found, strict=True))


_begun: list[bool] = []  # no Event: a child would find its lock held by a thread that is gone


def packet_code() -> PacketCode | None:
    """The code, with a context of its own; None until it is compiled, which the first call
    begins."""
    if not to.IS_LINUX:  # there are no lanes elsewhere
        return None
    if not _begun:
        begin_native_api()
        _begun.append(not is_native_api_known() or native_api_or_none() is not None)
        if _begun[0]:
            jit.start_compiling([packet_kernel()])
    api = native_api_or_none() if _begun[0] else None
    if api is None or not jit.is_done(packet_kernel()):
        return None
    return PacketCode(api, _functions())


class PacketCode:
    """The native functions and the words that they are given first (`packet_layout.C_API` and so
    on). own: what these point to."""

    def __init__(self, api: NativeApi, functions: Mapping[str, int]) -> None:
        self._functions, self.own = functions, Words()
        libc = ctypes.CDLL(None)

        def address(name: str) -> int:
            return ctypes.cast(getattr(libc, name), ctypes.c_void_p).value or 0

        self.words = (ctypes.c_int64 * to.CONTEXT_WORDS)()
        self.set({
            to.C_API: api.table, to.C_RECV: address("recv"), to.C_SEND: address("send"),
            to.C_CLOCK: address("clock_gettime"), to.C_ERRNO: address("__errno_location"),
            to.C_BYTES: function_address("PyBytes_FromStringAndSize"),
            to.C_UNSIGNED: function_address("PyLong_FromUnsignedLongLong"),
            to.C_LOCKED: method_address(threading.Lock().locked),
            to.C_IN: self.own.raw(bytes(to.PACKET_BYTES)),
            to.C_OUT: self.own.raw(bytes(to.PACKET_BYTES)), to.C_TIME: self.own.block([0, 0]),
        })  # fmt: skip

    def set(self, words: Mapping[int, int]) -> None:
        """Fill words, by their offsets."""
        for offset, value in words.items():
            self.words[offset // 8] = value

    def function(self, name: str, *kinds: Any) -> Callable[..., int]:
        """One that is called with the GIL held: with arguments of these kinds."""
        kind = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, *kinds)
        return partial(kind(self._functions[name]), ctypes.addressof(self.words))

    def builtin(self, name: str) -> Any:
        """One as a function of Python, of one argument."""
        return new_builtin(self._functions[name], ctypes.addressof(self.words), b"weft.packets")


class Unfit(Exception):
    """The reason why native code cannot do something."""


class Words:
    """Memory that native code reads, and what its addresses point to."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def block(self, values: Iterable[int]) -> int:
        """The address of these words."""
        listed = list(values)
        made = (ctypes.c_int64 * max(len(listed), 1))(*listed)
        self.kept.append(made)
        return ctypes.addressof(made)

    def raw(self, data: bytes) -> int:
        """The address of these bytes."""
        made = ctypes.create_string_buffer(data, len(data) or 1)
        self.kept.append(made)
        return ctypes.addressof(made)

    def object(self, given: object) -> int:
        """The address of an object."""
        self.kept.append(given)
        return id(given)

    def link(self, words: LinkWords) -> int:
        """The row of a link."""
        self.kept.append(words)
        arrays = [address_of(x) for x in (words.sequence, words.expected, words.counts)]
        ends = words.link.token, words.link.incarnation
        return self.block([address_of(words.state), id(words.lock), *arrays, *ends])

    def type(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
        """The row of a tensor's type. `Unfit` for one that no packet holds."""
        code = wire.CODES.get(dtype)
        if code is None:
            raise Unfit(f"{dtype} is not sent as it lies in memory")
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        meta = wire.pack_tensor_meta(code, shape, (), nbytes)
        if to.HEADER + len(meta) + nbytes > to.PACKET_BYTES:
            raise Unfit(f"{nbytes} bytes are no packet")
        dims = self.block(shape)
        own = wire.DTYPES[code]
        return self.block([self.object(own), len(shape), dims, nbytes, len(meta), self.raw(meta)])


def address_of(numbers: array[int]) -> int:
    """Where its numbers are."""
    return numbers.buffer_info()[0]
