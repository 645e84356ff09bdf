"""Assembly facts of a kernel: vector width, vector instructions and spills of hot loops.

A loop is the text from a label to a jump back to it; it is innermost if no other loop lies in it.
The hot loops are the innermost ones that use the widest vectors: LLVM puts the remainder of a
vectorised loop into narrower loops behind it. x86-64 (AT&T syntax) and AArch64."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from weft.codegen.llvm.jit import kernel_asm
from weft.ir.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AsmFacts:
    """Facts of a kernel's assembly. vector_bits: the widest vector register in an innermost loop, 0
    if its code is scalar or it has no loop. vector_instructions: instructions on vectors of that
    width in the hot loops. spill_stores, spill_loads: accesses to the stack in the hot loops.
    instructions: all of the hot loops. calls: functions of other libraries that the kernel calls
    (`memcpy`, `expf`)."""

    vector_bits: int
    vector_instructions: int
    spill_stores: int
    spill_loads: int
    instructions: int
    calls: tuple[str, ...]

    @property
    def spills(self) -> int:
        """Accesses to the stack in the hot loops, loads and stores."""
        return self.spill_stores + self.spill_loads


def kernel_facts(keys: Sequence[str]) -> AsmFacts:
    """The facts of compiled kernels that run together (a product and its epilogue, say). KeyError
    if one is not compiled."""
    return asm_facts("\n".join(kernel_asm(key) for key in keys))


def asm_facts(text: str) -> AsmFacts:
    """The facts of an assembly text."""
    lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    loops = [lines[a:b] for a, b in _innermost(lines)]
    bodies = [[line for line in loop if _is_instruction(line)] for loop in loops]
    widths = [max(map(_vector_bits, body), default=0) for body in bodies]
    widest = max(widths, default=0)
    hot = [line for body, w in zip(bodies, widths, strict=True) if w == widest for line in body]
    touches = [line for line in hot if _on_stack(line)]
    stores = sum(map(_stores, touches))
    return AsmFacts(
        widest,
        sum(widest > 0 and _vector_bits(line) == widest for line in hot),
        stores,
        len(touches) - stores,
        len(hot),
        tuple(sorted(_outside_calls(lines))),
    )


_LABEL = re.compile(r"^([.\w$@]+):")
_JUMP = re.compile(r"^(?:j\w+|b|b\.\w+|cbn?z|tbn?z)\s+(?:[^,]+,\s*)*([.\w$]+)$")
_CALL = re.compile(r"^(?:callq?|jmp|blr?)\s+\*?([\w.$]+)(?:@PLT)?$")
_STACK = re.compile(r"\(%r[sb]p|\[(?:sp|x29)\b")
#: x86 instructions on one element in a vector register.
_SCALAR = re.compile(r"^(?!v?p)\w*(?:s[sdh]|2u?si[lq]?|si2s[sd][lq])$|^v?mov[dq]$|^v?u?comis")


def _innermost(lines: Sequence[str]) -> list[tuple[int, int]]:
    """The ranges [first line, past the last) of loops that hold no other loop."""
    labels: dict[str, int] = {}
    loops: dict[int, int] = {}
    for number, line in enumerate(lines):
        found = _LABEL.match(line)
        if found:
            labels[found[1]] = number
            continue
        jump = _JUMP.match(line)
        if jump and jump[1] in labels:
            loops[labels[jump[1]]] = number + 1
    ranges = list(loops.items())
    return [
        (a, b)
        for a, b in ranges
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in ranges)
    ]


def _is_instruction(line: str) -> bool:
    return bool(line) and not line.startswith(".") and not _LABEL.match(line)


def _vector_bits(line: str) -> int:
    mnemonic = line.split(None, 1)[0]
    for register, bits in (("%zmm", 512), ("%ymm", 256)):
        if register in line:
            return bits
    if "%xmm" in line:
        return 0 if _SCALAR.search(mnemonic) else 128
    if re.search(r"\bq\d+\b|\bv\d+\.(?:16b|8h|4s|2d)", line):  # NEON
        return 128
    return 0


def _on_stack(line: str) -> bool:
    return bool(_STACK.search(line)) and not line.startswith(("lea", "call", "push", "pop"))


def _stores(line: str) -> bool:
    mnemonic, _, operands = line.partition("\t")
    if "%" in operands:  # AT&T: the destination is last
        return operands.endswith(")") and "mov" in mnemonic
    return mnemonic.startswith("st")


def _outside_calls(lines: Sequence[str]) -> Iterator[str]:
    own = {found[1] for line in lines if (found := _LABEL.match(line))}
    seen = set()
    for line in lines:
        call = _CALL.match(line.replace("\t", " "))
        name = call[1].removesuffix("@PLT").removesuffix("@GOTPCREL") if call else ""
        known = not name or name in own or name.startswith((".", "r", "weft")) or name.isdigit()
        if not known and name not in seen:
            seen.add(name)
            yield name
