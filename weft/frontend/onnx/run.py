"""A plan is run: each node is a call of its operator's function on what the nodes before it gave,
tensors at once or as a part of the trace there is.

What is known is computed outside of the trace: an operator whose inputs are all constants gives
constants, and one on sizes gives sizes (`Sizes`)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from weft.frontend.core.trace import current_trace, suspend_trace
from weft.frontend.onnx.budget import Budget
from weft.frontend.onnx.dtypes import number_of
from weft.frontend.onnx.plan import Node, Plan, Reader
from weft.frontend.onnx.reader import package
from weft.frontend.onnx.sizes import Sizes, fold
from weft.frontend.onnx.table import Call, Operator
from weft.frontend.ops.manipulation import unstack
from weft.frontend.ops.promotion import is_concrete
from weft.ir.dims import SymbolicDim
from weft.ir.errors import (
    InvalidArgumentError,
    ResourceExhaustedError,
    UnsupportedError,
    WeftError,
)
from weft.ir.locations import caller_location, name_scopes

T = TypeVar("T")

#: Operators whose attributes and known inputs do not say how large their results are: shapes are
#: computed of them.
_NEVER_GROW = frozenset({
    "Cast", "Concat", "DequantizeLinear", "Flatten", "Gather", "Gemm", "QuantizeLinear",
    "ReduceProd", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
})  # fmt: skip


class Runner:
    """Runs plans of one model, within a budget. types: ONNX's numbers of the dtypes of its values,
    where it has dtypes that weft has not; bodies: those that depend on types, made so far."""

    def __init__(
        self,
        reader: Reader,
        types: Mapping[str, int],
        bodies: dict[tuple[Any, ...], Plan] | None = None,
    ) -> None:
        self._reader = reader
        self._types = types
        self._bodies = {} if bodies is None else bodies
        self._budget = Budget(reader.nbytes)

    def afresh(self) -> Runner:
        """One with a budget of its own."""
        return Runner(self._reader, self._types, self._bodies)

    def run(
        self,
        plan: Plan,
        given: Sequence[Any],
        outer: MutableMapping[str, Any] | None = None,
        weights: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The outputs of a plan. given: its inputs in order; outer: values that it sees; weights:
        values in place of its constants."""
        values: MutableMapping[str, Any] = {**plan.constants, **(weights or {})}
        values.update(zip(plan.inputs, given, strict=False))
        if outer is not None:
            values = ChainMap(values, *(outer.maps if isinstance(outer, ChainMap) else (outer,)))
        for node in plan.nodes:
            with _of_node(node):
                if current_trace() is not None:
                    self._budget.count(node.shown)
                made = self._node(node, values)
            values.update((n, v) for n, v in zip(node.outputs, made, strict=False) if n)
        return [values.get(name) for name in plan.outputs]

    def _node(self, node: Node, values: MutableMapping[str, Any]) -> Sequence[Any]:
        inputs = [values.get(name) if name else None for name in node.inputs]
        if node.body is not None:
            padded = inputs + [None] * (len(node.body.inputs) - len(inputs))
            return self.run(node.body, padded)
        operator = node.operator
        if operator is None:
            return self._dependent(node, inputs)
        attrs = {n: self._attribute(v, values) for n, v in node.attrs.items()}
        if not node.domain:
            found = fold(node.kind, inputs, attrs)
            if found is not None:
                return [found]
        graphs = any(isinstance(v, Bound) for v in attrs.values())
        call = self._call(node) if operator.asks else None
        arguments = [_argument(operator, i, v) for i, v in enumerate(inputs)]

        def compute() -> Sequence[Any]:
            return _results(operator, list(arguments), attrs, call)

        decisive = [v for i, v in enumerate(inputs) if i not in operator.like]
        if not operator.folds or graphs or current_trace() is None or not _known(decisive):
            return compute()
        grows = bool(operator.known or operator.sizes or operator.like or attrs)
        if node.kind in _NEVER_GROW:
            grows = False
        if not self._budget.allows(decisive, grows, compute):
            return compute()
        with suspend_trace():
            made = compute()
        self._budget.take(made)
        return made

    def _dependent(self, node: Node, inputs: Sequence[Any]) -> list[Any]:
        """A node whose body depends on the types of its inputs."""
        values = [v.tensor() if isinstance(v, Sizes) else v for v in inputs]
        types = [
            value_type(v, self._types.get(name, 0))
            for name, v in zip(node.inputs, values, strict=True)
        ]
        key = (id(node), *types)
        if key not in self._bodies:
            self._bodies[key] = self._reader.dependent(node, types)
        body = self._bodies[key]
        return self.run(body, [*values, *[None] * (len(body.inputs) - len(values))])

    def _call(self, node: Node) -> Call:
        used = max((i + 1 for i, n in enumerate(node.outputs) if n), default=0)
        kinds = self._types
        return Call(
            used, node.opset, tuple([kinds.get(n, 0) for n in node.inputs]),
            tuple([kinds.get(n, 0) for n in node.outputs]),
        )  # fmt: skip

    def _attribute(self, value: Any, values: MutableMapping[str, Any]) -> Any:
        return Bound(self, value, values) if isinstance(value, Plan) else value


