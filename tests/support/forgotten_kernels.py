"""Kernels that the process has, as if it had not compiled them."""

from __future__ import annotations

from collections.abc import Iterable

from weft.codegen.llvm import jit


def forget_kernels_of(keys: Iterable[str]) -> None:
    """The next time that they are asked for they come from disk, or are compiled."""
    for key in list(keys):
        jit._compiled.pop(key, None)
        jit._live.pop(key, None)
        jit._for_good.discard(key)


def known_kernels() -> set[str]:
    """The keys of all that the process has."""
    return {*jit._compiled, *jit._live}
