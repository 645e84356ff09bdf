"""NVIDIA's libdevice: the LLVM of mathematical functions, of which a module takes what it calls.

The file is read once in a process, and its functions are kept as text: linking the whole file to
each kernel would take longer than compiling most kernels does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from weft.codegen.cuda.llvm.scalars import CONTRACT
from weft.codegen.llvm.compile import llvm_text

_HEAD = re.compile(r"^(?:define|declare) .*?@([\w.$]+)\(", re.MULTILINE)
_GLOBAL = re.compile(r"^(@[\w.$]+) = (.*)$", re.MULTILINE)
_QUESTION = re.compile(r'c"(\w+)\\00"')
_PARTS = re.compile(r"^(?=define |declare )", re.MULTILINE)
_NAME = re.compile(r"@([\w.$]+)")
_STRUCT = re.compile(r"^%[\w.]+ = type .*$", re.MULTILINE)
# Attribute groups and debug locations of calls; `!llvm.loop` refers to metadata, too.
_LOOSE = re.compile(r" #\d+|, !(?:srcloc|llvm\.loop) !\d+")
_LINKAGE = re.compile(r"^define (?:(?:internal|linkonce_odr|weak|hidden|dso_local) )*")
_ATTRIBUTES = "alwaysinline nounwind"
# What libdevice asks of who compiles it: flush small numbers to 0, round square roots correctly,
# the architecture.
_REFLECT = re.compile(r"call i32 @__nvvm_reflect\(ptr (@[\w.]+)\)")
# As nvcc compiles it: products and sums may become one fma.
_SUMS = re.compile(r"= (fadd|fsub|fmul) (?=float|double)")
_ANSWERS = {"__CUDA_FTZ": "0", "__CUDA_PREC_SQRT": "1"}


class Libdevice:
    """The definitions of a module's text; `structs`: its types."""

    def __init__(self, text: str) -> None:
        self.structs = "\n".join(_STRUCT.findall(text))
        self._texts: dict[str, str] = {}
        self._questions: dict[str, str] = {}
        self._definitions: dict[str, tuple[str, tuple[str, ...]]] = {}
        head, *parts = _PARTS.split(text)
        for name, value in _GLOBAL.findall(head):
            asked = _QUESTION.search(value)
            if asked is not None:
                self._questions[name] = asked[1]
            else:
                self._definitions[name[1:]] = f"{name} = {value}", ()
        for part in parts:
            named = _HEAD.match(part)
            assert named is not None
            self._texts[named[1]] = part

    def taken(self, names: Iterable[str], cc: tuple[int, int]) -> dict[str, str]:
        """These functions and all that they refer to, by name, for an architecture. KeyError for
        a function that is not there."""
        open_ = list(names)
        found: dict[str, str] = {}
        while open_:
            name = open_.pop()
            if name not in found:
                found[name], more = self._definition(name)
                open_ += more
        known = _ANSWERS | {"__CUDA_ARCH": str(100 * cc[0] + 10 * cc[1])}
        answers = {name: known[question] for name, question in self._questions.items()}
        for name, text in found.items():
            found[name] = _REFLECT.sub(lambda asked: f"add i32 {answers[asked[1]]}, 0", text)
        return found

    def _definition(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The text of a function or a variable, and the names that it refers to."""
        known = self._definitions.get(name)
        if known is None:
            text = _definition(self._texts[name])
            names = (n for n in _NAME.findall(_REFLECT.sub("", text)) if n != name)
            known = self._definitions[name] = text, tuple(dict.fromkeys(names))
        return known


@cache
def read(path: Path) -> Libdevice:
    """The functions of a libdevice file."""
    return Libdevice(llvm_text(path.read_bytes()))


def _definition(part: str) -> str:
    """The text of the function that `part` begins with."""
    if not part.startswith("define"):
        return _LOOSE.sub("", part[: part.index("\n")])
    body = _LOOSE.sub("", part[: part.index("\n}\n") + 3])
    body = _SUMS.sub(rf"= \1 {CONTRACT} ", body)
    first, _, rest = _LINKAGE.sub("define internal ", body).partition("{\n")
    return f"{first}{_ATTRIBUTES} {{\n{rest}"
