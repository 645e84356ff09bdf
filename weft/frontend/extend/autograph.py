"""Python's `if`, `while`, `for`, `and`, `or`, `not`, `assert` and `break` on tensors:
`wf.compile(autograph=True)`.

The converter is AutoGraph (Moldovan et al., AutoGraph: imperative-style coding with graph-based
performance, SysML 2019), of the package diastatic-malt: it rewrites a function so that each
statement is a call of one of the operators here. An operator decides by its operands, as the
function is traced: what depends on a tensor becomes `wf.cond`, `wf.while_loop` or `wf.scan`, all
else runs as Python does. Functions of the user's that are called, or given to weft's
transformations, branches and loops, are converted, too; those of weft, of the standard library and
of installed packages are not.

`get_state` and `set_state` of a statement read and write the local variables that it assigns to;
what is a tensor, a number or a container of them goes through the branch or loop, anything else
must be the same whatever is taken."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import operator
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np

from weft.frontend.control.branches import cond
from weft.frontend.control.loops import scan, while_loop
from weft.frontend.core import pytree
from weft.frontend.core.operators import Operators
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import suspend_trace
from weft.frontend.extend.debug import check
from weft.frontend.extend.debug import print as print_tensors
from weft.frontend.extend.iterables import FUNCTIONS, Range, Steps, is_traced, steps_of
from weft.frontend.ops.creation import arange, zeros
from weft.frontend.ops.elementwise import logical_and, logical_not, logical_or
from weft.ir.dtypes import bool_
from weft.ir.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    TypeRuleError,
    UnsupportedError,
)
from weft.ir.locations import Location, caller_location, is_ours, write_lines_of

_TRANSFORMATIONS = tuple(f"weft.frontend.{n}." for n in ("autodiff", "transforms", "control"))
State = tuple[Any, ...]
Get = Callable[[], State]
Set = Callable[[State], None]


# ---------------------------------------------------------------------------------- which values
def _is_carried(x: object) -> bool:
    """Whether a value can go through a branch or loop: tensors, numbers, containers of them."""
    kinds = (Operators, bool, int, float, complex, np.ndarray, np.generic)
    leaves = pytree.flatten(x)[0]
    return bool(leaves) and all(isinstance(leaf, kinds) for leaf in leaves)


@cache
def _malt() -> Any:
    """The converter. FailedPreconditionError if it is not installed."""
    try:
        from malt.core import converter
        from malt.impl import api
        from malt.operators import function_wrappers, py_builtins, variables
        from malt.pyct import anno
    except ImportError:
        raise FailedPreconditionError(
            "wf.compile(autograph=True) needs AutoGraph's converter, which is not installed",
            hint="pip install 'weft[autograph]', or write wf.cond, wf.while_loop and wf.scan",
            location=caller_location(),
        ) from None
    return SimpleNamespace(
        api=api, converter=converter, variables=variables, py_builtins=py_builtins,
        function_wrappers=function_wrappers, anno=anno,
    )  # fmt: skip


def _is_undefined(x: object) -> bool:
    variables = _malt().variables
    return isinstance(x, (variables.Undefined, variables.UndefinedReturnValue))


def _shown(name: str) -> str:
    """A variable as people know it; the converter's own stand for statements."""
    if name.startswith("retval_"):
        return "what it returns"
    return "whether it has returned" if name.startswith("do_return") else f"'{name}'"


# ------------------------------------------------------------------------------------- branches
def if_stmt(
    test: Any, body: Callable[[], None], orelse: Callable[[], None], get_state: Get,
    set_state: Set, symbol_names: Sequence[str], nouts: int,
) -> None:  # fmt: skip
    """`if test: body else: orelse`. The first `nouts` variables are used after it."""
    if not is_traced(test):
        (body if test else orelse)()
        return
    before = get_state()
    stand_ins: dict[str, Any] = {}
    while True:
        branches = _Branches(before, get_state, set_state, symbol_names[:nouts], stand_ins)
        try:
            with _unchanged("a branch of an `if`", (body, orelse), symbol_names):
                found = cond(test, branches.first(body), branches.second(orelse))
            break
        except _Unknown as unknown:
            set_state(before)
            stand_ins[unknown.name] = unknown.stand_in
    others = branches.others[0]
    found.update(dict.fromkeys(branches.returned(test), True))
    after = [found[n] if n in found else others[n] for n in symbol_names[:nouts]]
    set_state((*after, *before[nouts:]))


