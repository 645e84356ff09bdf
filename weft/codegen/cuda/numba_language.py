"""The vocabulary of kernel source (`language.py`) for numba-cuda.

Loading this module loads numba-cuda: only `compile.py` does, for the first kernel that no cache
has. Casts are Numba's types, maths is libdevice's; everything else is an intrinsic of this module,
typed strictly. The names below `cuda.` that numba-cuda has otherwise, or not at all (unsigned
shuffles, atomics at pointers), are replaced in the syntax tree.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
from collections.abc import Mapping
from functools import cache, lru_cache
from types import CodeType, FunctionType
from typing import Any

from numba import cuda
from numba.cuda import libdevice, types
from numba.cuda.compiler import _compile_pyfunc_with_fixup, compile_cuda
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.dispatcher import CUDADispatcher

from weft.codegen.cuda import numba_intrinsics as own
from weft.codegen.cuda.kernel import CudaKernel
from weft.codegen.cuda.language import (
    ATOMICS,
    CASTS,
    LOADS,
    MATHS,
    SHUFFLES,
    STORES,
    VOTES,
    memory_dtype,
)
from weft.codegen.jit import CodegenError

_NUMBA_TYPES: dict[str, Any] = {
    **{f"i{bits}": getattr(types, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(types, f"uint{bits}") for bits in (8, 16, 32, 64)},
    "f32": types.float32,
    "f64": types.float64,
}
# `cuda.NAME` of the source -> the name here that means it.
_REPLACED = {f"cuda.{name}": f"_{name}" for name in (*SHUFFLES, *VOTES)}
_REPLACED["cuda.syncthreads_or"] = "_syncthreads_or"
_REPLACED |= {f"cuda.atomic.{name}": f"_atomic_{name}" for name in ATOMICS}

Cc = tuple[int, int]


def generation(source: str, cc: Cc) -> Cc:
    """An architecture for which this kernel source means the same LLVM as for `cc`."""
    return (7, 5) if cc < (8, 0) and "f32_to_bf16" in source else (8, 0)


@cache
def namespace(cc: Cc) -> Mapping[str, Any]:
    """What the names of kernel source mean on the architectures of generation `cc`."""
    names: dict[str, Any] = {"cuda": cuda, "boolean": types.boolean}
    names |= {dtype: _NUMBA_TYPES[dtype] for dtype in CASTS}
    for name in MATHS:
        names[f"{name}_f64"] = getattr(libdevice, name)
        names[f"{name}_f32"] = getattr(libdevice, f"{name}f")
    for dtype, name in LOADS.items():
        names[name] = own.load(_NUMBA_TYPES[dtype])
        names[STORES[dtype]] = own.store(_NUMBA_TYPES[dtype])
    names |= {f"_{name}": own.shuffle(mode) for mode, name in enumerate(SHUFFLES)}
    names |= {f"_{name}": own.vote(name) for name in VOTES}
    names |= {f"_atomic_{name}": own.atomic(name) for name in ATOMICS}
    names["_syncthreads_or"] = own.SYNCTHREADS_OR
    names |= own.DIVISIONS | own.BITS
    names |= own.HALVES
    names["f32_to_bf16"] = own.f32_to_bf16(cc >= (8, 0))
    return names


def signature(kernel: CudaKernel) -> Any:
    """Numba's type of the kernel: pointers and 64-bit integers."""
    of = []
    for parameter in kernel.parameters:
        if parameter.kind == "integer":
            of.append(types.int64)
        else:
            of.append(types.CPointer(_NUMBA_TYPES[memory_dtype(parameter.dtype)]))
    return types.void(*of)


def compile_to_ptx(kernel: CudaKernel, cc: Cc) -> str:
    """PTX as numba-cuda makes it, with counters of this process in its names."""
    with global_compiler_lock:
        (text,) = _library(kernel, generation(kernel.source, cc)).get_asm_strs(cc=cc)
    return str(text)


