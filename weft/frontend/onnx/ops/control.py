"""If, Loop and Scan. Their graphs see the values around them, as Python's inner functions do."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import current_trace
from weft.frontend.onnx.run import Bound
from weft.frontend.onnx.table import op
from weft.frontend.ops.promotion import is_concrete
from weft.ir.errors import ShapeError, TypeRuleError, UnsupportedError

_LONGEST = 4096  # iterations of a loop that are written out


@op("If")
def _if(cond: Tensor, *, then_branch: Bound, else_branch: Bound) -> Any:
    if is_concrete(cond):
        return tuple((then_branch if _holds(cond) else else_branch)())
    return tuple(wf.cond(wf.reshape(cond, ()), then_branch.tensors, else_branch.tensors))


@op("Loop")
def _loop(M: Tensor | None, cond: Tensor | None = None, *v_initial: Any, body: Bound) -> Any:
    known = cond is None or is_concrete(cond)
    limit = None if M is None else int(np.reshape(M.numpy(), ())) if is_concrete(M) else -1
    if current_trace() is None or (known and limit == 0):
        return _in_python(limit, cond, list(v_initial), body)
    begins = cond is None or (known and _holds(cond))
    if begins and body.keeps_going and limit is not None and limit >= 0:
        return _counted(limit, list(v_initial), body)
    return _while(M, cond, list(v_initial), body)


def _in_python(limit: int | None, cond: Tensor | None, state: list[Any], body: Bound) -> Any:
    """Written out: each iteration by itself, as long as its condition is known."""
    number, stacks = 0, [[] for _ in range(body.outputs - 1 - len(state))]  # type: ignore[var-annotated]
    going = cond
    while (limit is None or number < limit) and (going is None or _holds(going)):
        made = body(as_tensor(np.int64(number)), _true() if going is None else going, *state)
        going, state = made[0], made[1 : 1 + len(state)]
        for stack, value in zip(stacks, made[1 + len(state) :], strict=True):
            stack.append(value)
        number += 1
        if number > _LONGEST and current_trace() is not None:
            raise UnsupportedError(f"a loop of more than {_LONGEST} iterations that is written out")
    if stacks and not number:
        raise UnsupportedError("a loop without iterations, whose results have no known shape")
    return (*state, *(wf.stack(s) for s in stacks))


def _holds(cond: Tensor) -> bool:
    return bool(np.reshape(cond.numpy(), ()))


def _true() -> Tensor:
    return as_tensor(np.bool_(True))


def _tensors(values: list[Any]) -> bool:
    return all(isinstance(v, Tensor) for v in values)


def _counted(limit: int, state: list[Any], body: Bound) -> Any:
    """A loop of a number of iterations that is known: a scan, or written out where its state
    changes its shape or holds sequences."""
    if not _tensors(state):
        return _in_python(limit, None, state, body)

    def step(carry: list[Tensor], number: Tensor) -> Any:
        made = body.tensors(number, _true(), *carry)
        return made[1 : 1 + len(state)], made[1 + len(state) :]

    try:
        last, stacks = wf.scan(step, state, wf.arange(limit, dtype=wf.int64))
    except (ShapeError, TypeRuleError):
        return _in_python(limit, None, state, body)
    return (*last, *stacks)


def _while(M: Tensor | None, cond: Tensor | None, state: list[Any], body: Bound) -> Any:
    """A loop whose number of iterations is not known. What it stacks grows with each."""
    if not _tensors(state):
        raise UnsupportedError("a loop over sequences whose number of iterations is not known")
    carried = len(state)
    zero = as_tensor(np.int64(0))
    going = _true() if cond is None else wf.reshape(cond, ())
    stacks = body.outputs - 1 - carried
    if stacks:
        seen = body.tensors(zero, going, *state)[1 + carried :]  # for their shapes: not run
        empty = [wf.zeros((0, *s.shape), dtype=s.dtype) for s in seen]
    else:
        empty = []
    limit = None if M is None else wf.reshape(M, ())

    def test(number: Any, go: Any, *values: Any) -> Any:
        return go if limit is None else go & (number < limit)

    def step(number: Any, go: Any, *values: Any) -> Any:
        made = body.tensors(number, go, *values[:carried])
        grown = [
            wf.concat([held, new[None]])
            for held, new in zip(values[carried:], made[1 + carried :], strict=True)
        ]
        return (number + 1, wf.reshape(made[0], ()), *made[1 : 1 + carried], *grown)

    start = (zero, going, *state, *empty)
    shapes = None
    if stacks:
        shapes = (
            *(tuple(v.shape) for v in start[: 2 + carried]),
            *((None, *e.shape[1:]) for e in empty),
        )
    return wf.while_loop(test, step, start, shapes)[2:]


@op("Scan", since=9)
def _scan(
    *initial_state_and_scan_inputs: Tensor, body: Bound, num_scan_inputs: int,
    scan_input_axes: Any = None, scan_input_directions: Any = None, scan_output_axes: Any = None,
    scan_output_directions: Any = None,
) -> Any:  # fmt: skip
    given = list(initial_state_and_scan_inputs)
    carried = len(given) - num_scan_inputs
    state, xs = given[:carried], given[carried:]
    axes = scan_input_axes or [0] * num_scan_inputs
    turned = scan_input_directions or [0] * num_scan_inputs
    xs = [wf.moveaxis(x, a, 0) if a else x for x, a in zip(xs, axes, strict=True)]
    xs = [wf.flip(x, axis=0) if t else x for x, t in zip(xs, turned, strict=True)]

    def step(carry: list[Tensor], rows: list[Tensor]) -> Any:
        made = body.tensors(*carry, *rows)
        return made[:carried], made[carried:]

    last, stacks = wf.scan(step, state, xs)
    back = scan_output_directions or [0] * len(stacks)
    places = scan_output_axes or [0] * len(stacks)
    stacks = [wf.flip(s, axis=0) if b else s for s, b in zip(stacks, back, strict=True)]
    stacks = [wf.moveaxis(s, 0, a) if a else s for s, a in zip(stacks, places, strict=True)]
    return (*last, *stacks)


@op("Scan", since=8)
def _scan_batches(*given: Any, body: Bound, num_scan_inputs: int, directions: Any = None) -> Any:
    """Opset 8: the first axis is the batch."""
    lengths, rest = given[0], given[1:]
    if lengths is not None:
        raise UnsupportedError("Scan of opset 8 with sequence_lens")
    items = [
        _scan(
            *(v[i] for v in rest), body=body, num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        for i in range(rest[0].shape[0])
    ]  # fmt: skip
    return tuple(wf.stack(parts) for parts in zip(*items, strict=True))