class Bound:
    """A graph that is an attribute, with what it sees around it: a function of its inputs."""

    def __init__(self, runner: Runner, plan: Plan, values: MutableMapping[str, Any]) -> None:
        self._runner = runner
        self._plan = plan
        self._values = values

    @property
    def outputs(self) -> int:
        """How many it gives."""
        return len(self._plan.outputs)

    @property
    def keeps_going(self) -> bool:
        """Whether it is the body of a loop that says to go on if it was told to."""
        name, makers = self._plan.outputs[0], {o: n for n in self._plan.nodes for o in n.outputs}
        while name in makers and makers[name].kind == "Identity":
            name = makers[name].inputs[0]
        if name == self._plan.inputs[1]:
            return True
        value = self._plan.constants.get(name)
        return value is not None and bool(np.all(value.numpy()))

    def __call__(self, *given: Any) -> list[Any]:
        return self._runner.run(self._plan, given, self._values)

    def tensors(self, *given: Any) -> list[Any]:
        """As a call, with sizes as tensors."""
        return [v.tensor() if isinstance(v, Sizes) else v for v in self(*given)]


def value_type(value: Any, number: int = 0) -> bytes:
    """A value's type as ONNX writes it. number: of its dtype, if it is one that weft has not."""
    helper = package().helper
    if value is None:
        made = package().TypeProto()
    elif isinstance(value, (list, tuple)):
        inner = package().TypeProto()
        inner.ParseFromString(value_type(value[0], number) if value else b"")
        made = helper.make_sequence_type_proto(inner)
    else:
        dims = [d if isinstance(d, int) else None for d in value.shape]
        made = helper.make_tensor_type_proto(number or number_of(value.dtype), dims)
    return made.SerializeToString()  # type: ignore[no-any-return]


def at_once(inputs: Sequence[Any], compute: Callable[[], T]) -> T:
    """What is computed from these inputs: outside of the trace where all are known."""
    if current_trace() is None or not _known(inputs):
        return compute()
    with suspend_trace():
        return compute()


def _known(inputs: Sequence[Any]) -> bool:
    for value in inputs:
        if isinstance(value, Sizes):
            return False
        if isinstance(value, (list, tuple)):
            if not _known(value):
                return False
        elif value is not None and not is_concrete(value):
            return False
    return True


def _argument(operator: Operator, index: int, value: Any) -> Any:
    """An input as its operator takes it."""
    if index in operator.known and value is not None:
        if isinstance(value, Sizes) or not is_concrete(value):
            raise UnsupportedError(
                f"its input '{operator.inputs[index]}' must be known when the model is traced",
                hint="make it an initialiser or an argument that is no tensor of a trace",
            )
        return value.numpy()
    if index in operator.sizes and value is not None:
        return _dims(value)
    return value.tensor() if isinstance(value, Sizes) else value


def _dims(value: Any) -> Any:
    """Sizes as numbers, symbols and scalar tensors: a list of those of a vector."""
    if isinstance(value, Sizes):
        return value.array.tolist()
    if is_concrete(value):
        return value.numpy().tolist() if value.ndim else value.numpy()[()]
    if not value.ndim:
        return value
    if isinstance(value.shape[0], SymbolicDim):
        raise UnsupportedError("the number of axes of its result depends on a size that is open")
    return list(unstack(value))


def _results(
    operator: Operator, arguments: list[Any], attrs: Mapping[str, Any], call: Call | None
) -> Sequence[Any]:
    unknown = [n for n in attrs if n not in operator.attributes]
    if unknown:
        raise UnsupportedError(f"it has the attribute '{unknown[0]}', which weft does not know")
    while arguments and arguments[-1] is None:
        arguments.pop()
    if len(arguments) > len(operator.inputs) and not operator.variadic:
        raise InvalidArgumentError(f"it has {len(arguments)} inputs")
    more = {} if call is None else {"node": call}
    made = operator.function(*arguments, **attrs, **more)
    return made if isinstance(made, tuple) else (made,)


@contextmanager
def _of_node(node: Node) -> Iterator[None]:
    """Errors and the places of ops say which node they are of."""
    token = None
    if current_trace() is not None:
        token = name_scopes.set(f"{name_scopes.get()}/{node.scope}".strip("/"))
    try:
        yield
    except WeftError as error:
        if "the ONNX node '" in error.what:
            raise
        what = f"{node.shown}: {error.what}"
        if node.where:
            what += f" (made by {node.where})"
        raise type(error)(what, hint=error.hint, location=error.locations) from error
    except MemoryError as error:
        raise ResourceExhaustedError(
            f"{node.shown} needs more memory than there is", location=caller_location()
        ) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{node.shown} cannot be run like this: {error!r:.300}", location=caller_location()
        ) from error
    finally:
        if token is not None:
            name_scopes.reset(token)