class _Unknown(Exception):  # it ends an attempt
    """What a function returns is not known where it does not return yet: anything of the type that
    it has elsewhere stands for it."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name)
        self.name, self.stand_in = name, pytree.tree_map(_zeros_of, value)


def _zeros_of(leaf: Any) -> Any:
    """Zeros of the type of a leaf."""
    t = as_tensor(leaf)
    if not t._type.is_static:
        raise UnsupportedError(
            f"autograph: a `return` that depends on a tensor returns {t.describe()}, whose size is "
            "open",
            hint="return it at the end, or in both branches",
            location=caller_location(),
        )
    with suspend_trace():
        made = zeros(t._type.static_shape, dtype=t.dtype)
    made.weak = t.weak
    return made


class _Branches:
    """The two branches of one `if`, traced. stand_ins: for what one of them does not return."""

    def __init__(
        self, before: State, get_state: Get, set_state: Set, names: Sequence[str],
        stand_ins: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._before, self._get, self._set = before, get_state, set_state
        self._names, self._stand_ins = names, stand_ins
        self.others: list[dict[str, Any]] = []  # what does not go through, of each
        self._made: dict[str, Any] = {}
        self._after: list[dict[str, Any]] = []

    def returned(self, test: Any) -> list[str]:
        """The names of "it has returned" that hold after both branches: where both return, or where
        one does and `test` is that it had not."""
        before = dict(zip(self._names, self._before, strict=False))
        yes, no = self._after[-2:]
        return [
            name for name in self._names
            if name.startswith("do_return") and yes[name] is True
            and (no[name] is True or _negates(test, before[name]))
        ]  # fmt: skip

    def first(self, run: Callable[[], None]) -> Callable[[], dict[str, Any]]:
        return lambda: self._taken(run)

    def second(self, run: Callable[[], None]) -> Callable[[], dict[str, Any]]:
        def taken() -> dict[str, Any]:
            first = self._made
            second = self._taken(run)
            for name in self._names:
                others = [made[name] for made in self.others if name in made]
                if name.startswith("retval_") and len(others) == 1 and _is_undefined(others[0]):
                    raise _Unknown(name, first.get(name, second.get(name)))
            first_others, second_others = self.others
            _check_same(first_others, second_others, second)
            return second

        return taken

    def _taken(self, run: Callable[[], None]) -> dict[str, Any]:
        self._set(self._before)
        run()
        made = dict(zip(self._names, self._get()[: len(self._names)], strict=True))
        self._after.append(dict(made))
        for name, stand_in in self._stand_ins.items():
            if _is_undefined(made[name]):
                made[name] = stand_in
        self._made = {n: x for n, x in made.items() if _is_carried(x)}
        self.others.append({n: x for n, x in made.items() if n not in self._made})
        return self._made


def _negates(test: Tensor, x: Any) -> bool:
    """Whether `test` is `not x`."""
    if not isinstance(x, Tensor) or x._value is None or test._value is None:
        return False
    op = test._value.op
    return op is not None and op.name == "logical_not" and op.operands[0] is x._value


@contextmanager
def _unchanged(
    where: str, bodies: Sequence[Callable[..., None]], names: Sequence[str]
) -> Iterator[None]:
    """UnsupportedError if what `bodies` do, which is done once while tracing, changes more than the
    variables `names`: what they see of other variables, and of lists, dicts and objects."""
    before = _seen_by(bodies, names)
    yield
    after = _seen_by(bodies, names)
    for key, (name, old) in before.items():
        new = after[key][1] if key in after else old
        if any(new.get(k, _GONE) is not x for k, x in old.items()) or (
            isinstance(old[""], (list, dict, set)) and len(new) != len(old)
        ):
            raise UnsupportedError(
                f"autograph: {where} on a tensor changes '{name}' by a function or method that it "
                "calls",
                hint="what is done in it is done once, while tracing: assign to variables in the "
                "statement itself",
                location=caller_location(),
            )


_GONE = object()


def _seen_by(
    bodies: Sequence[Callable[..., None]], names: Sequence[str]
) -> dict[int, tuple[str, dict[Any, object]]]:
    """The variables that functions, and those that they call, have from around them, by the cells
    that hold them: their names, and what they hold, without what `names` are and are part of."""
    cells: dict[int, tuple[str, CellType]] = {}
    left: list[object] = list(bodies)
    while left:
        f = left.pop()
        f = f.__func__ if isinstance(f, MethodType) else f
        if isinstance(f, FunctionType):
            for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
                if id(cell) in cells or name == "ag__":
                    continue
                with suppress(ValueError):  # not assigned yet
                    left.append(cell.cell_contents)
                    cells[id(cell)] = name, cell
    roots = {name.split(".")[0].split("[")[0] for name in names}
    held = [(key, name, cell.cell_contents) for key, (name, cell) in cells.items()]
    shared = {id(x) for _, name, x in held if name in roots}
    return {
        key: (name, {"": x} if id(x) in shared else _parts(x))
        for key, name, x in held
        if name not in names
    }


def _parts(x: Any) -> dict[Any, object]:
    """An object, and what it holds: of one of the user's program its attributes."""
    if isinstance(x, (list, set)):
        return {"": x, **{(k,): part for k, part in enumerate(x)}}
    if isinstance(x, dict):
        return {"": x, **{(k,): part for k, part in x.items()}}
    file = getattr(sys.modules.get(type(x).__module__), "__file__", None) or ""
    attributes = getattr(x, "__dict__", {}) if _is_users_file(file) else {}
    return {"": x, **{(k,): part for k, part in attributes.items()}}


