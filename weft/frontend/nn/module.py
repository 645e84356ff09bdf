"""`Module`: a convention for models that are objects. What a module holds in its attributes are its
parameters, by the names of the attributes; the rest is ordinary Python.

Nothing is registered, wrapped or copied: a module works wherever its variables do, in compiled
functions, in sessions, with optimizers and checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from weft.frontend.core import pytree
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, current_trace
from weft.frontend.state.variable import Variable
from weft.ir.dims import format_shape
from weft.ir.errors import FailedPreconditionError, InvalidArgumentError, TypeRuleError
from weft.ir.locations import caller_location

Self = TypeVar("Self", bound="Module")


class Module:
    """Base class of models: subclasses make variables and modules in `__init__`, and compute in a
    method, `__call__` mostly.

    Parameters are `wf.Variable`s in attributes, in modules there, and in lists, tuples and dicts of
    these; attributes whose names begin with an underscore are private. An object that is there
    twice is one parameter, by its first name.

    >>> class Dense(wf.nn.Module):
    ...     def __init__(self, inputs, outputs):
    ...         self.w = wf.Variable(wf.initializers.glorot_uniform(seed=0)((inputs, outputs)))
    ...         self.b = wf.Variable(wf.zeros(outputs))
    ...     def __call__(self, x):
    ...         return x @ self.w + self.b
    >>> class Net(wf.nn.Module):
    ...     def __init__(self):
    ...         self.hidden, self.out = Dense(3, 5), Dense(5, 1)
    ...     def __call__(self, x):
    ...         x = wf.nn.relu(self.hidden(x))
    ...         return self.out(wf.nn.dropout(x, 0.5) if self.training else x)
    >>> net = Net()
    >>> print(net.summary())
    hidden/w  f32[3,5]  15
    hidden/b  f32[5]     5
    out/w     f32[5,1]   5
    out/b     f32[1]     1
    26 parameters, 26 of them trainable, 104 bytes
    """

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled without what functions that were traced have said."""
        return {n: v for n, v in vars(self).items() if n != "_traced_modes"}

    # ------------------------------------------------------------------------------- parameters
    def parameters(self) -> dict[str, Any]:
        """The variables as a tree: dicts by attribute, lists and dicts as they are held. A pytree,
        which `wf.tree_map` and `wf.train.Saver` take.

        >>> class Scale(wf.nn.Module):
        ...     def __init__(self):
        ...         self.factors = [wf.Variable(2.0), wf.Variable(3.0)]
        >>> wf.tree_map(float, Scale().parameters())
        {'factors': [2.0, 3.0]}
        """
        return _mapping(_public(self), {id(self)})

    def named_variables(self) -> dict[str, Variable]:
        """The variables by their paths, such as "hidden/w" and "factors/0".

        >>> class Scale(wf.nn.Module):
        ...     def __init__(self):
        ...         self.factors = [wf.Variable(2.0), wf.Variable(3.0)]
        >>> list(Scale().named_variables())
        ['factors/0', 'factors/1']
        """
        return dict(_flat("", self.parameters()))

    def variables(self) -> list[Variable]:
        """The variables, in the order of their paths' making."""
        return list(self.named_variables().values())

    def trainable_variables(self) -> list[Variable]:
        """Those that optimizers change by default: for `optimizer.minimize(loss, ...)`."""
        return [v for v in self.variables() if v.trainable]

    def assign(self, tree: Any) -> list[Tensor]:
        """Give all variables the values of a tree nested as `parameters` is. In a graph what it
        returns does it. InvalidArgumentError for a tree that is nested otherwise.

        >>> class Scale(wf.nn.Module):
        ...     def __init__(self):
        ...         self.factor = wf.Variable(2.0)
        >>> model = Scale()
        >>> _ = model.assign({"factor": 5.0})
        >>> float(model.factor)
        5.0
        """
        own, structure = pytree.flatten(self.parameters())
        values, given = pytree.flatten(tree)
        pytree.same_structure(f"{type(self).__name__}.assign", structure, given)
        return [v.assign(value) for v, value in zip(own, values, strict=True)]

    def summary(self) -> str:
        """A table of the variables: path, type, number of elements; and their sums."""
        rows = [
            (path, f"{v.dtype.short}{format_shape(v.shape)}", f"{v.size:,}", v)
            for path, v in self.named_variables().items()
        ]
        wide = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
        lines = [
            f"{path:{wide[0]}}  {kind:{wide[1]}}  {size:>{wide[2]}}"
            + ("" if v.trainable else "  not trainable")
            for path, kind, size, v in rows
        ]
        held = [v for *_, v in rows]
        total, trained = sum(v.size for v in held), sum(v.size for v in held if v.trainable)
        size = sum(v.size * v.dtype.itemsize for v in held)
        said = f"{total:,} parameters, {trained:,} of them trainable, {size:,} bytes"
        return "\n".join([*lines, said])

    def __repr__(self) -> str:
        names = self.named_variables()
        return f"<{type(self).__name__}: {len(names)} variables>"

    # --------------------------------------------------------------------------- training or not
    def train(self: Self, training: bool = True) -> Self:
        """Set `training` of this module and of those in it; itself.

        In a function that is compiled this is for that function alone.
        """
        trace = _function()
        for module in self.modules():
            if trace is None:
                module.__dict__["_training"] = bool(training)
            else:
                module._modes()[trace] = bool(training)
        return self

    def eval(self: Self) -> Self:
        """`train(False)`: for what comes after training."""
        return self.train(False)

    @property
    def training(self) -> bool:
        """Whether the module is being trained; False unless `train` says so.

        FailedPreconditionError in a compiled function that has called neither `train` nor `eval`:
        it is traced once, and would not notice a change.

        >>> class Noisy(wf.nn.Module):
        ...     def __call__(self, x):
        ...         return wf.nn.dropout(x, 0.5) if self.training else x
        >>> model = Noisy()
        >>> predict = wf.compile(lambda x: model.eval()(x))
        >>> predict(wf.ones([2]))
        Tensor([1., 1.], dtype=float32)
        """
        trace = _function()
        if trace is None:
            return bool(self.__dict__.get("_training", False))
        mode = self._modes().get(trace)
        if mode is None:
            raise FailedPreconditionError(
                f"'{trace.name}' asks whether its {type(self).__name__} is being trained, and has "
                "not said so",
                hint="call model.train() or model.eval() in the function, before the model: it is "
                "traced once, and does not notice what is set outside",
                location=caller_location(),
            )
        return mode

    def modules(self) -> list[Module]:
        """This module and those in its attributes, each once."""
        found: dict[int, Module] = {}
        todo: list[Any] = [self]
        while todo:
            item = todo.pop()
            if isinstance(item, Module):
                if id(item) in found:
                    continue
                found[id(item)] = item
                todo += reversed([v for _, v in _public(item)])
            elif isinstance(item, (list, tuple)):
                todo += reversed(item)
            elif isinstance(item, Mapping):
                todo += reversed(list(item.values()))
        return list(found.values())

    def _modes(self) -> WeakKeyDictionary[Trace, bool]:
        """What functions that are being traced have said."""
        held = self.__dict__.setdefault("_traced_modes", WeakKeyDictionary())
        assert isinstance(held, WeakKeyDictionary)
        return held


