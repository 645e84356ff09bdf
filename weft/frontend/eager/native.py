"""`@runs_native`: large eager calls of a public function as one native call each.

The function is traced once for each kind of call (dtypes, ranks, which sizes are 1, settings) and
compiled as `@wf.compile` compiles: the first shapes get a plan of their own, which is kept on disk;
from the second on a plan for many sizes serves what comes (`runtime/sized_step.py`). What is
small, symbolic, in a trace or in a `wf.device` runs as it is written, op by op in the interpreter;
so does what has no native code, and what fails, whose error then names the op and the user's line.

Small calls of functions of several steps: a kind of call that comes `OFTEN` is replayed as the
NumPy calls that it consists of (`numpy_program.py`), without the tensors and checks in between.
The bits are those of the interpreter, against which the first replay is checked. Nothing is
compiled."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.frontend.core import pytree
from weft.frontend.core.operators import Operators
from weft.frontend.core.slow import note_slow_call
from weft.frontend.core.tensor import Tensor, as_tensor
from weft.frontend.core.trace import at_once
from weft.frontend.eager import numpy_calls
from weft.frontend.eager.numpy_calls import SWITCH
from weft.ir.dtypes import DType, as_dtype
from weft.ir.errors import InvalidArgumentError, ResourceExhaustedError, ShapeError, WeftError
from weft.ir.process import ForkLock
from weft.ir.spec import QUIET

if TYPE_CHECKING:
    from weft.frontend.eager.kinds import Kind
    from weft.frontend.eager.numpy_program import CallKind


_PLAIN = frozenset({int, bool, str, type(None), DType})


class NotPlain(Exception):
    """Raised for a call with an argument that native code does not take as it is."""


def static_key(value: Any) -> Hashable:
    """A key for a setting that tells 1 from 1.0 and True, and 0.0 from -0.0. `NotPlain` for what
    is no setting."""
    kind = type(value)
    if kind in _PLAIN:
        return (kind, value)
    if kind is float:
        return (kind, repr(value))
    if kind in (tuple, list):
        return (kind, *map(static_key, value))
    if isinstance(value, (np.dtype, type)):
        return value
    raise NotPlain


def is_operand(row: Any) -> bool:
    """Whether a row of a key is (shape, dtype, weak)."""
    return isinstance(row, tuple) and len(row) == 3 and isinstance(row[0], tuple)


def kind_key(key: Any) -> Hashable:
    """Of the key of a call that of its kind: of sizes only which are 0 and which are 1."""
    return tuple(
        (tuple([n if n < 2 else 2 for n in row[0]]), *row[1:]) if is_operand(row) else row
        for row in key
    )


def without_numbers(row: Any) -> Hashable:
    """A key without the numbers among its settings."""
    if not isinstance(row, tuple) or is_operand(row):
        return row  # type: ignore[no-any-return]
    return row[:1] if row[:1] in ((float,), (int,)) else tuple(map(without_numbers, row))


_Array = np.ndarray[Any, Any]
Run = Callable[..., Any]
#: Calls of so many equal keys are replayed from then on.
OFTEN = 64
#: Keys that are remembered for one function; then it begins anew.
MOST_KEYS = 256
#: Functions of which so many programs could not be made are not asked again.
MOST_FAILURES = 8

#: Types of the settings that are equal only where they are the same, beside their type.
_SETTINGS = frozenset({int, bool, str, type(None)})


class Replays:
    """The programs of one function. scan: of (args, kwargs, key, arrays), appends to key and
    arrays. make: of (args, kwargs, arrays, key), such a call as (graph, what packs its results, its
    results), or None."""

    def __init__(self, scan: Callable[..., None], make: Callable[..., Any]) -> None:
        self._scan, self._make = scan, make
        self._known: dict[Hashable, Run | None] = {}
        self._counts: dict[Hashable, int] = {}
        self._short: dict[Hashable, Run] = {}
        self.failures = 0

    def again(self, args: Any, kwargs: Any, arrays: list[_Array]) -> Run | None:
        """What replays a call whose like was replayed before, of tensors and settings alone; found
        by a key that is made in half the time of `scan`'s."""
        if not self._short:
            return None
        if len(args) == 1 and not kwargs and type(args[0]) is Tensor and not args[0].weak:
            data = args[0]._data
            if data is None:
                return None
            arrays.append(data)
            return self._short.get((data.shape, data.dtype))
        key = _short_key(args, kwargs, arrays)
        return None if key is None else self._short.get(key)

    def find(self, args: Any, kwargs: Any, arrays: list[_Array]) -> Run | None:
        """What replays a call on its operands, which are put into `arrays`."""
        if self.failures >= MOST_FAILURES:
            return None
        key: list[Any] = []
        try:
            self._scan(args, kwargs, key, arrays)
        except NotPlain:
            return None
        held = tuple(key)
        try:
            run = self._known[held]
        except KeyError:
            return self._count(args, kwargs, held, arrays)
        if run is not None:
            self._shorten(args, kwargs, arrays, run)
        return run

    def _shorten(self, args: Any, kwargs: Any, arrays: list[_Array], run: Run) -> None:
        """Keep a replay for `again` if the key says all of the call."""
        given: list[_Array] = []
        key = _short_key(args, kwargs, given)
        if key is None or len(given) > len(arrays):
            return
        if any(a is not b for a, b in zip(given, arrays, strict=False)):
            return
        if len(self._short) >= MOST_KEYS:
            self._short.clear()
        # numbers among the operands, which come last, are in the key
        rest = arrays[len(given) :]
        self._short[key] = (lambda *tensors: run(*tensors, *rest)) if rest else run

    def _count(
        self, args: Any, kwargs: Any, held: tuple[Any, ...], arrays: list[_Array]
    ) -> Run | None:
        """What replays a call that has no program, once it came often."""
        count = self._counts[held] = self._counts.get(held, 0) + 1
        if count < OFTEN:
            if len(self._counts) > MOST_KEYS:
                self._counts.clear()
            return None
        if len(self._known) >= MOST_KEYS:
            self._known.clear()
        run = self._known[held] = self._new(args, kwargs, held, arrays)
        self.failures += run is None
        return run

    def _new(
        self, args: Any, kwargs: Any, key: tuple[Any, ...], arrays: list[_Array]
    ) -> Run | None:
        from weft.frontend.eager.numpy_program import numpy_program  # not for `import weft`

        try:
            made = self._make(args, kwargs, arrays, key)
            if made is None:
                return None
            graph, pack, wanted = made
            program = numpy_program(graph, pack)
            same = program is not None and _is_right(program, arrays, wanted)
            return program if same else None
        except WeftError:
            return None