def _check_same(first: Mapping[str, Any], second: Mapping[str, Any], carried: object) -> None:
    """UnsupportedError for a variable that is no tensor, or not there, after one branch of two."""
    for name in dict.fromkeys((*first, *second)):
        one, other = first.get(name, carried), second.get(name, carried)
        if _is_undefined(one) != _is_undefined(other):
            raise UnsupportedError(
                f"autograph: {_shown(name)} has a value after one branch of an `if` on a tensor "
                "only",
                hint="give it one before the `if`, or in both branches (`return` in both, too)",
                location=caller_location(),
            )
        if one is not other and not _is_undefined(one) and (name not in first or one != other):
            texts = ["a tensor or number" if x is carried else f"{x!r:.40}" for x in (one, other)]
            raise UnsupportedError(
                f"autograph: {_shown(name)} is {texts[0]} after one branch of an `if` on a tensor "
                f"and {texts[1]} after the other",
                hint="tensors and numbers go through it; other objects must be the same",
                location=caller_location(),
            )


def if_exp(test: Any, if_true: Callable[[], Any], if_false: Callable[[], Any], text: str) -> Any:
    """`if_true() if test else if_false()`."""
    if not is_traced(test):
        return if_true() if test else if_false()
    with _unchanged("a conditional expression", (if_true, if_false), ()):
        return cond(test, if_true, if_false)


def and_(a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`a() and b()`; of a tensor both are computed."""
    first = a()
    if not is_traced(first):
        return first and b()
    return logical_and(_truth("and", first), _truth("and", b()))


def or_(a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`a() or b()`; of a tensor both are computed."""
    first = a()
    if not is_traced(first):
        return first or b()
    return logical_or(_truth("or", first), _truth("or", b()))


def _truth(word: str, x: Any) -> Any:
    """An operand of `and` or `or` on tensors. TypeRuleError if it is no bool: Python's result would
    be one of the operands."""
    t = x if isinstance(x, bool) else as_tensor(x)
    if isinstance(t, bool) or t.dtype is bool_:
        return t
    raise TypeRuleError(
        f"autograph: `{word}` on tensors takes bools, got {t.describe()}",
        hint="compare it, as in `x > 0`",
        location=caller_location(),
    )


_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le,
    "Gt": operator.gt, "GtE": operator.ge, "Is": operator.is_, "IsNot": operator.is_not,
    "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
}  # fmt: skip


def chain(left: Any, name: str, right: Callable[[], Any], *rest: Any) -> Any:
    """`left < right() < ...`: each operand is computed once."""
    middle = right()
    first = _COMPARED[name](left, middle)
    return and_(lambda: first, lambda: chain(middle, *rest)) if rest else first


