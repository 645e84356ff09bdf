"""Relocatable ELF objects (64-bit, little-endian): what is in one, and loading x86-64 ones.

LLVM's own linker needs LLVM in the process: 44 MB of resident memory and 30 ms before the first
kernel from disk runs. What it does for weft's kernels is little: they refer to their own sections
and call functions of the C library, in two kinds of relocation. `load` does that much and raises
`UnsupportedObjectError` for anything else. Layouts: elf(5); relocations: System V ABI, AMD64
supplement, table 4.9.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from weft.ir.dataclass import dataclass

_MAGIC = b"\x7fELF\x02\x01"  # 64-bit, little-endian
_RELOCATABLE, _X86_64 = 1, 62  # e_type, e_machine
_PROGBITS, _SYMTAB, _RELA = 1, 2, 4  # sh_type
_WRITE, _ALLOC, _EXECUTE, _TLS = 0x1, 0x2, 0x4, 0x400  # sh_flags
_UNDEFINED, _RESERVED = 0, 0xFF00  # st_shndx: no section, and the first with a meaning of its own
_PC32, _PLT32 = 2, 4  # R_X86_64_*: both S + A - P, the second for calls
_STUB = struct.Struct("<HIQxx")  # jmp *0(%rip), and the address that it jumps to
_JUMP = 0x25FF


class UnsupportedObjectError(ValueError):
    """An object that `load` does not know how to load: LLVM's linker does."""


@dataclass(frozen=True, slots=True)
class Section:
    """A row of the section table. `info`: what a relocation section applies to."""

    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """A row of the symbol table; `section` is 0 for what others shall define."""

    name: str
    section: int
    value: int


@dataclass(frozen=True)
class Object:
    """An object's bytes and tables."""

    code: bytes
    machine: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    def undefined(self) -> list[str]:
        """Names of what the object expects from others."""
        return [s.name for s in self.symbols if s.section == _UNDEFINED and s.name]


def is_elf(code: bytes) -> bool:
    """Whether it is an object that `read_object` reads."""
    return code.startswith(_MAGIC)


def read_object(code: bytes) -> Object:
    """The tables of an ELF object. UnsupportedObjectError if it is another kind of file."""
    if not is_elf(code) or struct.unpack_from("<H", code, 16) != (_RELOCATABLE,):
        raise UnsupportedObjectError("it is no relocatable ELF object of 64 bits")
    (machine,) = struct.unpack_from("<H", code, 18)
    (start,) = struct.unpack_from("<Q", code, 0x28)
    entry_size, count = struct.unpack_from("<HH", code, 0x3A)
    sections = []
    for k in range(count):
        row = struct.unpack_from("<IIQQQQIIQQ", code, start + k * entry_size)
        _, kind, flags, _, offset, size, link, info, alignment, _ = row
        sections.append(Section(kind, flags, offset, size, link, info, alignment))
    symbols: list[Symbol] = []
    for section in sections:
        if section.kind == _SYMTAB:
            names = sections[section.link].offset
            rows = struct.iter_unpack("<IBBHQQ", _content(code, section))
            for name, _, _, index, value, _ in rows:
                text = code[names + name : code.index(b"\0", names + name)].decode()
                symbols.append(Symbol(text, index, value))
    return Object(code, machine, tuple(sections), tuple(symbols))


def _content(code: bytes, section: Section) -> bytes:
    return code[section.offset : section.offset + section.size]


class Image:
    """Loaded objects: executable code, constants after it. Unmapped with the last reference."""

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.addresses: dict[str, int] = {}

    def protect(self, start: int, end: int, access: int) -> None:
        """Allow `access` and no more to the pages from offset `start` to `end`."""
        if end > start and _mprotect()(self.base + start, end - start, access):
            number = ctypes.get_errno()
            raise OSError(number, f"mprotect of machine code: {os.strerror(number)}")


@cache
def _mprotect() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def load(objects: Sequence[tuple[str, bytes]], imports: Mapping[str, int]) -> Image:
    """Load (exported symbol, object) together; `imports`: addresses of the functions they call.

    The code can be read and executed, the constants read, nothing written. UnsupportedObjectError
    for other machines, writable or thread-local data, and relocations beside the two known ones.
    """
    read = [read_object(code) for _, code in objects]
    places, text_end = _place(read, 0, _ALLOC | _EXECUTE)
    called = sorted({name for one in read for name in one.undefined() if name in imports})
    stubs = {name: _align(text_end, 16) + 16 * k for k, name in enumerate(called)}
    constants = _align(max([text_end, *(at + 16 for at in stubs.values())]), mmap.PAGESIZE)
    rest, end = _place(read, constants, _ALLOC)
    places |= rest
    image = Image(max(_align(end, mmap.PAGESIZE), mmap.PAGESIZE))
    memory = image.memory
    for name, at in stubs.items():
        _STUB.pack_into(memory, at, _JUMP, 0, imports[name])
    for number, one in enumerate(read):
        for k, section in enumerate(one.sections):
            if (number, k) in places:
                at = places[number, k]
                memory[at : at + section.size] = _content(one.code, section)
        for section in one.sections:
            if section.kind == _RELA and (number, section.info) in places:
                _relocate(memory, one, section, number, places, stubs)
    for number, (name, _) in enumerate(objects):
        image.addresses[name] = image.base + _exported(read[number], name, number, places)
    image.protect(0, constants, mmap.PROT_READ | mmap.PROT_EXEC)
    image.protect(constants, len(memory), mmap.PROT_READ)
    return image


def _place(
    objects: Sequence[Object], start: int, flags: int
) -> tuple[dict[tuple[int, int], int], int]:
    """Offsets by (object, section) of the sections with these flags, and the offset after them."""
    places = {}
    for number, one in enumerate(objects):
        if one.machine != _X86_64:
            raise UnsupportedObjectError(f"it is for machine {one.machine}, not x86-64")
        for k, section in enumerate(one.sections):
            if not section.flags & _ALLOC or not section.size:
                continue
            if section.kind != _PROGBITS or section.flags & (_WRITE | _TLS):
                raise UnsupportedObjectError(f"section {k} is neither code nor constants")
            if section.flags & (_ALLOC | _EXECUTE) == flags:
                start = _align(start, section.alignment)
                places[number, k] = start
                start += section.size
    return places, start


def _relocate(
    memory: mmap.mmap,
    one: Object,
    table: Section,
    number: int,
    places: Mapping[tuple[int, int], int],
    stubs: Mapping[str, int],
) -> None:
    for offset, info, addend in struct.iter_unpack("<QQq", _content(one.code, table)):
        symbol, kind = one.symbols[info >> 32], info & 0xFFFFFFFF
        if symbol.section == _UNDEFINED and kind == _PLT32 and symbol.name in stubs:
            target = stubs[symbol.name]
        elif (number, symbol.section) in places and kind in (_PC32, _PLT32):
            target = places[number, symbol.section] + symbol.value
        else:
            raise UnsupportedObjectError(f"relocation {kind} of '{symbol.name}' is not known")
        at = places[number, table.info] + offset
        struct.pack_into("<i", memory, at, target + addend - at)


def _exported(one: Object, name: str, number: int, places: Mapping[tuple[int, int], int]) -> int:
    for symbol in one.symbols:
        if symbol.name == name and symbol.section and symbol.section < _RESERVED:
            return places[number, symbol.section] + symbol.value
    raise UnsupportedObjectError(f"it does not define '{name}'")


def _align(offset: int, alignment: int) -> int:
    return -(-offset // max(alignment, 1)) * max(alignment, 1)
