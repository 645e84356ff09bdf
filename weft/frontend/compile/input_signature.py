"""`InputSignature`: what `wf.compile(input_signature=)` says of the arguments of a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontend.compile.arguments import LeafKey, Signature, describe_leaf
from weft.frontend.core import pytree
from weft.ir.dims import Dim, SymbolicDim, format_shape
from weft.ir.errors import InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location
from weft.ir.types import TensorType


class InputSignature:
    """The types that are given for the parameters of a function which are not static.

    given: for each of them, in order, a `TensorType`, or a container with one in the place of each
    tensor. TypeRuleError for what is no such thing.
    """

    def __init__(self, function: str, parameters: Sequence[str], given: Any) -> None:
        if not isinstance(given, (list, tuple)):
            raise TypeRuleError(
                f"wf.compile: input_signature of '{function}' is a {type(given).__name__}",
                hint="give a list with the type of each parameter: "
                "[wf.TensorType(wf.float32, (None, 784))]",
                location=caller_location(),
            )
        self._function = function
        leaves, self.structure = pytree.flatten(tuple(given))
        self.paths = Signature(self.structure, ()).paths(parameters)
        self.types: list[TensorType] = []
        for leaf, path in zip(leaves, self.paths, strict=True):
            if not isinstance(leaf, TensorType):
                raise TypeRuleError(
                    f"wf.compile: input_signature of '{function}' has {leaf!r:.60} at {path}",
                    hint="wf.TensorType(dtype, shape), None in the shape for any size",
                    location=caller_location(),
                )
            name = "".join(c if c.isalnum() else "_" for c in path).strip("_")
            shape = tuple([_size(d, f"{name}_{k}") for k, d in enumerate(leaf.shape)])
            self.types.append(TensorType(leaf.dtype, shape))

    @property
    def is_open(self) -> bool:
        """Whether any size is open."""
        return not all(t.is_static for t in self.types)

    def fitted(
        self, structure: pytree.Structure, keys: Sequence[LeafKey], arrays: list[Any]
    ) -> tuple[LeafKey, ...]:
        """The keys of a call's leaves with open sizes in place of their own. Python numbers become
        arrays of the type that is given. InvalidArgumentError for what does not fit."""
        if not pytree.alike(structure, self.structure):
            raise InvalidArgumentError(
                f"'{self._function}' was called with {pytree.describe(structure)}, but its "
                f"input_signature says {pytree.describe(self.structure)}",
                hint="pass what the signature names, in its order",
                location=caller_location(),
            )
        return tuple(
            [
                self._fitted(i, key, arrays, kind)
                for i, (key, kind) in enumerate(zip(keys, self.types, strict=True))
            ]
        )

    def _fitted(self, i: int, key: LeafKey, arrays: list[Any], kind: TensorType) -> LeafKey:
        if not isinstance(key, tuple):
            raise self._misfit(i, key, kind)
        shape, dtype, weak = key
        wanted = kind.dtype.numpy
        if weak and np.can_cast(dtype, wanted, "same_kind") and shape == ():
            given = arrays[i]
            if given is not None:
                arrays[i] = given.astype(wanted)
                if wanted.kind in "iu" and arrays[i] != given:
                    raise self._misfit(i, key, kind, f", {given} of a Python number")
            dtype = wanted
        if dtype != wanted or not kind.allows(shape):
            raise self._misfit(i, key, kind)
        return kind.shape, wanted, False

    def _misfit(
        self, i: int, key: LeafKey, kind: TensorType, what: str = ""
    ) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"argument {self.paths[i]} of '{self._function}' is {describe_leaf(key)}{what}, but "
            f"its input_signature says {kind.dtype.short}{format_shape(kind.shape)}",
            hint="convert it with wf.astype, or give another input_signature",
            location=caller_location(),
        )


def _size(dim: Dim | str, name: str) -> Dim:
    if dim is None:
        return SymbolicDim.symbol(name)
    return SymbolicDim.symbol(dim) if isinstance(dim, str) else dim