def _function() -> Trace | None:
    """The compiled function that is being traced; None for what is traced and run at once, each
    time anew, as an eager `minimize`: such graphs are interpreted, and may leave sizes open."""
    trace = current_trace()
    root = None if trace is None else trace.root()
    if root is None or root.kind != "function":
        return None
    return root if root.symbols is None or root.static_first else None


def _public(module: Module) -> Iterator[tuple[str, Any]]:
    return ((n, v) for n, v in vars(module).items() if not n.startswith("_"))


def _tree(item: Any, seen: set[int]) -> Any:
    """The variables in what an attribute holds; None if there are none. seen: variables that
    have a path already, and modules that have been looked at."""
    if isinstance(item, (Variable, Module)):
        if id(item) in seen:
            return None
        seen.add(id(item))
    if isinstance(item, Variable):
        return item
    if isinstance(item, Module):
        return _mapping(_public(item), seen) or None
    if isinstance(item, Mapping):
        return _mapping(item.items(), seen) or None
    if isinstance(item, (list, tuple)):
        parts = [_tree(part, seen) for part in item]
        return None if all(p is None for p in parts) else parts
    return None


def _mapping(items: Iterable[tuple[Any, Any]], seen: set[int]) -> dict[str, Any]:
    found = {}
    for name, value in items:
        part = _tree(value, seen)
        if part is not None:
            if not isinstance(name, str):
                raise TypeRuleError(
                    f"wf.nn.Module: a parameter's name is a str, not {name!r:.60}",
                    location=caller_location(),
                )
            found[name] = part
    return found


def _flat(prefix: str, tree: Any) -> Iterator[tuple[str, Variable]]:
    if isinstance(tree, Variable):
        yield prefix, tree
        return
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for name, part in parts:
        if part is not None:
            if "/" in str(name):
                raise InvalidArgumentError(
                    f"wf.nn.Module: the name {name!r} has a slash, which parts paths",
                    location=caller_location(),
                )
            yield from _flat(f"{prefix}/{name}" if prefix else str(name), part)