# `cuda.compile` would type and lower the kernel, which is most of the time, for each architecture.
@lru_cache(maxsize=4)
def _library(kernel: CudaKernel, cc: Cc) -> Any:
    """numba-cuda's code library of the kernel: its LLVM for the architectures of a generation."""
    bounds = (kernel.threads, kernel.blocks) if kernel.blocks else kernel.threads
    function, of = kernel_function(kernel, cc), signature(kernel)
    library, _ = _compile_pyfunc_with_fixup(
        function, of, device=False, abi="numba", cc=cc, launch_bounds=bounds
    )
    # Numba says of sums and products of i64 that they do not overflow (`nsw`), and LLVM rewrites
    # `(b + b) >> 16` as `b >> 15`; in kernel source they wrap, as NumPy's do.
    library._llvm_strs = [text.replace(" nsw ", " ") for text in library.llvm_strs]
    return library


def kernel_function(kernel: CudaKernel, cc: Cc) -> FunctionType:
    """The kernel as a Python function for numba-cuda, its device functions compiled when called;
    cc: a generation.

    CodegenError if the source is no Python, or has no function of the kernel's name."""
    try:
        tree = ast.parse(kernel.source)
    except SyntaxError as error:
        raise CodegenError(f"source of kernel '{kernel.name}' is no Python: {error}") from None
    names = dict(namespace(cc))
    kernel_of_name: FunctionType | None = None
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            raise CodegenError(f"source of kernel '{kernel.name}': line {node.lineno} is no 'def'")
        text = ast.get_source_segment(kernel.source, node) or ""
        if node.name == kernel.name:
            kernel_of_name = _define(node.name, text, names)
        else:
            used = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
            called = tuple(
                (name, found)
                for name, found in names.items()
                if name in used and isinstance(found, DeviceFunction)
            )
            names[node.name] = _device_function(node.name, text, called, cc)
    if kernel_of_name is None:
        raise CodegenError(f"source of kernel '{kernel.name}' has no function of this name")
    return kernel_of_name


class DeviceFunction(CUDADispatcher):  # type: ignore[misc]  # not annotated
    """A function that kernels call. numba-cuda asks the driver which GPU to compile it for: here
    that is known, and there may be no driver."""

    def __init__(self, function: FunctionType, cc: Cc) -> None:
        options = {"device": True, "opt": True, "fastmath": False, "forceinline": True}
        super().__init__(function, targetoptions={**options, "debug": False, "lineinfo": False})
        self.cc = cc

    def compile_device(self, args: Any, return_type: Any = None) -> Any:
        if args not in self.overloads:
            compiled = compile_cuda(
                self.py_func,
                return_type,
                args,
                forceinline=True,
                nvvm_options={"opt": 3, "fastmath": False},
                cc=self.cc,
            )
            self.overloads[args] = compiled
            compiled.target_context.insert_user_function(
                compiled.entry_point, compiled.fndesc, [compiled.library]
            )
        return self.overloads[args]


# Device functions are the same in many kernels; what they call is a part of what they are.
@lru_cache(maxsize=512)
def _device_function(
    name: str, text: str, called: tuple[tuple[str, DeviceFunction], ...], cc: Cc
) -> DeviceFunction:
    return DeviceFunction(_define(name, text, {**namespace(cc), **dict(called)}), cc)


def _define(name: str, text: str, names: dict[str, Any]) -> FunctionType:
    """The function of this source text; its globals are `names`."""
    file = f"<weft kernel {name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    tree = ast.fix_missing_locations(_Replace().visit(ast.parse(text)))
    code: CodeType = compile(tree, file, "exec")
    exec(code, names)  # our own text: what codegen wrote
    function = names[name]
    assert isinstance(function, FunctionType)
    return function


class _Replace(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = _REPLACED.get(ast.unparse(node))
        if name is None:
            return self.generic_visit(node)
        return ast.copy_location(ast.Name(name, ast.Load()), node)