def not_(a: Any) -> Any:
    """`not a`."""
    return logical_not(a) if is_traced(a) else not a


def assert_stmt(condition: Any, message: Callable[[], Any]) -> None:
    """`assert condition, message`: of a tensor a check in each run."""
    if is_traced(condition):
        check(condition, str(message()).replace("{", "{{").replace("}", "}}"))
        return
    assert condition, message()


# ---------------------------------------------------------------------------------------- loops
def while_stmt(
    test: Callable[[], Any], body: Callable[[], None], get_state: Get, set_state: Set,
    symbol_names: Sequence[str], opts: Mapping[str, Any],
) -> None:  # fmt: skip
    """`while test(): body()`: in Python up to the first condition that is a tensor."""
    goes_on = test()
    while not is_traced(goes_on):
        if not goes_on:
            return
        body()
        goes_on = test()
    loop = _Loop("while", get_state, set_state, symbol_names)
    with _unchanged("a `while`", (test, body), symbol_names):
        loop.known(lambda: loop.run(test, body))


class _Loop:
    """The variables of a loop on tensors: those that go round it, and those that stay."""

    def __init__(self, what: str, get_state: Get, set_state: Set, names: Sequence[str]) -> None:
        self.what, self.get_state, self.set_state, self.names = what, get_state, set_state, names
        before = get_state()
        self.carried = {n: x for n, x in zip(names, before, strict=True) if _is_carried(x)}
        self.rest = {n: x for n, x in zip(names, before, strict=True) if n not in self.carried}

    def write(self, carried: Mapping[str, Any]) -> None:
        """Give the variables the values of an iteration."""
        self.set_state(tuple([carried.get(n, self.rest.get(n)) for n in self.names]))

    def read(self) -> dict[str, Any]:
        """Their values after an iteration. UnsupportedError for one that did not go round and has
        changed."""
        after = dict(zip(self.names, self.get_state(), strict=True))
        for name, before in self.rest.items():
            x = after.pop(name)
            if x is before or (_is_undefined(x) and _is_undefined(before)):
                continue
            if name.startswith("retval_") and _is_undefined(before) and _is_carried(x):
                raise _Unknown(name, x)
            if _is_undefined(before):
                what = f"has no value before a `{self.what}` on tensors, and is used after it"
                hint = "give it a value of its later type before the loop"
            else:
                what = f"is {before!r:.40} before a `{self.what}` on tensors, and changes in it"
                hint = "tensors, numbers and containers of them go round; other objects must stay"
            raise UnsupportedError(
                f"autograph: {_shown(name)} {what}", hint=hint, location=caller_location()
            )
        return after

    def known(self, loop: Callable[[], None]) -> None:
        """The loop, once more with a value for what it does not return at once."""
        before = self.get_state()
        while True:
            try:
                loop()
                return
            except _Unknown as unknown:
                self.set_state(before)
                if unknown.name in self.carried or unknown.name not in self.rest:
                    raise
                del self.rest[unknown.name]
                self.carried[unknown.name] = unknown.stand_in

    def run(self, test: Callable[[], Any], body: Callable[[], None]) -> None:
        """The loop as `wf.while_loop`."""

        def goes_on(carried: dict[str, Any]) -> Any:
            self.write(carried)
            return test()

        def once(carried: dict[str, Any]) -> dict[str, Any]:
            self.write(carried)
            body()
            return self.read()

        self.write(while_loop(goes_on, once, self.carried))

    def rows(self, steps: Steps, body: Callable[[Any], None]) -> None:
        """A loop over the rows of tensors as `wf.scan`."""
        leaves = [_first(leaf, steps.length) for leaf in steps.leaves]
        numbers = [arange(steps.length)] if steps.numbered else []

        def once(
            carried: dict[str, Any], row: tuple[Tensor, ...] | Tensor
        ) -> tuple[dict[str, Any], None]:
            self.write(carried)
            rows = list(row) if isinstance(row, tuple) else [row]
            number = rows.pop() if numbers else None
            if number is not None:
                number.weak = True  # as Python's numbers are
            body(steps.element(number, iter(rows)))
            return self.read(), None

        given = (*leaves, *numbers)
        last, _ = scan(once, self.carried, given if len(given) > 1 else given[0])
        self.write(last)


