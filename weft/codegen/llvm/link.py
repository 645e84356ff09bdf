"""Linking object code into the process, and where the functions that it calls come from."""

from __future__ import annotations

import ctypes
import itertools
import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from weft.codegen.llvm.elf import UnsupportedObjectError, is_elf, load, read_object
from weft.codegen.llvm.target import binding, create_machine
from weft.ir.mathematics import mathematics

_log = logging.getLogger("weft.compile")
_library_numbers = itertools.count()


class UnknownSymbolError(RuntimeError):
    """Object code calls a function that none of the libraries below has."""


@cache
def _libraries() -> list[ctypes.CDLL]:
    """The C library (memcpy), its mathematics, and the compiler's run-time library (16-bit floats,
    128-bit integers)."""
    libraries = [ctypes.CDLL(None)]
    finders: list[Callable[[], ctypes.CDLL]] = [mathematics, lambda: ctypes.CDLL("libgcc_s.so.1")]
    for find in finders:
        try:
            libraries.append(find())
        except OSError:  # no such library here: its functions are missed when code needs them
            continue
    return libraries


@cache
def symbol_address(name: str) -> int:
    """The address of the C function `name`. UnknownSymbolError if no library has it."""
    for library in reversed(_libraries()):
        try:
            function = getattr(library, name)
        except AttributeError:
            continue
        address = ctypes.cast(function, ctypes.c_void_p).value
        if address:
            return address
    raise UnknownSymbolError(f"it calls '{name}', which the C library does not have")


def imports_of(code: bytes) -> dict[str, int]:
    """Names and addresses of the functions that object code calls. UnknownSymbolError."""
    if not is_elf(code):
        return {}
    # _GLOBAL_OFFSET_TABLE_ is the linker's own
    names = [name for name in read_object(code).undefined() if not name.startswith("_GLOBAL_")]
    return {name: symbol_address(name) for name in names}


@cache
def _jit() -> Any:
    return binding().create_lljit_compiler(
        create_machine(), use_jit_link=True, suppress_errors=True
    )


class Linked:
    """Code in the process: `addresses` by symbol. It is unloaded with the last reference; can_go:
    that needs nothing of LLVM's, which may be gone when the process ends."""

    def __init__(self, held: Any, addresses: dict[str, int], can_go: bool) -> None:
        self._held = held
        self.can_go = can_go
        self.addresses = addresses


def link(objects: Sequence[tuple[str, bytes]], imports: dict[str, int]) -> Linked:
    """Link (exported symbol, object code) together. RuntimeError, from LLVM, if that fails.

    x86-64 objects as weft's kernels are need no LLVM for it (`elf.load`), others do.
    """
    try:
        image = load(objects, imports)
    except UnsupportedObjectError as reason:
        _log.debug("linked by LLVM: %s", reason)
        return _link_by_llvm(objects, imports)
    return Linked(image, image.addresses, can_go=True)


def _link_by_llvm(objects: Sequence[tuple[str, bytes]], imports: dict[str, int]) -> Linked:
    builder = binding().JITLibraryBuilder()
    for symbol, code in objects:
        builder.add_object_img(code)
        builder.export_symbol(symbol)
        if not is_elf(code):
            builder.add_current_process()
    for name, address in imports.items():
        builder.import_symbol(name, address)
    tracker = builder.link(_jit(), f"weft{next(_library_numbers)}")
    return Linked(tracker, {symbol: tracker[symbol] for symbol, _ in objects}, can_go=False)
