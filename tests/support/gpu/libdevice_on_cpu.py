"""libdevice's functions as a module takes them, carried out on this machine's processor.

The instructions of a GPU that they are made of are defined here: as the PTX manual says where they
are exact, correctly rounded where a GPU's is an approximation.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import binding

from weft.codegen.cuda.cubins import compile

_TYPES = {"f": "float", "d": "double"}
# LLVM's own functions of one or more floats, by the names of NVVM.
_SAME = {
    "fabs.f32": "fabs", "fabs.f64": "fabs", "fma.rn.f": "fma", "fma.rn.d": "fma",
    "sqrt.rn.f": "sqrt", "sqrt.rn.d": "sqrt", "sqrt.approx.f": "sqrt", "floor.f": "floor",
    "trunc.f": "trunc", "trunc.d": "trunc", "round.f": "roundeven", "round.d": "roundeven",
    "ex2.approx.f32": "exp2", "lg2.approx.f": "log2", "fmin.d": "minnum",
}  # fmt: skip
_OPERATORS = {
    "add.rn.f": "fadd", "add.rn.d": "fadd", "mul.rn.f": "fmul", "mul.rn.d": "fmul",
    "div.rn.f": "fdiv", "div.approx.f": "fdiv",
}  # fmt: skip
_OTHERS = """
define float @nvvm.rsqrt.approx.f(float %x) {
  %1 = call float @llvm.sqrt.f32(float %x)
  %2 = fdiv float 1.0, %1
  ret float %2
}
define double @nvvm.rsqrt.approx.d(double %x) {
  %1 = call double @llvm.sqrt.f64(double %x)
  %2 = fdiv double 1.0, %1
  ret double %2
}
define float @nvvm.rcp.approx.f(float %x) {
  %1 = fdiv float 1.0, %x
  ret float %1
}
define double @nvvm.rcp.approx.d(double %x) {
  %1 = fdiv double 1.0, %x
  ret double %1
}
define float @nvvm.saturate.f(float %x) {
  %1 = call float @llvm.maxnum.f32(float %x, float 0.0)
  %2 = call float @llvm.minnum.f32(float %1, float 1.0)
  ret float %2
}
define i32 @nvvm.d2i.lo(double %x) {
  %1 = bitcast double %x to i64
  %2 = trunc i64 %1 to i32
  ret i32 %2
}
define i32 @nvvm.d2i.hi(double %x) {
  %1 = bitcast double %x to i64
  %2 = lshr i64 %1, 32
  %3 = trunc i64 %2 to i32
  ret i32 %3
}
define double @nvvm.lohi.i2d(i32 %low, i32 %high) {
  %1 = zext i32 %high to i64
  %2 = shl i64 %1, 32
  %3 = zext i32 %low to i64
  %4 = or i64 %2, %3
  %5 = bitcast i64 %4 to double
  ret double %5
}
define i32 @nvvm.d2i.rn(double %x) {
  %1 = call double @llvm.roundeven.f64(double %x)
  %2 = call i32 @llvm.fptosi.sat.i32.f64(double %1)
  ret i32 %2
}
define i32 @nvvm.f2i.rn(float %x) {
  %1 = call float @llvm.roundeven.f32(float %x)
  %2 = call i32 @llvm.fptosi.sat.i32.f32(float %1)
  ret i32 %2
}
; the f32 at or next to a sum in f64, on the side of 0, or of -inf
define float @cut(double %s, i1 %down) {
  %r = fptrunc double %s to float
  %e = fpext float %r to double
  %size = call double @llvm.fabs.f64(double %s)
  %got = call double @llvm.fabs.f64(double %e)
  %long = fcmp ogt double %got, %size
  %short = fcmp olt double %got, %size
  %negative = fcmp olt double %s, 0.0
  %away = and i1 %down, %negative
  %less = xor i1 %away, true
  %back = and i1 %less, %long
  %on = and i1 %away, %short
  %word = bitcast float %r to i32
  %lower = sub i32 %word, 1
  %upper = add i32 %word, 1
  %a = select i1 %back, i32 %lower, i32 %word
  %b = select i1 %on, i32 %upper, i32 %a
  %x = bitcast i32 %b to float
  ret float %x
}
define float @nvvm.add.rz.f(float %a, float %b) {
  %1 = fpext float %a to double
  %2 = fpext float %b to double
  %3 = fadd double %1, %2
  %4 = call float @cut(double %3, i1 false)
  ret float %4
}
define float @sub.rn(float %a, float %b) {
  %1 = fsub float %a, %b
  ret float %1
}
define { i32, i32 } @mad.wide(i32 %a, i32 %b, i32 %c) {
  %1 = zext i32 %a to i64
  %2 = zext i32 %b to i64
  %3 = zext i32 %c to i64
  %4 = mul i64 %1, %2
  %5 = add i64 %4, %3
  %6 = trunc i64 %5 to i32
  %7 = lshr i64 %5, 32
  %8 = trunc i64 %7 to i32
  %9 = insertvalue { i32, i32 } poison, i32 %6, 0
  %10 = insertvalue { i32, i32 } %9, i32 %8, 1
  ret { i32, i32 } %10
}
define double @select.equal(double %a, double %b, double %c, double %d) {
  %1 = fcmp ueq double %a, %b
  %2 = select i1 %1, double %c, double %d
  ret double %2
}
declare i32 @llvm.fptosi.sat.i32.f64(double)
declare i32 @llvm.fptosi.sat.i32.f32(float)
declare float @llvm.maxnum.f32(float, float)
"""
_FMA = """
define float @nvvm.fma.{mode}.f(float %a, float %b, float %c) {{
  %1 = fpext float %a to double
  %2 = fpext float %b to double
  %3 = fpext float %c to double
  %4 = fmul double %1, %2
  %5 = fadd double %4, %3
  %6 = call float @cut(double %5, i1 {down})
  ret float %6
}}
"""


def _instructions() -> str:
    """The module of them."""
    text = _OTHERS + _FMA.format(mode="rz", down="false") + _FMA.format(mode="rm", down="true")
    declared = set()
    for name, meaning in _SAME.items():
        of = "double" if name.endswith(("d", "f64")) else "float"
        count = {"fma": 3, "minnum": 2}.get(meaning, 1)
        given = ", ".join(f"{of} %x{k}" for k in range(count))
        own = f"@llvm.{meaning}.{'f64' if of == 'double' else 'f32'}"
        declared.add(f"declare {of} {own}({', '.join([of] * count)})\n")
        text += f"define {of} @nvvm.{name}({given}) {{\n"
        text += f"  %r = call {of} {own}({given})\n  ret {of} %r\n}}\n"
    for name, operator in _OPERATORS.items():
        of = _TYPES[name[-1]]
        text += f"define {of} @nvvm.{name}({of} %a, {of} %b) {{\n"
        text += f"  %r = {operator} {of} %a, %b\n  ret {of} %r\n}}\n"
    declared.add("declare float @llvm.minnum.f32(float, float)\n")
    return text + "".join(declared)


_ASM = re.compile(r'call ([\w{}, ]+?) asm "([^"]*)", "[^"]*"\(')
# What stands in inline assembler -> what it is here.
_ASM_MEANS = {
    "rcp.approx.ftz.f32": "nvvm.rcp.approx.f",
    "rsqrt.approx.ftz.f64": "nvvm.rsqrt.approx.d",
    "sub.rn": "sub.rn",
    "mad.lo.cc.u32": "mad.wide",
    "setp.equ.f64": "select.equal",
}


def _called(found: re.Match[str]) -> str:
    """A call of a function here, for a piece of inline assembler."""
    (means,) = (name for text, name in _ASM_MEANS.items() if text in found[2])
    return f"call {found[1]} @{means}("


# A loop over elements, so that one call does them all.
_LOOP = """
define void @{name}.each(ptr %out, ptr %x, ptr %y, i64 %n) {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %end
body:
  %px = getelementptr {of}, ptr %x, i64 %i
  %py = getelementptr {of}, ptr %y, i64 %i
  %pout = getelementptr {of}, ptr %out, i64 %i
  %a = load {of}, ptr %px
  %b = load {of}, ptr %py
  %r = call {of} @{name}({given})
  store {of} %r, ptr %pout
  %next = add i64 %i, 1
  br label %head
end:
  ret void
}}
"""


class OnCpu:
    """Functions of a libdevice file, by name, on arrays."""

    def __init__(self, path: Path, functions: dict[str, int]) -> None:
        """functions: how many arguments each takes."""
        library = compile.read_libdevice(path)
        texts = library.taken(functions, (9, 0))
        for name in list(texts):
            if name.startswith("llvm.nvvm."):
                del texts[name]
        text = "\n".join([library.structs, *texts.values()])
        for name, count in functions.items():
            head = re.search(rf"define internal (\w+) @{name}\(", text)
            assert head is not None
            given = ", ".join(f"{head[1]} %{v}" for v in "ab"[:count])
            text += _LOOP.format(name=name, of=head[1], given=given)
        text = _ASM.sub(_called, text)
        text = re.sub(r"@llvm\.nvvm\.([\w.]+?)\.ftz(\.\w+)?\b", r"@llvm.nvvm.\1\2", text)
        text = text.replace("@llvm.nvvm.", "@nvvm.").replace(" contract", "")
        text = text.replace(" addrspace(1)", "").replace("addrspace(4)", "")
        text += _instructions()
        kept = dict.fromkeys(re.findall(r"^declare .*$", text, re.MULTILINE))
        text = re.sub(r"^declare .*$", "", text, flags=re.MULTILINE) + "\n".join(kept)
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        features = binding.get_host_cpu_features().flatten()
        machine = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(), features=features, opt=1, jit=True
        )
        library_c = ctypes.CDLL(ctypes.util.find_library("m"))
        for name in ("exp2f", "log2f"):
            address = ctypes.cast(getattr(library_c, name), ctypes.c_void_p).value
            binding.add_symbol(name, address or 0)
        module = binding.parse_assembly(text)
        module.verify()
        self.engine = binding.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()

    def __call__(self, name: str, *args: Any) -> Any:
        x, y = args if len(args) == 2 else (args[0], args[0])
        out = np.empty_like(x)
        address = self.engine.get_function_address(f"{name}.each")
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(address)
        call(out.ctypes.data, x.ctypes.data, y.ctypes.data, x.size)
        return out
