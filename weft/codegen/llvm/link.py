"""Linking of object code into the process.

A loader of x86-64 ELF objects, LLVM's linker for all others, and the addresses of the functions of
the C library and of SciPy's BLAS and LAPACK that native code calls.

LLVM's own linker needs LLVM in the process: 44 MB of resident memory and 30 ms before the first
kernel from disk runs. What it does for weft's kernels is little: they refer to their own sections
and call functions of the C library, in two kinds of relocation. `load` does that much and raises
`UnsupportedObjectError` for anything else. Layouts: elf(5), 64-bit, little-endian; relocations:
System V ABI, AMD64 supplement, table 4.9."""

from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import itertools
import logging
import mmap
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from weft.codegen.llvm.target import binding, create_machine
from weft.ir.dataclass import dataclass
from weft.ir.ops.elementwise import mathematics
from weft.ir.process import around_fork, cpython

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


_log = logging.getLogger("weft.compile")
_library_numbers = itertools.count()


class UnknownSymbolError(RuntimeError):
    """Object code calls a function that none of the libraries below has."""


@cache
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@cache
def _libraries() -> list[ctypes.CDLL]:
    """The C library (memcpy), its mathematics, and the compiler's run-time library (16-bit floats,
    128-bit integers)."""
    libraries = [_c_library()]
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


#: BLAS's letter for each dtype that it has routines for.
LETTER = {"f32": "s", "f64": "d", "c64": "c", "c128": "z"}


#: The words by which native code has OpenBLAS work on one thread, by their name for
#: `routine_address`: how many calls want it so, how many threads there were before (0: they are
#: there), the addresses of OpenBLAS's functions that get and set their number (0 in another BLAS)
#: and of those that lock and unlock a mutex, and that, in as many words as it has at most.
BLAS_THREADS = "blas_threads"
THREADS_CALLS, THREADS_BEFORE, THREADS_GET, THREADS_SET, MUTEX_LOCK, MUTEX_UNLOCK = range(6)
THREADS_MUTEX, THREADS_WORDS = 6, 22

_blas_words = (ctypes.c_int64 * THREADS_WORDS)()
_blas_mutex = ctypes.c_void_p(ctypes.addressof(_blas_words) + 8 * THREADS_MUTEX)


@cache
def blas_threads_address() -> int:
    """The address of the words. Two threads may fill them in at once: with the same."""
    _blas_words[MUTEX_LOCK] = symbol_address("pthread_mutex_lock")
    _blas_words[MUTEX_UNLOCK] = symbol_address("pthread_mutex_unlock")
    for word, name in ((THREADS_GET, "get"), (THREADS_SET, "set")):
        for prefix in ("scipy_", ""):
            function = getattr(_library(), f"{prefix}openblas_{name}_num_threads", None)
            if function is not None and not _blas_words[word]:
                _blas_words[word] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return ctypes.addressof(_blas_words)


def _before_fork() -> None:
    """OpenBLAS starts its threads again, under a lock of its own, when their number is set after a
    fork: a child forked meanwhile would wait for that lock for ever."""
    _c_library().pthread_mutex_lock(_blas_mutex)


def _after_fork() -> None:
    _c_library().pthread_mutex_unlock(_blas_mutex)


def _after_fork_in_child() -> None:
    """The calls that wanted one thread are not here. That OpenBLAS has its threads again is left to
    the next such call: it takes locks that threads of the parent may have held."""
    _blas_words[THREADS_CALLS] = 0
    _c_library().pthread_mutex_init(_blas_mutex, None)


if os.name == "posix":
    _c_library().pthread_mutex_init(_blas_mutex, None)
    around_fork(_before_fork, _after_fork, _after_fork_in_child)


@cache
def routine_address(routine: str) -> int:
    """The address of a Fortran-convention BLAS or LAPACK routine ("sgemm", "dpotrf"), or of the
    words `BLAS_THREADS`; KeyError if SciPy has none."""
    if routine == BLAS_THREADS:
        return blas_threads_address()
    library = _library()
    # SciPy's own wheels prefix the names of their OpenBLAS, other builds use the system's
    for symbol in (f"scipy_{routine}_", f"{routine}_"):
        function = getattr(library, symbol, None)
        if function is not None:
            return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return _capsule_address(routine)


@cache
def _library() -> ctypes.CDLL | None:
    """The extension module that is linked with SciPy's BLAS, as a shared library.

    Importing it as a module imports all of `scipy.linalg`, 60 ms and more.
    """
    package = importlib.util.find_spec("scipy")
    for folder in (package and package.submodule_search_locations) or ():
        where = [str(Path(folder) / "linalg")]
        spec = importlib.machinery.PathFinder.find_spec("scipy.linalg.cython_blas", where)
        if spec is not None and spec.origin is not None:
            return ctypes.CDLL(spec.origin)
    return None


def _capsule_address(routine: str) -> int:
    """Of a library that is not linked so: SciPy's wrapper, which has the same arguments, without
    the lengths of strings; it does not read those."""
    modules = [importlib.import_module(f"scipy.linalg.cython_{x}") for x in ("blas", "lapack")]
    blas, lapack = (module.__pyx_capi__ for module in modules)
    capsule = blas[routine] if routine in blas else lapack[routine]
    api = cpython
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return int(address)