def _first(x: Tensor, length: Any) -> Any:
    """The rows of a tensor that a loop of some length goes over."""
    return x if length is None or x.shape[0] == length else x[:length]


def for_stmt(
    iter_: Any, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], get_state: Get,
    set_state: Set, symbol_names: Sequence[str], opts: Mapping[str, Any],
) -> None:  # fmt: skip
    """`for target in iter_: body(target)`, as long as `extra_test()` (no `break` was met) holds."""
    steps = steps_of(iter_)
    if steps is None:
        _plain_for(iter_, extra_test, body, (get_state, set_state, symbol_names))
        return
    loop = _Loop("for", get_state, set_state, symbol_names)
    no_rows = steps.length is None  # which wf.scan says
    if isinstance(steps, Range):
        run = partial(_counted, steps, extra_test, body, loop)
    elif no_rows or (extra_test is None and not is_traced(steps.length)):
        run = partial(loop.rows, steps, body)
    else:
        places = Range(0, steps.length, 1)
        run = partial(_counted, places, extra_test, lambda i: body(steps.at(i)), loop)
    with _unchanged("a `for`", (body,), symbol_names):
        loop.known(run)


def _plain_for(
    iter_: Any, extra_test: Callable[[], Any] | None, body: Callable[[Any], None],
    state: tuple[Get, Set, Sequence[str]],
) -> None:  # fmt: skip
    """A loop over what Python iterates over; a range goes on as a loop on tensors where a `break`
    depends on one."""
    for count, target in enumerate(iter_):
        goes_on = True if extra_test is None else extra_test()
        if is_traced(goes_on):
            if not isinstance(iter_, builtins.range):
                raise UnsupportedError(
                    f"autograph: a `break` in a loop over a {type(iter_).__name__} depends on a "
                    "tensor",
                    hint="loop over a range or over the rows of a tensor",
                    location=caller_location(),
                )
            left = iter_[count:]
            places = Range(left.start, left.stop, left.step)
            loop = _Loop("for", *state)
            with _unchanged("a `for`", (body,), loop.names):
                loop.known(partial(_counted, places, extra_test, body, loop))
            return
        if not goes_on:
            return
        body(target)


def _counted(
    places: Range, extra_test: Callable[[], Any] | None, body: Callable[[Any], None], loop: _Loop
) -> None:
    """A loop over a range as `wf.while_loop`."""
    step = places.step

    def goes_on(i: Any, carried: dict[str, Any]) -> Any:
        loop.write(carried)
        inside = i < places.stop if step > 0 else i > places.stop
        return inside if extra_test is None else logical_and(inside, extra_test())

    def once(i: Any, carried: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        loop.write(carried)
        body(i)
        return i + step, loop.read()

    _, last = while_loop(goes_on, once, (places.start, loop.carried))
    loop.write(last)


# --------------------------------------------------------------------------------------- source
class _AssignedLater(Exception):  # it ends a conversion
    """A variable that is assigned to where the converter makes a function."""

    def __init__(self, where: str, name: str, line: int) -> None:
        super().__init__(where)
        self.where, self.name, self.line = where, name, line


class _Prepared(ast.NodeTransformer):
    """A function's syntax tree in the form that the converter takes: comparisons of several
    operands, conditional expressions in others, and annotated variables are written otherwise. It
    makes functions of what is computed later: what is assigned to by `:=` there is refused."""

    def _check(self, where: str, *nodes: ast.AST) -> None:
        for node in nodes:
            for inner in ast.walk(node):
                if isinstance(inner, ast.NamedExpr):
                    anno = _malt().anno
                    line = anno.getanno(inner, anno.Basic.ORIGIN).loc.lineno
                    raise _AssignedLater(where, inner.target.id, line)

    def _placed(self, node: ast.AST, new: ast.AST) -> ast.AST:
        """`new` in the place of `node`."""
        anno = _malt().anno
        anno.copyanno(node, new, anno.Basic.ORIGIN)
        return ast.copy_location(new, node)

    def visit_While(self, node: ast.While) -> ast.AST:
        self._check("the condition of a `while`", node.test)
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self._check("`and` or `or`", node)
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if node.msg is not None:
            self._check("the message of an `assert`", node.msg)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self._check("a conditional expression", node.body, node.orelse)
        nested = any(isinstance(n, ast.IfExp) for n in ast.walk(node) if n is not node)
        self.generic_visit(node)
        if not nested:
            return node
        later = [_later(node.body), _later(node.orelse)]
        return self._placed(node, _call("if_exp", [node.test, *later, ast.Constant("")]))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1:
            self._check("a comparison of several", *node.comparators)
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        pairs = zip(node.ops, node.comparators, strict=True)
        parts = [x for op, e in pairs for x in (ast.Constant(type(op).__name__), _later(e))]
        return self._placed(node, _call("chain", [node.left, *parts]))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        fields = [isinstance(n, ast.AnnAssign) for n in node.body]  # annotations of the class
        node.body = [n if f else self.visit(n) for n, f in zip(node.body, fields, strict=True)]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return self._placed(node, ast.Pass())
        return self._placed(node, ast.Assign(targets=[node.target], value=node.value))


def _later(body: ast.expr) -> ast.expr:
    """A function of an expression."""
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=none, body=body)


