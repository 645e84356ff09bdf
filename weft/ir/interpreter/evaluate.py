"""The reference interpreter: executes a graph, or a single op, in NumPy.

It runs any graph at any stage and is the oracle for every pass and every compiled kernel, so it
prefers checks to speed: each result must have exactly the dtype and shape of its type. Symbolic
dimensions take their sizes from the inputs' shapes.

Single ops (`evaluate_op`) are what eager calls run. What the type rule says of an op depends on its
attributes and on the dtypes and shapes of its operands; it is computed once and kept (`Prepared`):
from then on such an op is one call of its NumPy reference, whose results are checked as ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.analysis.frames import is_dataflow
from weft.ir.dataclass import dataclass
from weft.ir.dims import Dim, SymbolicDim, solve_dims, substitute_dim
from weft.ir.dtypes import DType, as_dtype, string
from weft.ir.errors import (
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    ShapeError,
    UnsupportedError,
    WeftError,
)
from weft.ir.graph import Block, Graph, Operation, Value
from weft.ir.interpreter.dataflow import RunOp, run_dataflow
from weft.ir.interpreter.state import EXECUTE_STATE, Cells, Ref, State, run_stack_op
from weft.ir.locations import caller_location
from weft.ir.ops import OPS, REGISTERED, lookup
from weft.ir.ops.builder import make_op
from weft.ir.ops.control_flow import STACK_OPS
from weft.ir.ops.io import PYTHON_CALLS
from weft.ir.spec import Array, Attrs, AttrValue, Reference, fits, int_attr, quietly
from weft.ir.types import HandleType, RefType, TensorType, Type, substitute_type

_PLAIN = frozenset("?bBhHiIlLefdFD")  # dtype.char


def as_array(x: object) -> Array:
    """`x` as an array of a weft dtype: native byte order, strings as objects that are bytes."""
    array = x if type(x) is np.ndarray else np.asarray(x)
    if array.dtype.isbuiltin == 1 and array.dtype.char in _PLAIN:
        return array
    if array.dtype.kind == "U":
        array = np.char.encode(array, "utf-8")
    dtype = as_dtype(array.dtype).numpy
    return array if array.dtype == dtype and array.dtype.isnative else array.astype(dtype)


def type_of(array: Array) -> TensorType:
    """The type of a concrete array."""
    return TensorType(as_dtype(array.dtype), array.shape)


def bind_symbols(graph: Graph, arrays: Sequence[Array]) -> dict[str, int]:
    """The sizes of the symbols in the types of the graph's inputs, from the shapes of `arrays`.

    Raises InvalidArgumentError, naming the input, where an array does not fit its type.
    """
    if len(arrays) != len(graph.args):
        raise InvalidArgumentError(
            f"graph '{graph.name}' takes {len(graph.args)} inputs, got {len(arrays)}"
        )
    sizes = solve_dims(size_pairs(graph.args, arrays))
    for name, arg, array in zip(graph.arg_names, graph.args, arrays, strict=True):
        wanted = substitute_type(arg.type, sizes)
        if (
            not isinstance(wanted, TensorType)
            or not has_type(array, wanted)
            or any(isinstance(d, SymbolicDim) for d in wanted.shape)
        ):
            at = ", ".join(f"{k}={v}" for k, v in sizes.items())
            raise InvalidArgumentError(
                f"input '{name}' of graph '{graph.name}' must be {arg.type}, got {type_of(array)}"
                + (f" (with {at})" if at and str(wanted) != str(arg.type) else "")
            )
    return sizes


def size_pairs(values: Sequence[Value], given: Sequence[Any]) -> list[tuple[Dim, int]]:
    """The dimensions of the types of values, with the sizes that they have."""
    return [
        pair
        for value, array in zip(values, given, strict=True)
        if isinstance(value.type, TensorType) and value.type.rank == np.ndim(array)
        for pair in zip(value.type.shape, np.shape(array), strict=True)
    ]


def has_type(array: Array, t: TensorType) -> bool:
    """Whether an array is of a type; a dimension that is no number fits any."""
    return (
        array.dtype == t.dtype.numpy
        and array.ndim == t.rank
        and all(n == d or not isinstance(d, int) for n, d in zip(array.shape, t.shape, strict=True))
    )


#: Runs a block on concrete arguments.
RunBlock = Callable[[Block, Sequence[Any]], list[Any]]


def run_fused(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The region once."""
    return run(op.regions[0], operands)


