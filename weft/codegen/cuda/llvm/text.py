"""The text of one LLVM function while it is written: instructions, labels, variables."""

from __future__ import annotations

from weft.codegen.cuda.llvm.scalars import TYPES
from weft.codegen.cuda.reading.kinds import Kind, Pointer

#: LLVM's number of each space of memory, as the NVPTX target has them.
SPACES = {"global": "ptr addrspace(1)", "shared": "ptr addrspace(3)", "local": "ptr"}


def type_of(kind: Kind) -> str:
    """LLVM's type of values of a kind."""
    if isinstance(kind, Pointer):
        return SPACES[kind.space]
    if isinstance(kind, tuple):
        return f"{{ {', '.join(type_of(k) for k in kind)} }}"
    return "void" if kind == "none" else TYPES[kind]


class Module:
    """What the functions of one module share: declarations, and arrays in shared memory. `cc`:
    the architecture that they are for."""

    def __init__(self, cc: tuple[int, int]) -> None:
        self.cc = cc
        self.declarations: dict[str, str] = {}
        self.arrays: list[str] = []

    def declare(self, name: str, result: str, arguments: list[str]) -> None:
        """Functions that are called are declared, each once."""
        self.declarations[name] = f"declare {result} @{name}({', '.join(arguments)})"

    def array(self, element: str, size: int) -> str:
        """An array of a block's shared memory, of undefined content."""
        name = f"@array_{len(self.arrays)}"
        of = f"[{size} x {element}] undef, align 16"
        self.arrays.append(f"{name} = internal addrspace(3) global {of}")
        return name


class Text:
    """Lines of one function. `live`: whether the end of the text is reached."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.allocated: list[str] = []
        self.lines: list[str] = []
        self.fresh = 0
        self.live = True

    def new(self, letter: str) -> str:
        """A name that no other is."""
        self.fresh += 1
        return f"%{letter}{self.fresh}"

    def line(self, text: str) -> None:
        """Adds an instruction without a result."""
        self.lines.append("  " + text)

    def value(self, text: str) -> str:
        """Adds an instruction; returns its result."""
        name = self.new("x")
        self.lines.append(f"  {name} = {text}")
        return name

    def call(self, name: str, result: str, *arguments: str, attribute: str = "") -> str:
        """Calls a function of the module, or one that it declares; arguments: with their types.
        attribute: LLVM's, of this call."""
        text = f"call {result} @{name}({', '.join(arguments)}) {attribute}".rstrip()
        if result == "void":
            self.line(text)
            return ""
        return self.value(text)

    def intrinsic(self, name: str, result: str, *arguments: str, attribute: str = "") -> str:
        """Calls a function that LLVM or libdevice knows."""
        self.module.declare(name, result, [a.rpartition(" ")[0] for a in arguments])
        return self.call(name, result, *arguments, attribute=attribute)

    def variable(self, element: str) -> str:
        """Room for a value on the stack, which LLVM keeps in registers if it can."""
        name = self.new("v")
        self.allocated.append(f"  {name} = alloca {element}")
        return name

    def label(self, name: str) -> None:
        """The text goes on at a label."""
        self.lines.append(f"{name[1:]}:")
        self.live = True

    def jump(self, label: str) -> None:
        """Goes on at a label, if this point is reached."""
        if self.live:
            self.line(f"br label {label}")
        self.live = False

    def branch(self, condition: str, then: str, other: str) -> None:
        """Goes on at one of two labels."""
        self.line(f"br i1 {condition}, label {then}, label {other}")
        self.live = False