def _call(name: str, args: list[ast.expr]) -> ast.expr:
    """A call of an operator of this module."""
    of = ast.Attribute(value=ast.Name(id="ag__", ctx=ast.Load()), attr=name, ctx=ast.Load())
    return ast.Call(func=of, args=args, keywords=[])


# ---------------------------------------------------------------------------------------- calls
def print_(*args: Any, **options: Any) -> None:
    """`print`: of tensors in each run."""
    if not any(map(is_traced, args)):
        builtins.print(*args, **options)  # noqa: T201  # the user's own
        return
    if options.keys() - {"file", "sep"}:
        raise UnsupportedError(
            f"autograph: print({', '.join(f'{n}=' for n in options)}) of tensors",
            hint="wf.print has a format, and file=",
            location=caller_location(),
        )
    sep = options.pop("sep", None)
    between = " " if sep is None else sep.replace("{", "{{").replace("}", "}}")
    print_tensors(between.join(["{}"] * len(args)), *args, **options)


_made_files: set[str] = set()  # of converted functions
_BUILTINS: dict[Any, Callable[..., Any]] = {**FUNCTIONS, builtins.print: print_}
_INSTALLED = tuple(
    os.path.realpath(sysconfig.get_paths()[key]) + os.sep
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
)


def _is_users(function: FunctionType) -> bool:
    """Whether a function is one of the user's program."""
    file = function.__code__.co_filename
    if file in _made_files or inspect.isgeneratorfunction(function):  # converted, or not to be
        return False
    return _is_users_file(file)


def _is_users_file(file: str) -> bool:
    if not file or is_ours(file) or file.startswith("<"):
        return False
    return not os.path.realpath(file).startswith(_INSTALLED)


def converted_call(
    f: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, *context: Any, **options: Any
) -> Any:
    """`f(*args, **kwargs)` in a converted function."""
    if kwargs is None:
        kwargs = {}
    if f is super and not args and context:  # it looks at the frame of who calls it
        return _malt().py_builtins.super_in_original_context(f, args, context[0])
    if isinstance(f, functools.partial):
        return converted_call(f.func, (*f.args, *args), {**f.keywords, **kwargs})
    with suppress(TypeError):  # not hashable
        f = _BUILTINS.get(f, f)
    if isinstance(f, MethodType) and isinstance(f.__func__, FunctionType):
        f, args = f.__func__, (f.__self__, *args)
    own_call = getattr(type(f), "__call__", None)  # noqa: B004
    if isinstance(own_call, FunctionType) and not isinstance(f, type):
        f, args = own_call, (f, *args)
    if isinstance(f, FunctionType) and _is_users(f):
        f = convert(f)
    elif str(getattr(f, "__module__", "")).startswith(_TRANSFORMATIONS):  # who call theirs at once
        args = tuple(map(_converted_argument, args))
        kwargs = {name: _converted_argument(value) for name, value in kwargs.items()}
    return f(*args, **kwargs)


