"""Linking object code into the process, and where the functions that it calls come from."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import struct
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from weft.codegen.llvm.target import binding, create_machine

_ELF = b"\x7fELF"
_SYMBOL_TABLE = 2  # sh_type SHT_SYMTAB
_library_numbers = itertools.count()


class UnknownSymbolError(RuntimeError):
    """Object code calls a function that none of the libraries below has."""


@cache
def _libraries() -> list[ctypes.CDLL]:
    """The C library (memcpy), its mathematics, and the compiler's run-time library (16-bit floats,
    128-bit integers)."""
    # find_library runs programs of the system for it: 5 ms and more
    mathematics = "libm.so.6" if sys.platform == "linux" else ctypes.util.find_library("m")
    names = [mathematics, "libgcc_s.so.1"]
    libraries = [ctypes.CDLL(None)]
    for name in names:
        try:
            libraries.append(ctypes.CDLL(name))
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


def undefined_symbols(code: bytes) -> list[str]:
    """What an ELF object (64-bit, little-endian) expects from others. Its layout: elf(5)."""
    (section_offset,) = struct.unpack_from("<Q", code, 0x28)
    entry_size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", code, section_offset + k * entry_size)
        for k in range(count)
    ]
    names = []
    for _, kind, _, _, offset, size, link, _, _, symbol_size in sections:
        if kind != _SYMBOL_TABLE:
            continue
        strings = sections[link][4]
        for at in range(offset + symbol_size, offset + size, symbol_size):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if section == 0 and name:
                end = code.index(b"\0", strings + name)
                names.append(code[strings + name : end].decode())
    return names


def imports_of(code: bytes) -> dict[str, int]:
    """Names and addresses of the functions that object code calls. UnknownSymbolError."""
    if not code.startswith(_ELF):
        return {}
    # _GLOBAL_OFFSET_TABLE_ is the linker's own
    names = [name for name in undefined_symbols(code) if not name.startswith("_GLOBAL_")]
    return {name: symbol_address(name) for name in names}


@cache
def _jit() -> Any:
    return binding().create_lljit_compiler(
        create_machine(), use_jit_link=True, suppress_errors=True
    )


class Linked:
    """Code in the process: `addresses` by symbol. It is unloaded with the last reference."""

    def __init__(self, tracker: Any, symbols: Sequence[str]) -> None:
        self._tracker = tracker
        self.addresses: dict[str, int] = {symbol: tracker[symbol] for symbol in symbols}


def link(objects: Sequence[tuple[str, bytes]], imports: dict[str, int]) -> Linked:
    """Link (exported symbol, object code) together. RuntimeError, from LLVM, if that fails."""
    builder = binding().JITLibraryBuilder()
    for symbol, code in objects:
        builder.add_object_img(code)
        builder.export_symbol(symbol)
        if not code.startswith(_ELF):
            builder.add_current_process()
    for name, address in imports.items():
        builder.import_symbol(name, address)
    tracker = builder.link(_jit(), f"weft{next(_library_numbers)}")
    return Linked(tracker, [symbol for symbol, _ in objects])