def _is_right(program: Run, arrays: list[_Array], wanted: Any) -> bool:
    """Whether the program gives the bits of `wanted` for these operands, as arrays of its own."""
    try:
        got = QUIET.run(program, *arrays)
    except Exception:  # a reference that takes no scalars, say
        return False
    made, leaves = pytree.flatten(got)[0], pytree.flatten(wanted)[0]
    if len(made) != len(leaves) or not all(map(_same, made, leaves)):
        return False
    return not any(np.may_share_memory(t._data, a) for t in made for a in arrays)


def _same(a: Any, b: Any) -> bool:
    if type(a) is not Tensor or type(b) is not Tensor or a.weak != b.weak:
        return False
    x, y = a._data, b._data
    if x is None or y is None or (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return x.tobytes() == y.tobytes() and x.flags.owndata and x.flags.c_contiguous


def _short_key(args: Any, kwargs: Any, arrays: list[_Array]) -> Hashable | None:
    """The types and values of what a call is given, of tensors shape and dtype; None where it is
    given more than concrete tensors, which are put into `arrays`, and plain settings."""
    key: list[Any] = []
    for a in (*args, *kwargs.values()) if kwargs else args:
        kind = type(a)
        if kind is Tensor:
            data = a._data
            if data is None or a.weak:
                return None
            arrays.append(data)
            key.append(data.shape)
            key.append(data.dtype)
        elif kind in _SETTINGS:
            key.append(kind)
            key.append(a)
        elif kind is float:
            key.append(kind)
            key.append(a or repr(a))  # 0.0 is equal to -0.0
        else:
            return None
    key += kwargs
    return tuple(key)


F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray[Any, Any]
_log = logging.getLogger("weft.compile")
#: Calls of so many shapes are found by their key alone; then it begins anew.
MOST_SHAPES = 1024
#: Kinds of calls that differ in the numbers among their settings alone (`epsilon=`, `axis=`): so
#: many are compiled, further ones run op by op, as one that changes with every call would compile
#: in each.
MOST_SETTINGS = 16

_BEHAVED = 0x101  # flags of an array that is C-contiguous and aligned
_NUMBERS = {
    float: np.dtype(np.float64), int: np.dtype(np.int64), complex: np.dtype(np.complex128),
    bool: np.dtype(np.bool_),
}  # fmt: skip


def runs_native(function: F) -> F:
    """Decorate a function of tensors (parameters annotated as `TensorLike`) and of settings, whose
    results follow from its arguments alone."""
    calls = EagerCalls(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if not SWITCH.on or not at_once():
                return function(*args, **kwargs)
            arrays: list[Array] = []
            run = calls.replays.again(args, kwargs, arrays)
            if run is None:
                if _is_large(args, kwargs):
                    return calls(args, kwargs)
                arrays = []
                run = calls.replays.find(args, kwargs, arrays)
            if run is not None:
                try:
                    return QUIET.run(run, *arrays)
                except RuntimeError:  # from within a call of NumPy: no `QUIET` in another
                    pass
            return function(*args, **kwargs)
        except TypeError as error:
            if at_once():  # else whoever traces does this
                from weft.frontend.core.user_errors import as_seen  # not for `import weft`

                as_seen(error)
            raise

    call.__dict__["calls"] = calls
    return call  # type: ignore[return-value]


def _is_large(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operand has `LARGE` elements, or they broadcast to so many."""
    product = 1
    shape: Any = None
    differ = False
    for a in (*args, *kwargs.values()) if kwargs else args:
        kind = type(a)
        if kind is Tensor:
            a = a._data
            if a is None:
                return False
        elif kind is not np.ndarray:
            continue
        size = a.size
        if size >= numpy_calls.LARGE:
            return True
        if size > 1:
            product *= size
            differ = differ or (shape is not None and a.shape != shape)
            shape = a.shape
    return (
        differ
        and product >= numpy_calls.LARGE
        and _broadcast_size((*args, *kwargs.values())) >= numpy_calls.LARGE
    )


def _broadcast_size(given: Sequence[Any]) -> int:
    shapes = [a.shape for a in given if type(a) in (Tensor, np.ndarray)]
    try:
        return math.prod(np.broadcast_shapes(*shapes))
    except ValueError:  # whoever computes with them says so
        return 0


class EagerCalls:
    """The native code for the large calls of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.name = function.__name__.strip("_")
        self._tensors: frozenset[str] | None = None  # the parameters that are such
        self._names: tuple[str, ...] = ()
        self._known: dict[Hashable, Callable[[list[Array]], Any]] = {}
        self._again: dict[Hashable, Callable[[list[Array]], Any] | None] = {}
        self._kinds: dict[Hashable, Kind | None] = {}
        self._settings: dict[Hashable, int] = {}  # how many, of calls else alike
        self._lock = ForkLock()
        self.replays = Replays(self._scan, self._as_graph)

    def again(self, op: str, xs: Sequence[Any], inexact: bool, name: str) -> Any:
        """What an elementwise op gives, for tensors and floats of which one is large; None where it
        is to be done the long way. The key of such calls is short: a third of the time of `_scan`.
        """
        row: list[Any] = [op, inexact]
        arrays: list[Array] = []
        large = False
        for x in xs:
            kind = type(x)
            if kind is Tensor:
                a = x._data
                if a is None or x.weak:
                    return None
                large = large or a.size >= numpy_calls.LARGE
                row += (a.shape, a.dtype)
                arrays.append(a)
            elif kind is float:
                row.append(float)
                arrays.append(np.array(x))
            else:
                return None
        if not large or not SWITCH.on or not at_once():
            return None
        key = tuple(row)
        try:
            run = self._again[key]
        except KeyError:
            run = self._again[key] = self._run_of((op, *xs), {"inexact": inexact, "name": name})
        try:
            return None if run is None else run(arrays)
        except (InvalidArgumentError, ResourceExhaustedError):
            return None

    def _run_of(self, args: Any, kwargs: Any) -> Callable[[list[Array]], Any] | None:
        """What runs calls like this one; None: they run op by op."""
        if len(self._again) >= MOST_SHAPES:
            self._again.clear()
        key: list[Any] = []
        arrays: list[Array] = []
        try:
            self._scan(args, kwargs, key, arrays)
        except NotPlain:
            return None
        alias = tuple(key)
        return self._known.get(alias) or self._find(alias, args, kwargs, arrays)

    def _as_graph(self, args: Any, kwargs: Any, arrays: list[Array], key: tuple[Any, ...]) -> Any:
        """The call as (graph, what packs its results or None for one tensor, its
        results); None if it is more than arithmetic."""
        from weft.frontend.compile.arguments import packer
        from weft.passes.simplify.cse_dce import cse, dce
        from weft.passes.simplify.effects import strip_gradient_ops

        wanted = self._function(*args, **kwargs)
        weak = [row[2] for row in key if is_operand(row)]
        shapes, dtypes = [a.shape for a in arrays], [as_dtype(a.dtype) for a in arrays]
        traced = self._kind_of(args, kwargs).traced(dtypes, shapes, weak)
        if traced.variables or traced.limits:
            return None
        graph = dce(cse(strip_gradient_ops(traced.graph)))
        one = traced.structure is None and not traced.weak[0]
        return graph, None if one else packer(traced.structure, traced.weak), wanted

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """What the function gives."""
        key: list[Any] = []
        arrays: list[Array] = []
        try:
            self._scan(args, kwargs, key, arrays)
            alias = tuple(key)
            run = self._known.get(alias) or self._find(alias, args, kwargs, arrays)
            if run is not None:
                return run(arrays)
        except (NotPlain, InvalidArgumentError, ResourceExhaustedError):
            pass  # op by op it has the error that names op and line, or what was no error
        start = time.perf_counter()
        made = self._function(*args, **kwargs)
        note_slow_call(self._shown(args), time.perf_counter() - start)
        return made

    # ------------------------------------------------------------------------------------ the key
    def _parameters(self) -> frozenset[str]:
        parameters = inspect.signature(self._function).parameters.values()
        plain = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
        self._names = tuple(p.name for p in plain if p.kind is not p.KEYWORD_ONLY)
        self._tensors = frozenset(p.name for p in plain if "TensorLike" in str(p.annotation))
        return self._tensors

    def _scan(self, args: Any, kwargs: Any, key: list[Any], arrays: list[Array]) -> None:
        """Append key and arrays. `NotPlain` for what native code does not take."""
        tensors = self._tensors
        if tensors is None:
            tensors = self._parameters()
        names, count = self._names, len(self._names)
        for i, a in enumerate(args):
            if i >= count or names[i] in tensors:
                _scan_operand(a, key, arrays)
            else:
                key.append(static_key(a))
        for name, a in kwargs.items():
            key.append(name)
            if name in tensors:
                _scan_operand(a, key, arrays)
            else:
                key.append(static_key(a))

    # ---------------------------------------------------------------------------------- the code
    def _find(
        self, alias: tuple[Any, ...], args: Any, kwargs: Any, arrays: list[Array]
    ) -> Callable[[list[Array]], Any] | None:
        """What runs calls like this one. None: they run op by op."""
        key = kind_key(alias)
        with self._lock:
            kind = self._kinds.get(key)
            if kind is None:
                alike = without_numbers(key)
                count = self._settings.get(alike, 0)
                if key in self._kinds or count >= MOST_SETTINGS:
                    return None
                self._settings[alike] = count + 1
                kind = self._new_kind(args, kwargs)
            try:
                run = kind.at(arrays, [row[2] for row in alias if is_operand(row)])
            except (ShapeError, InvalidArgumentError):
                return None  # of these shapes, those values: op by op it has the error
            except WeftError as error:
                _log.info("eager %s runs op by op: %s", self.name, error)
                self._kinds[key] = None
                return None
            self._kinds[key] = kind
            if len(self._known) >= MOST_SHAPES:
                self._known.clear()
            self._known[alias] = run
        return run

    def _new_kind(self, args: Any, kwargs: Any) -> Kind:
        from weft.frontend.eager.kinds import Kind  # the compiler: not for `import weft`

        return Kind(self._kind_of(args, kwargs))

    def _kind_of(self, args: Any, kwargs: Any) -> CallKind:
        from weft.frontend.eager.numpy_program import CallKind

        tensors = self._tensors or frozenset()
        places: list[int | str] = [
            i for i in range(len(args)) if i >= len(self._names) or self._names[i] in tensors
        ]
        places += [name for name in kwargs if name in tensors]
        return CallKind(self._shown(args), self._function, args, kwargs, places)

    def _shown(self, args: Any) -> str:
        """The public name: what serves many ops has the op's name as its first argument."""
        return args[0] if args and type(args[0]) is str else self.name


def _scan_operand(a: Any, key: list[Any], arrays: list[Array]) -> None:
    kind = type(a)
    if kind is Tensor:
        data, weak = a._data, a.weak
        if data is None:
            raise NotPlain
    elif kind is np.ndarray:
        data, weak = a, False
        if data.flags.num & _BEHAVED != _BEHAVED or not data.dtype.isnative:
            raise NotPlain
    elif kind in _NUMBERS:
        if kind is int and not -(2**63) <= a < 2**63:
            raise NotPlain
        data, weak = np.array(a, _NUMBERS[kind]), kind is not bool
    elif a is None:
        key.append(None)
        return
    elif isinstance(a, Operators) and not isinstance(a, Tensor):  # a Variable
        data, weak = as_tensor(a)._data, False
        if data is None:
            raise NotPlain
    else:
        raise NotPlain
    if data.dtype.kind in "OSUMm":
        raise NotPlain
    key.append((data.shape, data.dtype, weak))
    arrays.append(data)
