"""A kernel as the text of an LLVM module."""

from __future__ import annotations

from pathlib import Path

from weft.codegen.cuda.kernel import CudaKernel
from weft.codegen.cuda.llvm import libdevice
from weft.codegen.cuda.llvm.functions import function_text
from weft.codegen.cuda.llvm.scalars import CONTRACT
from weft.codegen.cuda.llvm.tensor_cores import takes_shuffles
from weft.codegen.cuda.llvm.text import Module, type_of
from weft.codegen.cuda.reading.reader import read

TRIPLE = "nvptx64-nvidia-cuda"
#: What the names of functions of libdevice begin with.
LIBDEVICE = "__nv_"


def module_text(
    kernel: CudaKernel, symbol: str, cc: tuple[int, int], maths: Path | None = None
) -> str:
    """The module of a kernel, which is named `symbol` there; maths: the libdevice file whose
    functions are put in (None: they are declared). EmulationError where the source breaks a rule of
    the language."""
    program, module = read(kernel), Module(cc)
    functions = []
    for function in program.functions:
        if function.is_kernel:
            bounds = f' "nvvm.maxntid"="{kernel.threads}"'
            # what shuffles bring takes registers, too
            if kernel.blocks and not takes_shuffles(kernel.source, cc):
                bounds += f' "nvvm.minctasm"="{kernel.blocks}"'
            head, end = f"define ptx_kernel void @{symbol}", f" convergent nounwind{bounds}"
        else:
            head = f"define internal {type_of(function.result)} @f{function.number}"
            end = " alwaysinline nounwind"
        functions.append(function_text(module, function, head, end))
    called = [name for name in module.declarations if name.startswith(LIBDEVICE)]
    parts = [f'target triple = "{TRIPLE}"']
    if maths is not None and called:
        known = libdevice.read(maths)
        parts.append(known.structs)
        module.declarations |= known.taken(called, cc)
    parts += [*module.arrays, *functions, *module.declarations.values()]
    text = "\n".join(parts) + "\n"
    return text if kernel.contract else text.replace(f" {CONTRACT} ", " ")
