"""`checkpoint`: a function whose gradient computes its inner values again, to need less memory.

T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear memory cost", 2016; the
policies are those of JAX's jax.checkpoint. The function's results pass through a `custom_gradient`,
whose region holds the function's ops once more, behind an `optimization_barrier`: so no pass merges
them with those of the forward part, and nothing of that part stays in memory but what is saved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from weft.frontend.core import pytree
from weft.frontend.core.function_trace import as_argument
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, current_trace
from weft.frontend.core.user_errors import shows_as_seen
from weft.frontend.transforms.body import Transformed
from weft.ir.errors import InvalidArgumentError, UnsupportedError
from weft.ir.graph import Block, Operation, Value
from weft.ir.locations import caller_location
from weft.ir.ops.builder import Builder
from weft.passes.autodiff.reverse_mode import pull_back
from weft.passes.autodiff.rule import is_inexact
from weft.passes.rewriting.expression import Expr

#: Ops whose results the policy "products" saves: they take most of the time.
PRODUCTS = frozenset({"matmul", "conv", "conv_input", "conv_kernel"})

Policy = str | Sequence[str] | Callable[[str], bool] | None


def checkpoint(
    fn: Callable[..., Any] | None = None, *, policy: Policy = None
) -> Callable[..., Any]:
    """The same function, whose gradient keeps its arguments and computes what is between again
    (JAX's jax.checkpoint, also known as remat).

    policy: what is saved all the same: None: nothing; "products": results of matrix products and
    convolutions; a sequence of names: the values that `wf.tap` gives these names; a function from
    the name of an op to whether its results are saved. Second derivatives and `wf.jvp` work.
    `wf.checkpoint(policy=...)` is a decorator. UnsupportedError for a function that assigns to
    variables or acts on objects of the host.

    >>> block = wf.checkpoint(lambda w, x: wf.tanh(wf.tanh(x @ w) @ w))
    >>> slope = wf.grad(lambda w: wf.sum(block(w, wf.ones((2, 3)))))(wf.zeros((3, 3)))
    >>> slope.shape
    (3, 3)
    """
    if fn is None:
        return functools.partial(checkpoint, policy=policy)
    if not callable(fn):
        raise InvalidArgumentError(
            f"checkpoint: fn is a {type(fn).__name__}, not a function", location=caller_location()
        )
    saves = _saves(policy)

    @shows_as_seen
    @functools.wraps(fn)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        trace = current_trace()
        if trace is None:
            return fn(*args, **kwargs)
        leaves, structure = pytree.flatten((args, kwargs))
        leaves = [as_argument(leaf) for leaf in leaves]
        places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

        def call(xs: list[Tensor]) -> Any:
            full = list(leaves)
            for k, x in zip(places, xs, strict=True):
                full[k] = x
            given, named = pytree.unflatten(structure, full)
            return fn(*given, **named)

        tensors = [leaves[k] for k in places]
        return _checkpointed(trace, fn, call, tensors, saves)

    return checkpointed


def _saves(policy: Policy) -> Callable[[Operation], bool]:
    """Whether the results of an op are saved."""
    if policy is None:
        return lambda op: False
    if policy == "products":
        return lambda op: op.name in PRODUCTS
    if callable(policy):
        return lambda op: bool(policy(op.name))
    if isinstance(policy, (tuple, list)) and all(isinstance(name, str) for name in policy):
        names = frozenset(policy)
        return lambda op: op.name == "tap" and op.attrs["name"] in names
    raise InvalidArgumentError(
        f"checkpoint: policy is {policy!r:.60}",
        hint='None, "products", names of taps, or a function of the name of an op',
        location=caller_location(),
    )


def _checkpointed(
    trace: Trace,
    fn: Callable[..., Any],
    call: Callable[[list[Tensor]], Any],
    tensors: Sequence[Tensor],
    saves: Callable[[Operation], bool],
) -> Any:
    """Trace the function, and append its ops with their gradient to the current trace."""
    body = Transformed("checkpoint", fn, call, [(t._type, t.weak) for t in tensors])
    if body.written or body.acts:
        raise UnsupportedError(
            f"checkpoint: '{body.name}' assigns to variables, or acts on objects of the host, "
            "which its gradient would do again",
            hint="do it outside of what wf.checkpoint is given",
            location=caller_location(),
        )
    block, values = body.block, body.block.results
    outer = [*(trace.lift(t) for t in tensors), *body.captured]
    kept = [v for op in block.ops if saves(op) for v in op.results]
    made = trace.builder.inline(Block(block.args, block.ops, (*values, *kept)), outer)
    results, saved = list(made[: len(values)]), made[len(values) :]
    moving = [k for k, v in enumerate(values) if is_inexact(v)]
    inputs = [k for k, v in enumerate(outer) if is_inexact(v)]
    if moving and inputs:
        region = _region(block, values, moving, inputs, kept)
        attrs = {"outputs": len(moving), "inputs": len(inputs)}
        operands = [*(results[k] for k in moving), *(outer[k] for k in inputs), *outer, *saved]
        found = trace.emit("custom_gradient", operands, attrs, regions=(region,))
        for k, value in zip(moving, found, strict=True):
            results[k] = value
    body.placed()
    return body.nested(
        [trace.tensor(v, leaf.weak) for v, leaf in zip(results, body.leaves, strict=True)]
    )


def _region(
    block: Block,
    values: Sequence[Value],
    moving: Sequence[int],
    inputs: Sequence[int],
    kept: Sequence[Value],
) -> Block:
    """From cotangents of the results, the arguments, and what is saved to the gradients."""
    seeds = [values[k].type for k in moving]
    builder = Builder([*seeds, *(a.type for a in block.args), *(v.type for v in kept)])
    count = len(seeds)
    own = builder.args[count : count + len(block.args)]
    where = caller_location()
    mapping: dict[Value, Value] = {}
    for arg, value in zip(block.args, own, strict=True):
        again = value
        if is_inexact(value):  # what does not depend on one of them may be merged
            again = builder.emit1("optimization_barrier", value, locations=where)
        mapping[arg] = again
    known = dict(zip(kept, builder.args[count + len(own) :], strict=True))
    start = len(builder.ops)
    for op in block.ops:
        found = builder.clone(op, mapping)
        for old, new in zip(op.results, found, strict=True):
            mapping[old] = _substituted(builder, new, known[old]) if old in known else new
    grads = pull_back(
        builder,
        builder.ops[start:],
        [mapping[values[k]] for k in moving],
        builder.args[:count],
        [mapping[block.args[k]] for k in inputs],
    )
    pairs = zip(grads, inputs, strict=True)
    results = [Expr(builder, own[k], where).full(0).value if g is None else g for g, k in pairs]
    return builder.block(results)


def _substituted(builder: Builder, new: Value, saved: Value) -> Value:
    """The saved value, with the gradient of the one computed again, which is then dead."""
    if not is_inexact(saved):
        return saved
    assert new.op is not None
    attrs = {"outputs": 1, "inputs": 1}
    region = Builder([saved.type])
    where = new.op.locations
    operands = [saved, new]
    return builder.emit(
        "custom_gradient",
        operands,
        attrs,
        regions=(region.block(region.args),),
        locations=where,
    )[0]