def run_cond(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The region that the predicate chooses."""
    pred, *rest = operands
    return run(op.regions[0] if pred else op.regions[1], rest)


def run_while(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The body while the test is true, at most `limit` times."""
    test, body = op.regions
    count, limit = int_attr(attrs, "carries"), int_attr(attrs, "limit")
    carries, rest = list(operands[:count]), operands[count:]
    done = 0
    while done != limit and run(test, [*carries, *rest])[0]:
        carries = run(body, [*carries, *rest])
        done += 1
    return carries


def run_scan(
    run: RunBlock, op: Operation, operands: Sequence[Any], attrs: Attrs, types: Sequence[Type]
) -> list[Any]:
    """The body for each row. `types` are those of the results; a size that they leave open (`?`) is
    that of the rows, and 0 if there are none.
    """
    count, sequences = int_attr(attrs, "carries"), int_attr(attrs, "sequences")
    length = int_attr(attrs, "length")
    carries = list(operands[:count])
    rows, rest = operands[count : count + sequences], operands[count + sequences :]
    stacked = [t for t in types[count:] if isinstance(t, TensorType)]
    stacks: list[Any] = []
    if length == 0:
        sizes = [tuple(d if isinstance(d, int) else 0 for d in t.shape) for t in stacked]
        stacks = [np.zeros(s, t.dtype.numpy) for s, t in zip(sizes, stacked, strict=True)]
    for i in reversed(range(length)) if attrs["reverse"] else range(length):
        found = run(op.regions[0], [*carries, *(row[i, ...] for row in rows), *rest])
        carries = found[:count]
        if not stacks:
            stacks = [
                np.zeros((length, *np.shape(v)), t.dtype.numpy)
                for v, t in zip(found[count:], stacked, strict=True)
            ]
        for stack, value in zip(stacks, found[count:], strict=True):
            stack[i, ...] = value
    return [*carries, *stacks]


#: Ops that run their regions where they stand.
RUN_REGIONS: Mapping[
    str, Callable[[RunBlock, Operation, Sequence[Any], Attrs, Sequence[Type]], list[Any]]
] = {
    **dict.fromkeys(("fused", "unrolled"), run_fused),
    "cond": run_cond,
    "while": run_while,
    "scan": run_scan,
}


#: For so many ops on operands of so many shapes; then it begins anew.
MOST = 4096
_PLAIN_ATTRS = frozenset({bool, int, str, DType, type(None)})


@dataclass(frozen=True, slots=True)
class Prepared:
    """An op, and the dtypes and shapes of its results."""

    reference: Reference
    attrs: Attrs
    types: tuple[tuple[Any, tuple[int, ...]], ...]

    def run(self, operands: Sequence[Array]) -> tuple[Array, ...] | None:
        """The results, which share no memory with the operands; None where they are not what they
        should be, or there are none: the long way says why."""
        try:
            found = quietly(self.reference, operands, self.attrs)
        except Exception:  # which the long way raises again, in words and with its place
            return None
        results = found if isinstance(found, list | tuple) else (found,)
        if len(results) != len(self.types):
            return None
        out = []
        for result, (dtype, shape) in zip(results, self.types, strict=True):
            array = result if type(result) is np.ndarray else np.asarray(result)
            if array.dtype != dtype or array.shape != shape:
                return None
            flags = array.flags
            owned = flags.owndata and flags.writeable and flags.c_contiguous
            if not owned or any(array is x for x in operands):
                array = np.array(array, order="C", copy=True)
            out.append(array)
        return tuple(out)


_prepared: dict[Hashable, Prepared] = {}


def prepared_key(op: str, operands: Sequence[Array], attrs: Attrs) -> Hashable:
    """What the results' types depend on; None for an op that is not prepared."""
    row: list[Any] = [op]
    for name, value in attrs.items():
        kind = type(value)
        if kind is tuple:
            if not all(type(v) is int for v in value):  # type: ignore[union-attr]
                return None
        elif kind not in _PLAIN_ATTRS:
            return None
        row.extend((name, kind, value))
    for a in operands:
        row += (a.dtype, a.shape)
    return tuple(row)


def prepared(key: Hashable) -> Prepared | None:
    """What was kept under a key."""
    return _prepared.get(key)


def prepare(key: Hashable, op: Operation) -> None:
    """Keep an op of weft's own that needs no more than its operands."""
    spec = OPS[op.name]
    if key is None or op.name in REGISTERED or op.regions or "host" in spec.traits:
        return
    types = tuple(
        (r.type.dtype.numpy, r.type.static_shape)
        for r in op.results
        if isinstance(r.type, TensorType) and r.type.is_static and r.type.dtype.numpy.kind != "O"
    )
    operands = [v.type for v in op.operands]
    numbers = all(isinstance(t, TensorType) and t.dtype.numpy.kind != "O" for t in operands)
    if len(types) == len(op.results) and numbers and spec.reference is not None:
        if len(_prepared) >= MOST:
            _prepared.clear()
        _prepared[key] = Prepared(spec.reference, op.attrs, types)


#: Carries out one op of the host: (op, operands) -> results, None for a token.
RunHost = Callable[[Operation, Sequence[Any]], Sequence[Any]]


#: The ops around an op, outermost first, each with which run of the region it is.
Path = tuple[tuple[Operation, int], ...]


LOOPS = frozenset({"while", "scan"})


def iterations_of(around: Path) -> tuple[int, ...]:
    """The numbers of the iterations of the loops around an op, outermost first."""
    return tuple(number for op, number in around if op.name in LOOPS)


class Watch:
    """Who is told of each op of a run, those in regions too; around: the ops around it with the
    number of the run of its region (that is, the iteration)."""

    def done(
        self, op: Operation, around: Path, operands: Sequence[Any], results: Sequence[Any]
    ) -> None:
        """The op was carried out."""

    def changed(
        self, op: Operation, operands: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        """What the run goes on with in place of an op's results: these, by default."""
        return results

    def region(self, op: Operation, around: Path, block: Block, args: Sequence[Any]) -> None:
        """A region of the op begins to run on these arguments; around: of the op."""

    def failed(
        self, op: Operation, around: Path, operands: Sequence[Any], error: WeftError
    ) -> None:
        """The op raised an error; then those around it do."""


def interpret(
    graph: Graph,
    inputs: Sequence[Array],
    state: State | None = None,
    *,
    schedule: int | None = None,
    host: RunHost | None = None,
    watch: Watch | None = None,
    cells: Cells | None = None,
) -> list[Any]:
    """The results of `graph` on `inputs`: an array of its own for each tensor, None for each token.

    host: carries out the ops of the host that only the executor knows (queues ...) and Python
    functions, given the op and its operands: arrays, and a `Ref` with the name of its object for a
    handle.

    watch: is told of each op; cells: what inputs and results that are handles of stacks stand for.

    schedule: where switch, merge and frames decide what runs, the seed of a random order of the ops
    that are ready (by default the first comes first); no result of a sound graph depends on it.

    Raises InvalidArgumentError for inputs that do not fit and for what the ops themselves refuse,
    FailedPreconditionError for an uninitialised variable, InternalError if a result does not fit
    its type.
    """
    arrays = [as_array(x) for x in inputs]
    sizes = bind_symbols(graph, arrays)
    with np.errstate(all="ignore"):  # inf, nan and wrapped integers are results, not errors
        run = _Run(state, sizes, host, watch, cells)
        given = [_frozen(x) for x in arrays]
        if is_dataflow(graph.block):
            results = run_dataflow(run.op_apart, graph.block, given, schedule)
        else:
            results = run.block(graph.block, given)
    return own_results(results)


def own_results(results: Sequence[Any]) -> list[Any]:
    """Arrays that share no memory, None for what is none: a result may be an input, a constant, or
    the same value as another result."""
    return [
        np.array(r, order="C", copy=True) if isinstance(r, np.ndarray) else None for r in results
    ]


def op_runner(state: State | None, sizes: Mapping[str, int], host: RunHost | None) -> RunOp:
    """What runs single ops of one block for `dataflow.Machine`."""
    return _Run(state, sizes, host).op_apart


def evaluate_op(
    op_name: str, arrays: Sequence[Array], attrs: Attrs | None = None
) -> tuple[Array, ...]:
    """One op on arrays: type rule, NumPy reference, check. Results share no memory with operands.

    Raises what the type rule and the reference raise, with the user's line; UnsupportedError for an
    op that needs state or regions.
    """
    given = [as_array(x) for x in arrays]
    try:
        key = prepared_key(op_name, given, attrs or {})
        known = prepared(key)
        made = None if known is None else known.run(given)
        if made is not None:
            return made
        if lookup(op_name).reference is None:
            raise UnsupportedError(
                f"op '{op_name}' does not run alone", hint="put it in a graph and interpret that"
            )
        op = make_op(op_name, [Value(type_of(x)) for x in given], attrs)
        with np.errstate(all="ignore"):
            results = _Run(None, {}).op(op, given)
        prepare(key, op)
        return tuple(_owned(r, given) for r in results)
    except WeftError as error:
        error.at(caller_location())
        raise
    except MemoryError as error:
        raise ResourceExhaustedError(
            f"op '{op_name}': {error}", location=caller_location()
        ) from None


def carry_out(op: Operation, arrays: Sequence[Array]) -> list[Any]:
    """What an op of a graph without state, regions and host gives, on arrays of its types."""
    with np.errstate(all="ignore"):
        results = _Run(None, {}).op(op, [_frozen(a) for a in arrays])
    return [np.array(r, order="C", copy=True) for r in results]


def _is_static(t: Type) -> bool:
    return isinstance(t, TensorType) and t.is_static


def _frozen(array: Array) -> Array:
    """A view through which nobody writes: no reference may change its operands."""
    view = array.view()
    view.setflags(write=False)
    return view


def _owned(array: Array, operands: Sequence[Array]) -> Array:
    """`array`, or a copy where it might share memory or is not laid out in C order."""
    flags = array.flags
    if flags.owndata and flags.writeable and flags.c_contiguous:
        if not any(array is x for x in operands):
            return array
    return np.array(array, order="C", copy=True)


def describe(op: Operation, values: Sequence[object]) -> str:
    """`op 'take' on (f32[3], i64[2])`, with the types of the concrete operands."""
    types = [
        type_of(v) if isinstance(v, np.ndarray) else operand.type
        for v, operand in zip(values, op.operands, strict=True)
    ]
    return f"op '{op.name}' on ({', '.join(map(str, types))})"


def _last_uses(block: Block) -> dict[Value, int]:
    """For each value used in the block the number of the last op that uses it."""
    last: dict[Value, int] = {}
    for i, op in enumerate(block.ops):
        for value in (*op.operands, *op.control):
            last[value] = i
    for value in block.results:
        last[value] = len(block.ops)
    return last


class _Run:
    """One execution: the state, and the sizes of the symbols."""

    def __init__(
        self,
        state: State | None,
        sizes: Mapping[str, int],
        host: RunHost | None = None,
        watch: Watch | None = None,
        cells: Cells | None = None,
    ) -> None:
        self.host, self.watch = host, watch
        self.around: Path = ()
        self.state = state
        self.given = self.sizes = sizes
        #: Dimensions as a whole that the op at hand finds in what it is given, or waits for.
        self.whole: Mapping[SymbolicDim, int] = {}
        self.told: Mapping[SymbolicDim, int] = {}
        self.cells = Cells() if cells is None else cells
        self.last_uses: dict[Block, dict[Value, int]] = {}

    def block(self, block: Block, args: Sequence[object]) -> list[object]:
        """Execute the ops in order (which respects all uses and effects); free dead values."""
        last = self.last_uses.get(block)
        if last is None:  # once for all iterations of a loop
            last = self.last_uses[block] = _last_uses(block)
        values = {v: x for v, x in zip(block.args, args, strict=True) if v in last}
        for i, op in enumerate(block.ops):
            missing = [v for v in (*op.operands, *op.control) if v not in values]
            if missing:
                raise InternalError(
                    f"op '{op.name}' uses {missing[0]!r}, which no earlier op of its block defines",
                    hint="weft.ir.analysis.verify shows the graph with the fault",
                    location=op.locations,
                )
            operands = [values[v] for v in op.operands]
            results = self.op(op, operands)
            values.update((v, x) for v, x in zip(op.results, results, strict=True) if v in last)
            for v in (*op.operands, *op.control):
                if last[v] == i:
                    values.pop(v, None)
        return [values[v] for v in block.results]

    def op(self, op: Operation, operands: Sequence[Any]) -> list[Any]:
        """The checked results of one op. Errors name the op, its operand types, the user's line."""
        self._learn_sizes(op, operands)
        wanted = [substitute_type(r.type, self.sizes) for r in op.results]
        run_regions = RUN_REGIONS.get(op.name)
        if run_regions is not None:  # outside the try: the ops of the regions name themselves
            block = self.block if self.watch is None else self._counted(op)
            results = run_regions(block, op, operands, self.attrs(op), wanted)
            wanted = [substitute_type(r.type, self.sizes) for r in op.results]
        try:
            if run_regions is None:
                by_host = _is_host(op) or (self.host is not None and op.name == "py_function")
                execute = _EXECUTE.get(op.name) or (_on_host if by_host else _reference)
                results = execute(self, op, operands)
            if len(results) != len(wanted):
                raise InternalError(f"gave {len(results)} results, needs {len(wanted)}")
            checked = [_checked(r, t) for r, t in zip(results, wanted, strict=True)]
            if not all(_is_static(t) for t in wanted):
                self.sizes = solve_dims(size_pairs(op.results, checked), self.sizes)
            if self.watch is not None:
                changed = self.watch.changed(op, operands, checked)
                if changed is not checked:
                    pairs = zip(changed, wanted, strict=True)
                    checked = [_checked(r, t) for r, t in pairs]
                self.watch.done(op, self.around, operands, checked)
            return checked
        except WeftError as error:
            if self.watch is not None:
                self.watch.failed(op, self.around, operands, error)
            if op.name in PYTHON_CALLS:  # its words are the user's
                raise error.at(op.locations) from error.__cause__
            raise type(error)(
                f"{describe(op, operands)}: {error.what}", hint=error.hint, location=op.locations
            ) from error.__cause__ or error

    def _counted(self, op: Operation) -> RunBlock:
        """`block` for the regions of an op, whose runs are counted."""
        runs: dict[Block, int] = {}

        def run(block: Block, args: Sequence[Any]) -> list[Any]:
            outside, number = self.around, runs.get(block, 0)
            if self.watch is not None:
                self.watch.region(op, outside, block, args)
            runs[block], self.around = number + 1, (*outside, (op, number))
            try:
                return self.block(block, args)
            finally:
                self.around = outside

        return run

    def op_apart(
        self, op: Operation, operands: Sequence[Any], control: Sequence[Any]
    ) -> Sequence[Any]:
        """As `op`, among ops of other iterations: that of the op decides a size, so it is what the
        inputs of the graph say, or the operands, or the control operands."""
        pairs = size_pairs(op.control, control)
        self.sizes, self.told = solve_dims(pairs, self.given), _symbolic(pairs)
        return self.op(op, operands)

    def _learn_sizes(self, op: Operation, operands: Sequence[Any]) -> None:
        """Sizes that depend on values are what the operands have now; `op` makes those in its
        attribute `sizes` anew."""
        made = op.attrs.get("sizes")
        names = made if isinstance(made, tuple) else ()
        self.whole = self.told
        if names or not all(_is_static(v.type) for v in op.operands):
            pairs = size_pairs(op.operands, operands)
            given = solve_dims(pairs)
            self.whole = {**self.told, **_symbolic(pairs)}
            # an operand may have such a size as it was before, in a loop that changes it
            both = {**self.sizes, **given}
            self.sizes = {k: n for k, n in both.items() if k not in names}

    def attrs(self, op: Operation) -> Attrs:
        """The attributes of `op` with symbols replaced by their sizes."""
        if not self.sizes and not self.whole:
            return op.attrs
        return {k: _substitute(v, self.sizes, self.whole) for k, v in op.attrs.items()}

    def variables(self) -> State:
        """The state. Raises InvalidArgumentError if the caller gave none."""
        if self.state is None:
            raise InvalidArgumentError(
                "the graph uses state, and interpret() got none", hint="pass state=DictState({...})"
            )
        return self.state


def _symbolic(pairs: Sequence[tuple[Dim, int]]) -> dict[SymbolicDim, int]:
    return {d: n for d, n in pairs if isinstance(d, SymbolicDim)}


def _substitute(
    value: AttrValue, sizes: Mapping[str, int], whole: Mapping[SymbolicDim, int]
) -> AttrValue:
    """The attribute with sizes filled in; whole: dimensions that need not be computed."""

    def of(dim: SymbolicDim) -> Dim:
        found = substitute_dim(dim, sizes)
        return whole.get(dim, found) if isinstance(found, SymbolicDim) else found

    if isinstance(value, SymbolicDim):
        return of(value)
    if isinstance(value, tuple):
        return tuple(of(v) if isinstance(v, SymbolicDim) else v for v in value)
    return value


def _checked(value: object, wanted: Type) -> object:
    """`value` as its type wants it, tensors as read-only views. Raises InternalError."""
    if not isinstance(wanted, TensorType):
        return value
    if wanted.dtype is string and not isinstance(value, np.ndarray):
        array = np.empty((), object)
        array[()] = value  # np.asarray would make a fixed-width string of it
    else:
        array = np.asarray(value)
    if not has_type(array, wanted):
        raise InternalError(f"gave {array.dtype}{list(array.shape)}, its type is {wanted}")
    return _frozen(array)


def _reference(run: _Run, op: Operation, operands: Sequence[Any]) -> list[Any]:
    spec, attrs = lookup(op.name), run.attrs(op)
    if spec.reference is None:
        raise UnsupportedError("the interpreter does not know how to run this op")
    if not op.regions and not all(_is_static(v.type) for v in op.operands):
        # the type rule took dimensions without a size to fit; now they have one
        _check_equal(op, spec.infer([type_of(x) for x in operands], attrs, ()), run.sizes)
    try:
        results = spec.reference(operands, attrs)
    except WeftError:
        raise
    except MemoryError as error:
        raise ResourceExhaustedError(str(error)) from None
    except Exception as error:
        raise InternalError(f"the NumPy reference failed: {error!r}") from error
    return list(results) if isinstance(results, list | tuple) else [results]


def _is_host(op: Operation) -> bool:
    """Whether the op names an object of the host, or is one that the executor alone carries out."""
    spec = lookup(op.name)
    handle = not op.operands and op.results and isinstance(op.results[0].type, HandleType)
    return spec.reference is None and ("host" in spec.traits or bool(handle))


def _on_host(run: _Run, op: Operation, operands: Sequence[Any]) -> list[Any]:
    if "host" not in lookup(op.name).traits:
        return [Ref(str(op.attrs["name"]))]
    if run.host is None:
        raise UnsupportedError(
            "the interpreter got nothing that carries out ops of the host",
            hint="pass host=, as weft.runtime.dataflow.host_dispatch.HostObjects",
        )
    return list(run.host(op, operands))


def _check_equal(op: Operation, found: Sequence[Type], sizes: Mapping[str, int]) -> None:
    """Refuse results that are not what the sizes say which were taken to be equal."""
    for t, result in zip(found, op.results, strict=True):
        wanted = substitute_type(result.type, sizes)
        if isinstance(t, TensorType) and isinstance(wanted, TensorType):
            if not fits(t.shape, wanted.shape):
                raise ShapeError(
                    f"gives {t}, where sizes that were taken to be equal make it {wanted}",
                    hint="sizes that only a step knows are not broadcast against each other",
                )


def _variable(run: _Run, op: Operation, operands: Sequence[Any]) -> list[Any]:
    return [Ref(str(op.attrs["name"]))]


def _stateful(run: _Run, op: Operation, operands: Sequence[Any]) -> list[Any]:
    held = [substitute_type(v.type.tensor, run.sizes) for v in op.operands
            if isinstance(v.type, RefType)]  # fmt: skip
    types = [t for t in held if isinstance(t, TensorType)]
    return EXECUTE_STATE[op.name](run.variables(), op, operands, types)


def _group(run: _Run, op: Operation, operands: Sequence[Any]) -> list[Any]:
    return [None]


def _stack_op(run: _Run, op: Operation, operands: Sequence[Any]) -> list[Any]:
    types = [substitute_type(r.type, run.sizes) for r in op.results]
    return run_stack_op(run.cells, op.name, operands, run.attrs(op), types)


#: Ops that need more than their operands; all others run their NumPy reference.
_EXECUTE: Mapping[str, Callable[[_Run, Operation, Sequence[Any]], list[Any]]] = {
    "variable": _variable,
    "group": _group,
    **dict.fromkeys(EXECUTE_STATE, _stateful),
    **dict.fromkeys(sorted(STACK_OPS), _stack_op),
}