def _converted_argument(value: Any) -> Any:
    """A function of the user's converted; anything else as it is, and a lambda that looks like
    another on its line."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, FunctionType) or not _is_users(function):
        return value
    try:
        return convert(value)
    except InvalidArgumentError:
        if function.__name__ != "<lambda>":
            raise
    return value


@cache
def _transpiler() -> Any:
    malt = _malt()
    api, converter, function_wrappers = malt.api, malt.converter, malt.function_wrappers

    class FunctionScope(function_wrappers.FunctionScope):  # type: ignore[misc, name-defined]
        """A converted function, as it runs."""

        def ret(self, value: Any, did_return: Any) -> Any:
            """What it returns, which must be the same kind of thing whatever is taken."""
            if is_traced(did_return) and _is_carried(value):
                check(did_return, "autograph: a function came to its end without a `return`, which "
                      "on another way it has")  # fmt: skip
            return super().ret(value, did_return)

    class Transpiler(api.PyToPy):  # type: ignore[misc, name-defined]
        """AutoGraph's conversion, to calls of the operators here."""

        def get_extra_locals(self) -> dict[str, Any]:
            found: dict[str, Any] = super().get_extra_locals()
            vars(found["ag__"]).update(
                if_stmt=if_stmt, if_exp=if_exp, and_=and_, or_=or_, not_=not_,
                while_stmt=while_stmt, for_stmt=for_stmt, assert_stmt=assert_stmt,
                converted_call=converted_call, chain=chain, FunctionScope=FunctionScope,
            )  # fmt: skip
            return found

        def transform_ast(self, node: Any, ctx: Any) -> Any:
            return super().transform_ast(_Prepared().visit(node), ctx)

    options = converter.ConversionOptions(
        recursive=True, user_requested=True,
        optional_features=(
            converter.Feature.ASSERT_STATEMENTS, converter.Feature.BUILTIN_FUNCTIONS,
        ),
    )  # fmt: skip
    return Transpiler(), converter.ProgramContext(options=options)


def convert(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with control flow that works on tensors. InvalidArgumentError if its source cannot
    be read or converted; FailedPreconditionError without the converter."""
    transpiler, context = _transpiler()
    if isinstance(function, MethodType):
        return MethodType(convert(function.__func__), function.__self__)
    if not isinstance(function, FunctionType):
        raise InvalidArgumentError(
            f"wf.compile(autograph=True): {function!r:.60} is no Python function",
            hint="convert the functions that it calls",
            location=caller_location(),
        )
    file = function.__code__.co_filename
    if is_ours(file):
        return _with_converted_cells(function)
    try:
        made, module, origins = transpiler.transform(function, context)
    except _AssignedLater as error:
        raise UnsupportedError(
            f"autograph: `:=` in {error.where}",
            hint=f"assign to '{error.name}' in a statement of its own",
            location=Location(file, error.line),
        ) from None
    except Exception as error:
        why = str(error) or type(error).__name__
        raise InvalidArgumentError(
            f"wf.compile(autograph=True): '{function.__name__}' cannot be converted: {why}",
            hint="write wf.cond, wf.while_loop and wf.scan in it",
            location=Location(file, function.__code__.co_firstlineno),
        ) from error
    _made_files.add(made.__code__.co_filename)
    lines = {at.lineno: Location(file, origin.loc.lineno) for at, origin in origins.items()}
    last = Location(file, function.__code__.co_firstlineno)
    for line in builtins.range(1, len(inspect.getsource(module).splitlines()) + 1):
        last = lines.setdefault(line, last)  # what the converter adds to a statement follows it
    write_lines_of(module.__file__, lines)
    return functools.update_wrapper(made, function)


def _with_converted_cells(function: FunctionType) -> Callable[..., Any]:
    """What a function of weft's made of the user's (`wf.grad(f)`), of that function converted.
    InvalidArgumentError where it is not found."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    made = [convert(x) if _is_to_convert(x) else x for x in held]
    if made == held:
        raise InvalidArgumentError(
            f"wf.compile(autograph=True): '{function.__name__}' is a function of weft's alone",
            hint="convert yours: f = wf.compile(f, autograph=True), then wf.grad(f), say",
            location=caller_location(),
        )
    given = function.__name__, function.__defaults__, tuple(map(CellType, made))
    remade = FunctionType(function.__code__, function.__globals__, *given)
    remade.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(remade, function)


def _is_to_convert(x: Any) -> bool:
    is_function = isinstance(x, (FunctionType, MethodType))
    return is_function and (hasattr(x, "__wrapped__") or not is_ours(x.__code__.co_filename))
