"""`shard_map`: a function of one shard becomes a function of whole tensors.

With processes each does its own shard (`processes.py`), with devices one program holds all shards
(`devices.py`). Else it is a `vmap` for each axis of the mesh: what a spec says is the same along an
axis has no batch axis for it, which the batching pass sees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from weft.frontend.collectives import pmean
from weft.frontend.core import pytree
from weft.frontend.core.tensor import as_tensor
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.transforms.axes import gradients_averaged
from weft.frontend.transforms.devices import in_devices
from weft.frontend.transforms.mesh import (
    Mesh,
    PartitionSpec,
    Specs,
    axes_of,
    differs_error,
    leaves_with_specs,
)
from weft.frontend.transforms.processes import in_processes
from weft.frontend.transforms.vmap import RowsDifferError, batched_function
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location


def shard_map(
    fn: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs
) -> Callable[..., Any]:
    """The function that cuts whole tensors, does `fn` for each shard, and joins what they give
    (JAX's jax.shard_map). In fn `wf.collectives` mean the axes of the mesh by their names.

    in_specs: a tuple with a `wf.PartitionSpec` for each positional argument, or one for all; for an
    argument that is a tree, a tree of them or its beginning. A str stands for a spec of one name,
    None for one without. out_specs: likewise for what fn returns. What a spec does not name is the
    same in all shards: an argument is given to each whole, a result has to be so, as sums over the
    axis are.

    InvalidArgumentError for specs that do not fit, and for results that differ along an axis that
    their spec does not have; ShapeError for what cannot be cut in equal parts.

    >>> mesh = wf.Mesh({"data": 2})
    >>> mean = wf.shard_map(
    ...     lambda x: wf.collectives.pmean(wf.mean(x), "data"), mesh, in_specs="data",
    ...     out_specs=None)
    >>> mean(wf.asarray([1.0, 2.0, 3.0, 6.0]))
    Tensor(3., dtype=float32)
    """
    given: tuple[object, object] = (fn, mesh)
    if not callable(given[0]) or not isinstance(given[1], Mesh):
        raise InvalidArgumentError(
            f"shard_map takes a function and a wf.Mesh, got {type(fn).__name__} and "
            f"{type(mesh).__name__}",
            location=caller_location(),
        )

    if mesh.devices:
        return in_devices(fn, mesh, in_specs, out_specs)
    if mesh.name:
        return in_processes(fn, mesh, in_specs, out_specs)

    @shows_as_seen
    @functools.wraps(fn)
    def sharded(*args: Any) -> Any:
        leaves, structure = leaves_with_specs("in_specs", in_specs, args, "arguments")
        cut = [mesh.cut(as_tensor(leaf), spec, path) for leaf, spec, path in leaves]
        made = _of_all(fn, mesh, in_specs, out_specs)(*pytree.unflatten(structure, cut))
        results, nested = leaves_with_specs("out_specs", out_specs, made, "result")
        return pytree.unflatten(
            nested, [mesh.joined(t, spec) if spec.names else t for t, spec, _ in results]
        )

    return sharded


def data_parallel(
    step: Callable[..., Any], mesh: Mesh, out_specs: Specs = None
) -> Callable[..., Any]:
    """The training step with its batch cut over all axes of the mesh, and the gradients of its
    optimizers averaged.

    step: as it is written for one process: it takes arrays whose first axis is that of the
    examples (scalars go to all shards), computes a loss that is a mean over examples, and lets an
    optimizer of `wf.train` minimize it. It returns scalars, such as the loss, whose means over the
    shards are what the new function returns; anything else is an InvalidArgumentError. out_specs:
    as of `wf.shard_map`; what it cuts is joined instead: of a state of each example, say. What else
    the step assigns to variables has to be the same in all shards (UnsupportedError): so an update
    made of what `wf.grad` gives, which is not averaged, is refused; `wf.shard_map` is for that.

    >>> w = wf.Variable(wf.zeros(3))
    >>> def step(x, y):
    ...     loss = wf.mean((wf.matmul(x, w) - y) ** 2)
    ...     wf.train.SGD(0.1).minimize(loss)
    ...     return loss
    >>> parallel = wf.compile(wf.data_parallel(step, wf.Mesh({"data": 2})))
    >>> float(parallel(wf.ones((4, 3)), wf.ones(4)))
    1.0
    """
    axes = mesh.axis_names

    def shard(*args: Any) -> Any:
        with gradients_averaged(axes):
            made = step(*args)
        leaves, structure = leaves_with_specs("out_specs", out_specs, made, "result")
        for leaf, path in ((leaf, path) for leaf, spec, path in leaves if not spec.names):
            t = as_tensor(leaf)
            if t.ndim or not t.dtype.is_floating:
                raise InvalidArgumentError(
                    f"data_parallel: {path} is {t.describe()}, and not a scalar whose mean over "
                    "the shards says something",
                    hint="return losses, say in out_specs how it is joined, or write the step with "
                    "wf.shard_map",
                    location=caller_location(),
                )
        means = iter(pmean([leaf for leaf, spec, _ in leaves if not spec.names], axes))
        results = [leaf if spec.names else next(means) for leaf, spec, _ in leaves]
        return pytree.unflatten(structure, results)

    @shows_as_seen
    @functools.wraps(step)
    def parallel(*args: Any) -> Any:
        leaves, structure = pytree.flatten(args)
        specs = [PartitionSpec(axes) if as_tensor(leaf).ndim else None for leaf in leaves]
        run = shard_map(shard, mesh, pytree.unflatten(structure, specs), out_specs)
        return run(*args)

    return parallel


def _of_all(
    fn: Callable[..., Any], mesh: Mesh, in_specs: Specs, out_specs: Specs
) -> Callable[..., Any]:
    """The function for all shards, which lie along first axes; mesh axes around each other."""

    def checked(*args: Any) -> Any:
        made = fn(*args)
        for leaf, spec, path in leaves_with_specs("out_specs", out_specs, made, "result")[0]:
            mesh.check_joined(as_tensor(leaf), spec, path)
        return made

    whole: Callable[..., Any] = functools.wraps(fn)(checked)
    for name in reversed(mesh.axis_names):
        batched = batched_function(
            whole, axes_of("in_specs", in_specs, name), axes_of("out_specs", out_specs, name),
            mesh.shape[name], name, apart=True,
        )  # fmt: skip
        whole = _names_the_axis(batched, name)
    return whole


def _names_the_axis(batched: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(batched)
    def along(*args: Any) -> Any:
        try:
            return batched(*args)
        except RowsDifferError as error:
            raise differs_error(error.path, name) from None

    return along
