"""Save and restore as ops of a graph (the paper, section 4.3): a checkpoint is then a step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from weft.frontend.files.calls import graph_or_eager, host_effect, host_op, located, string_tensor
from weft.frontend.ops.arguments import check_shape
from weft.frontend.session.graph import placeholder
from weft.frontend.session.scopes import group
from weft.frontend.tensor import Tensor, as_tensor
from weft.frontend.tracing.trace import Effect
from weft.frontend.train.saver_items import Items
from weft.ir.dtypes import as_dtype, string
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from weft.ir.types import TensorType


class SaveOps(NamedTuple):
    """What `Saver.build` has added to a graph. filename: of the file, a string, with or without its
    suffix; save: writes it; restore: assigns to all variables what it holds."""

    filename: Tensor
    save: Effect
    restore: Effect


@located
def save_v2(
    prefix: Any, tensor_names: Sequence[str], tensors: Sequence[Any], name: str | None = None, *,
    keep: int = -1,
) -> Effect:  # fmt: skip
    """An effect that writes `tensors` under `tensor_names` to the checkpoint file `prefix` (a
    string; `.safetensors` is added if it does not end so), whole or not at all.

    keep: -1 writes the file alone; 0 also makes it the folder's latest checkpoint, n > 0 keeps the
    last n besides. What is read in one step without an order between the reads is read at one point
    in time. Errors as `wf.train.Saver.save`.
    """
    named = tuple(str(n) for n in tensor_names)
    given = [as_tensor(t) for t in tensors]
    return host_effect("save", [_path(prefix), *given], name, names=named, keep=keep)


@located
def restore_v2(
    prefix: Any, tensor_names: Sequence[str], dtypes: Sequence[Any],
    shapes: Sequence[Sequence[int]], name: str | None = None,
) -> list[Tensor]:  # fmt: skip
    """What the checkpoint file `prefix` holds under `tensor_names`: tensors of `dtypes` and
    `shapes`. NotFoundError, InvalidArgumentError and DataLossError as `wf.train.Saver.restore`."""
    if not len(tensor_names) == len(dtypes) == len(shapes):
        raise InvalidArgumentError(
            f"wf.train.restore_v2: {len(tensor_names)} names, {len(dtypes)} dtypes and "
            f"{len(shapes)} shapes; there must be as many of each"
        )
    types = (
        TensorType(as_dtype(d), check_shape("restore_v2", s))
        for d, s in zip(dtypes, shapes, strict=True)
    )
    named, parts = tuple(str(n) for n in tensor_names), tuple(str(t) for t in types)
    return host_op("restore", [_path(prefix)], names=named, parts=parts)


def _path(given: Any) -> Tensor:
    if isinstance(given, os.PathLike):
        given = os.fsencode(given)
    return string_tensor("a checkpoint's name", given, scalar=True)


def build_save_ops(what: str, items: Items, filename: Any, keep: int) -> SaveOps:
    """The ops that save and restore the variables of `items`, in the graph that is being built."""
    if graph_or_eager(f"{what}.build") is None:
        raise FailedPreconditionError(
            f"{what}.build adds ops to a graph, and none is being built",
            hint="call it inside `with graph.as_default():`; eagerly, save and restore do it",
        )
    if items.stateful:
        raise UnsupportedError(
            f"{what}.build: {', '.join(items.stateful)}: ops save variables only",
            hint=f"{what}.save, between steps, saves queues, readers and other state, too",
        )
    if not items.variables:
        raise InvalidArgumentError(f"{what}.build: there are no variables to save")
    path = placeholder(string, [], "filename") if filename is None else _path(filename)
    held: Mapping[str, Any] = items.variables
    save = save_v2(path, list(held), [v.read() for v in held.values()], keep=keep)
    found = restore_v2(
        path, list(held), [v.dtype for v in held.values()], [v.shape for v in held.values()]
    )
    pairs = zip(held.values(), found, strict=True)
    return SaveOps(path, save, group([v.assign(x) for v, x in pairs], name="restore_all"))
