"""`CompiledFunction`: trace a Python function once per signature, or once for `input_signature=`,
compile it, and run it as one native call.

A signature is the nesting of the arguments, the dtype and shape of each leaf, and the static
arguments. Python numbers are weakly typed inputs: their values do not count. Called while another
function is traced (or with symbolic tensors), the function becomes part of that trace, with a
`DeviceWarning` if it was compiled for another device. The function tells about itself: graph, IR,
explanation, machine code, cost.

`input_signature=` has types, with open sizes, that a function is traced for once. An open size is
None in a shape, or a name that several may share. The function is traced with sizes that are
symbols; what a plan for one set of sizes decides by them is computed anew for the next
(`runtime/sized_step.py`). TensorFlow 2's `tf.function(input_signature=)` is the model."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

import numpy as np

from weft.codegen.engines import engine
from weft.codegen.llvm.target import isa
from weft.frontend.compile.arguments import (
    Flattener,
    NamedCalls,
    Signature,
    differences,
    flattener,
    has_value,
    holds_symbolic,
    leaves_of,
    passes_as_is,
    scan,
    static_key,
)
from weft.frontend.compile.compiled import Compiled, donated_leaves, run_donated
from weft.frontend.compile.input_signature import InputSignature
from weft.frontend.compile.native_call import NativeCalls, callable_class
from weft.frontend.compile.specializations import (
    MANY,
    CacheInfo,
    Specializations,
    TraceLock,
    bind,
    defines,
    is_bound,
    parameter_names,
    signature_of,
    warn_of_many,
)
from weft.frontend.compile.watchers import add_watched
from weft.frontend.core import pytree
from weft.frontend.core.device_scope import device_scopes, scopes_spec
from weft.frontend.core.float64 import forbidden
from weft.frontend.core.function_trace import (
    Argument,
    Traced,
    as_argument,
    definition,
    function_name,
    identifier,
    trace_function,
)
from weft.frontend.core.slow import warn
from weft.frontend.core.tensor import Tensor
from weft.frontend.core.trace import Trace, _current, current_trace
from weft.frontend.core.user_errors import as_seen, shows_as_seen
from weft.ir.device import local_gpu
from weft.ir.dtypes import MathMode, as_dtype
from weft.ir.errors import InvalidArgumentError, TypeRuleError, UnsupportedError
from weft.ir.graph import Graph
from weft.ir.locations import caller_location
from weft.ir.types import TensorType
from weft.passes.manager import Pass
from weft.runtime.device.execution.step import DeviceStep
from weft.runtime.native.api import is_native_api_known
from weft.runtime.native.executable import Executable
from weft.runtime.step import RunContext

if TYPE_CHECKING:
    from weft.frontend.compile.cost import Cost
    from weft.frontend.compile.explain import Sections
    from weft.frontend.compile.inner_values import InnerValue
    from weft.frontend.viewer.page import View
    from weft.runtime.cluster.spec import Cluster
    from weft.runtime.device.execution.executable import DeviceExecutable
    from weft.runtime.device.execution.kernels import GpuKernel
    from weft.runtime.native.kernels import StepKernel


class DeviceWarning(UserWarning):
    """A function compiled for a GPU has become part of what runs elsewhere.

    >>> import os, warnings
    >>> os.environ["WEFT_EMULATE_GPU"] = "1"  # where there is no GPU
    >>> inner = wf.compile(lambda x: 2 * x, device="gpu:0")
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", wf.DeviceWarning)
    ...     wf.compile(lambda x: inner(x) + 1)(wf.asarray(1.0))
    Traceback (most recent call last):
    weft.frontend.compile.function.DeviceWarning: '...' is compiled for gpu:0, but here it is a
    part of '...', which runs on the CPU
    ...
    >>> del os.environ["WEFT_EMULATE_GPU"]
    """


def warn_elsewhere(name: str, gpu: int, trace: Trace, told: set[str]) -> None:
    """The function `name`, which is compiled for GPU `gpu`, is called while `trace` is traced: a
    DeviceWarning with the line of the call if that runs elsewhere. told: of what it was said."""
    root = trace.root()
    if root.kind == "graph":
        if local_gpu(scopes_spec()) == gpu:
            return
        if any(scope.function is not None for scope in device_scopes()):
            return  # it says of each op where that runs
        where = f"a graph, '{root.name}', in which wf.device says where ops run"
        hint = f'call it in `with wf.device("/gpu:{gpu}"):`'
    elif root.kind == "function":
        if root.gpu == gpu:
            return
        there = "the CPU" if root.gpu is None else f"gpu:{root.gpu}"
        where = f"'{root.name}', which runs on {there}"
        hint = (
            "device= counts for the function that is called from outside: "
            f'wf.compile(device="gpu:{gpu}") around that one, wf.grad(f) for example'
        )
    else:
        return
    if where in told:
        return
    message = (
        f"'{name}' is compiled for gpu:{gpu}, but here it is a part of {where}\n  hint: {hint}"
    )
    warn(message, DeviceWarning, caller_location())
    told.add(where)  # not where that is an error


def _check_there(name: str, cluster: object, trace: Trace) -> None:
    """UnsupportedError if the function `name`, which is compiled for a cluster, is called in what
    does not run there: its variables and queues would be those of this process."""
    root = trace.root()
    if root.kind == "graph" or root.cluster == cluster:  # a graph runs where its session does
        return
    raise UnsupportedError(
        f"'{name}' is compiled with cluster=, but here it is a part of '{root.name}', which does "
        "not run on that cluster",
        hint="cluster= counts for the function that is called from outside: "
        "wf.compile(cluster=...) around that one, wf.grad(f) for example",
        location=caller_location(),
    )


class Inspection:
    """Reports of a `CompiledFunction`, a mixin: each method takes the arguments of a call (values,
    or `TensorType`s in place of tensors) and compiles for them if that is not done yet."""

    _name: str
    _gpu: int | None
    _parameters: tuple[str, ...]
    _specializations: Specializations[Compiled]

    if TYPE_CHECKING:  # no ABC: CPython makes native classes of those with no metaclass only

        def _specialized(self, args: Any, kwargs: Any) -> Compiled: ...
        def _key(self, args: Any, kwargs: Any) -> tuple[Any, list[Any], list[Any]]: ...

    @shows_as_seen
    def trace(self, *args: Any, **kwargs: Any) -> Graph:
        """The graph as traced for these arguments (values, or `TensorType`s in place of
        tensors)."""
        return self._specialized(args, kwargs).traced.graph

    @shows_as_seen
    def ir(
        self,
        *args: Any,
        after: str | None = None,
        loc: bool = True,
        fold: int | None = None,
        **kwargs: Any,
    ) -> str:
        """The text of the graph after the pass `after` ("traced": before all; None: after the
        last). loc: with the places in the user's files. fold: for people; the ops of a scope (of
        `wf.name_scope`, of a function such as `relu`) are one line, with `fold` names of its path
        open: 0 folds all scopes, 1 those inside a scope. A folded text does not parse.
        PassError for a pass that is not in the pipeline.

        >>> f = wf.compile(lambda x: wf.nn.relu(x) * 2)
        >>> print(f.ir(wf.TensorType(wf.float32, (3,)), after="traced", loc=False, fold=0))
        graph @lambda(%x: f32[3]) -> (f32[3]) stage=traced {
          %5 = "relu" [6 ops] (%x) : f32[3]
        ...
        """
        # who only calls does not wait for these modules, which know most passes
        from weft.frontend.compile.explain import ir_text, program_after

        made = self._specialized(args, kwargs)
        program = program_after(made.reports(self._shapes(made, args, kwargs)), after)
        return ir_text(program, loc, fold)

    @shows_as_seen
    def values(
        self, *args: Any, after: str = "traced", where: Any = None, **kwargs: Any
    ) -> list[InnerValue]:
        """The inner values of a call on these arguments, in the order in which they are made:
        those of the program after the pass `after`, as of `ir`.

        where: the name that `wf.tap` gave, an op's name, "model.py:12" or a line, or a function of
        an inner value that says whether it is wanted; None: all. An inner value has `name`, `op`,
        `value`, `location` (the user's line) and `iterations` (of the loops around it). They are
        the reference interpreter's; variables are as they are and stay so, and nothing is printed.
        After passes names are those of values outside of loops and branches.

        NotFoundError if there are none, PassError for a pass that is not in the pipeline.

        >>> @wf.compile
        ... def f(x):
        ...     return wf.scan(lambda c, r: (wf.tap("sum", c + r), None), 0.0, x)[0]
        >>> [(v.iterations, float(v.value)) for v in f.values(wf.asarray([1.0, 2.0]), where="sum")]
        [((0,), 1.0), ((1,), 3.0)]
        """
        # who only calls does not wait for these modules, which know most passes
        from weft.frontend.compile.inner_values import values_after

        made = self._specialized(args, kwargs)
        given = [a for a in self._key(args, kwargs)[1] if a is not None]
        return values_after(f"{self._name}.values", made, after, given, where)

    @shows_as_seen
    def explain(self, *args: Any, sections: Sections = None, **kwargs: Any) -> str:
        """Why this was compiled, what each pass did, what was fused and what not, and the memory
        plan. sections: the beginnings of the headings of those to show ("memory", or several); of
        the others there is a line each; () shows the headings alone, None all.

        >>> f = wf.compile(lambda x: wf.exp(x) + 1)
        >>> print(f.explain(wf.TensorType(wf.float32, (3,)), sections="signature"))
        lambda: specialisation 1 of 1
        <BLANKLINE>
        signature
          x  f32[3]
        <BLANKLINE>
        compiled because ... 2 lines
        ...
        """
        from weft.frontend.compile.explain import explain, in_sections

        made = self._specialized(args, kwargs)
        fields = made.signature.fields(self._parameters)
        title = (
            f"{self._name}: specialisation {made.number} of {len(self._specializations.entries)}"
        )
        step = made.step(self._shapes(made, args, kwargs))
        info = self._specializations.info()
        kept = (
            f"\n  signatures: {info.size} kept of at most {info.limit}, the least recently used go "
            f"first; {info.made} made so far"
        )
        graph = made.traced.graph
        way: list[str] = []
        if made.on_host:
            from weft.frontend.compile.host_steps import explain_way  # only such steps need it

            way = list(explain_way(made, step))
        text = explain(title, fields, made.reasons, made.location, step, graph, way) + kept
        asked = made.math_mode != "ieee" and not made.on_gpu
        text += f"\nmath={made.math_mode!r} is for GPUs: the CPU has no such mode" * asked
        return in_sections(text, sections)

    @shows_as_seen
    def view(self, *args: Any, **kwargs: Any) -> View:
        """A page for the browser: the graph after every pass, each kernel with its times and code,
        memory, the timeline of a run (docs/guide/viewer.md). `f.view(x).save("step.html")` writes
        it to a file, `.show()` shows it in a notebook, `.open()` in the browser.

        Measures and runs on copies of the variables, as `cost` does, which takes some seconds; what
        calls `wf.py_function` is run once, not measured.
        """
        # who only calls does not wait for these modules
        from weft.frontend.compile.cost import inputs_of
        from weft.frontend.compile.view import view_of

        made = self._specialized(args, kwargs)
        shapes = self._shapes(made, args, kwargs)
        step, explained = made.step(shapes), self.explain(*args, **kwargs)
        whole = step.kind in ("native", "gpu")  # others are not run
        inputs = inputs_of(self._key(args, kwargs), made.traced.graph.args) if whole else ()
        return view_of(step, inputs, made.traced.variables, self._name, explained)

    @shows_as_seen
    def summary(self, *args: Any, **kwargs: Any) -> str:
        """A line on one call: kernels, how long compiling took, threads, device and instruction
        set."""
        made = self._specialized(args, kwargs)
        step = made.step(self._shapes(made, args, kwargs))
        count = step.summary().kernels
        calls = "1 kernel call" if count == 1 else f"{count} kernel calls"
        if isinstance(step, DeviceStep):
            return f"{calls}; gpu:{self._gpu or 0}"
        if not isinstance(step, Executable):
            from weft.frontend.compile.view import way_of

            return f"{calls}; {way_of(step)}"
        new = f", {step.new_kernels} of them new" if step.new_kernels else ""
        threads = "1 thread" if step.threads == 1 else f"at most {step.threads} threads"
        return f"{calls}{new}; compiled in {step.seconds:.2f} s; cpu, {made.isa}, {threads}"

    @shows_as_seen
    def llvm(self, *args: Any, **kwargs: Any) -> str:
        """Optimised LLVM IR of the kernels that one call runs. UnsupportedError on a GPU."""
        made = self._specialized(args, kwargs)
        return made.on_cpu("llvm", self._shapes(made, args, kwargs)).llvm()

    @shows_as_seen
    def asm(self, *args: Any, **kwargs: Any) -> str:
        """Assembly of the kernels that one call runs, for this machine; on a GPU, PTX."""
        made = self._specialized(args, kwargs)
        step = made.step(self._shapes(made, args, kwargs))
        if not isinstance(step, Executable | DeviceStep):
            raise made.not_native("asm")
        return step.asm()

    @shows_as_seen
    def kernels(self, *args: Any, **kwargs: Any) -> Sequence[StepKernel | GpuKernel]:
        """The kernels that one call runs, each with its `source()`: the same loops as Python that
        Numba compiles (docs/guide/numba.md), of a GPU that numba-cuda compiles."""
        # who prints no kernels does not wait for what prints them
        from weft.runtime.device.execution.kernels import gpu_kernels
        from weft.runtime.native.kernels import step_kernels

        made = self._specialized(args, kwargs)
        step = made.step(self._shapes(made, args, kwargs))
        if isinstance(step, Executable):
            return step_kernels(step)
        if not isinstance(step, DeviceStep):
            raise made.not_native("kernels")
        return gpu_kernels(cast("DeviceExecutable", step))

    @shows_as_seen
    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """Measure one call kernel by kernel: time, exact work, rates, share of the machine's peak,
        assembly, source lines (docs/guide/bench.md). Takes some seconds; `print` the result for a
        table.

        Variables keep their values (copies of them are used), and so do the arguments. In place of
        a `TensorType` random values are used. Errors as those of a call.
        """
        # nor who does not measure for these
        from weft.frontend.compile.cost import inputs_of, measure

        made = self._specialized(args, kwargs)
        step = made.on_cpu("cost", self._shapes(made, args, kwargs))
        inputs = inputs_of(self._key(args, kwargs), step.graph.args)
        return measure(step, inputs, made.traced.variables, self._name)

    def _repr_html_(self) -> str:
        """What there is for a notebook: the graph of each signature, the last ones first."""
        from weft.ir.drawing.notebook import MOST_BYTES, folded, graph_html

        made = list(self._specializations.entries.copy().values())[::-1]
        html = folded(repr(self), "f.view(...).show() shows passes, kernels and times", 1000)
        for one in made:
            drawing = graph_html(one.traced.graph)
            if len(html) + len(drawing) > MOST_BYTES:
                break
            html += drawing
        return html

    def _shapes(self, made: Compiled, args: Any, kwargs: Any) -> Sequence[tuple[int, ...]]:
        """The shapes of the arguments that are inputs, where sizes are open."""
        if not made.is_open:
            return ()
        (leaves, *_) = self._key(args, kwargs)[2]
        given = [a.static_shape if isinstance(a, TensorType) else np.shape(a) for a in leaves]
        return tuple(given)

    def cache_info(self) -> CacheInfo:
        """How many specialisations there are, were made, and were dropped."""
        return self._specializations.info()

    def _reasons(self, signature: Signature) -> list[str]:
        """Why `signature` needs a specialisation: its differences from the nearest one there is."""
        others = list(self._specializations.entries.copy().values())
        if not others:
            return ["first call"]
        options = [(differences(signature, o.signature, self._parameters), o) for o in others]
        lines, nearest = min(options, key=lambda option: len(option[0]))
        return [f"{line} (specialisation {nearest.number})" for line in lines]


P = ParamSpec("P")
R = TypeVar("R")
_log = logging.getLogger("weft.compile")
#: Of so many sets of sizes a call is recognised at once.
MOST_ALIASES = 4096
_MAX_FLATTENERS = 8  # each is tried in turn on every call with nested arguments


class CompiledFunction(Inspection, Generic[P, R]):
    """What `@wf.compile` makes of a function; call it as you would the function itself.

    Instances are of a subclass that CPython calls natively for signatures that were met before
    (`frontend/compile/native_call.py`); `__call__` here is for all others.

    >>> @wf.compile
    ... def double(x):
    ...     return x + x
    >>> double(wf.asarray([1.0, 2.0]))
    Tensor([2., 4.], dtype=float32)
    >>> double
    <compiled double(x): 1 signature>
    >>> print(double.ir(wf.TensorType(wf.float32, (2,)), after="traced"))
    graph @double(%x: f32[2]) -> (f32[2]) stage=traced {
      %0 = add(%x, %x) : f32[2] loc(...)
      return %0
    }
    """

    __name__: str  # as functools.update_wrapper sets them
    __wrapped__: Callable[P, R]

    def __new__(cls, *_: Any) -> CompiledFunction[P, R]:
        return object.__new__(_NATIVE_CLASS)

    def __init__(
        self,
        fn: Callable[P, R],
        static_argnames: str | int | Sequence[str | int],
        passes: Sequence[Pass],
        threads: int | None = None,
        donate: str | int | Sequence[str | int] = (),
        gpu: int | None = None,
        math_mode: MathMode = "ieee",
        isa: str | None = None,
        input_signature: Sequence[Any] | None = None,
        x64: bool = True,
        engine: str | None = None,
        cluster: Cluster | str | None = None,
    ) -> None:
        signature = signature_of(fn)
        functools.update_wrapper(self, fn)
        self._signature = signature
        self._fn = fn
        self._name: str = function_name(fn)
        self._parameters = tuple(self._signature.parameters)
        static = parameter_names("static_argnames", static_argnames, self._parameters, self._name)
        self._static = frozenset(static)
        self._passes = passes
        self._threads = threads
        self._gpu = gpu  # its number; None: the CPU
        self._math_mode = math_mode
        self._isa = isa  # None: the process's
        self._x64 = bool(x64)
        self._engine = engine  # None: WEFT_ENGINE's
        self._cluster = cluster
        self._donate = parameter_names("donate", donate, self._parameters, self._name)
        for name in self._static.intersection(self._donate):
            raise InvalidArgumentError(
                f"wf.compile: '{name}' is in static_argnames and in donate",
                hint="a static argument has no memory to donate",
                location=caller_location(),
            )
        self._given_signature = input_signature
        self._input_signature: InputSignature | None = None
        if input_signature is not None:
            dynamic = [n for n in self._parameters if n not in self._static]
            self._input_signature = InputSignature(self._name, dynamic, input_signature)
        self._named_calls = NamedCalls(self._signature, self._static, gpu is not None)
        self._specializations: Specializations[Compiled] = Specializations(self._name)
        self._fast: dict[Any, Compiled] = {}
        self._flatteners: tuple[Flattener, ...] = ()  # for nested arguments, one per structure
        self._structures: set[pytree.Structure] = set()
        self._first_trace = TraceLock()
        self._traced_before = False
        self._told: set[str] = set()  # in what it ran elsewhere
        self._told_many = False
        self._native = NativeCalls(self)
        add_watched(self)

    def __repr__(self) -> str:
        held = len(self._specializations.entries)
        count = "1 signature" if held == 1 else f"{held} signatures"
        where = "" if self._gpu is None else f" on gpu:{self._gpu}"
        return f"<compiled {self._name}{self._signature}{where}: {count if held else 'not called'}>"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """A compiled method: each object has its own specialisations, kept in the object, and each
        class those of its class methods."""
        if instance is None:
            return self

        def make() -> CompiledFunction[Any, Any]:
            static = [n for n in self._parameters[1:] if n in self._static]
            donate = [n for n in self._donate if n != self._parameters[0]]
            return CompiledFunction(
                self._fn.__get__(instance), static, self._passes, self._threads, donate, self._gpu,
                self._math_mode, self._isa, self._given_signature, self._x64, self._engine,
                self._cluster,
            )  # fmt: skip

        return bind(self, self._name, instance, make)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Copied and pickled as functions are: by name; a method with its object."""
        if not is_bound(self._fn):
            return str(vars(self)["__qualname__"])
        options = (
            tuple(self._static), self._passes, self._threads, self._donate, self._gpu,
            self._math_mode, self._isa, self._given_signature, self._x64, self._engine,
            self._cluster,
        )  # fmt: skip
        return (_recompiled, (self._fn, *options))

    # -------------------------------------------------------------------------------------- calls
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload  # arrays of NumPy and others, where the function's parameters are tensors
    def __call__(self, *args: Any, **kwargs: Any) -> R: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function compiled. Errors as those of the ops in it, with the user's lines."""
        try:
            if self._donate or _current.get() is not None:
                return self._call(args, kwargs, None)
            key: list[Any] = []
            arrays: list[Any] = []
            if kwargs or self._static:
                if not self._named_calls.scan(args, kwargs, key, arrays):
                    return self._call(args, kwargs, None)
            elif not scan(args, key, arrays, self._gpu is not None):
                for flatten in self._flatteners:
                    leaves = flatten(args)
                    if leaves is not None:
                        key, arrays = [flatten], []
                        if scan(leaves, key, arrays, self._gpu is not None):
                            break
                else:
                    return self._call(args, kwargs, None)
            alias = tuple(key)
            found = self._fast.get(alias)
            if found is None:
                return self._call(args, kwargs, alias)
            found.used = True
            return found.pack(found.run(arrays))
        except Exception as error:
            as_seen(error)
            raise

    def _call(self, args: Any, kwargs: Any, alias: Any) -> Any:
        if current_trace() is not None and (
            _current.get() is not None or holds_symbolic((args, kwargs))
        ):  # a default graph that is current without a `with` takes calls on symbolic tensors only
            return self._call_in_trace(args, kwargs)
        try:
            key, leaves, values = self._key(args, kwargs)
        except TypeRuleError:
            if args and defines(self, args[0]):  # Class.method(object, ...), or a property
                return self.__get__(args[0])(*args[1:], **kwargs)
            raise
        found = self._specializations.entries.get(key)
        if not all(map(has_value, leaves, key[1])):
            raise TypeRuleError(
                f"'{self._name}' was called with a type in place of a tensor",
                hint=".trace, .ir, .explain and .cost take types; a call needs values",
                location=caller_location(),
            )
        if found is None:
            found = self._specialization(key, values)
        else:
            found.used = True
        if found.donated:
            return run_donated(self._name, self._parameters, found, values[0], leaves)
        result = found.pack(found.run([a for a in leaves if a is not None]))
        if self._gpu is None and not is_native_api_known():
            return result  # `_fast` would leave out the next lines
        if not all(map(passes_as_is, values[0], key[1])):
            return result  # what is quick converts nothing
        if alias is not None:
            if len(self._fast) >= MOST_ALIASES:
                self._fast.clear()
            self._fast[alias] = found
        if not found.native_tried:
            self._add_native(found, values)
        return result

    def run_within(self, context: RunContext, args: Any, kwargs: Any) -> Any:
        """A call outside of any trace with the options of one run; its loops look at the time and
        the token of the context. Errors as those of a call."""
        key, leaves, values = self._key(args, kwargs)
        found = self._specialization(key, values)
        return found.pack(found.run([a for a in leaves if a is not None], context))

    def _add_native(self, found: Compiled, values: list[Any]) -> None:
        """From now on calls like this one go through the native entry, if it knows their kind."""
        if found.add_native(self._parameters, self._static, values) is not None:
            made = [c.native for c in self._specializations.entries.copy().values()]
            self._native.install(entry for entry in reversed(made) if entry is not None)

    def _call_in_trace(self, args: Any, kwargs: Any) -> Any:
        """The function as a part of the current trace: numbers become tensors unless static."""
        trace = current_trace()
        if self._gpu is not None and trace is not None:
            warn_elsewhere(self._name, self._gpu, trace, self._told)
        if self._cluster is not None and trace is not None:
            _check_there(self._name, self._cluster, trace)
        with forbidden(self._x64):
            return self._inlined(args, kwargs)

    def _inlined(self, args: Any, kwargs: Any) -> Any:
        if not self._static:
            tree = pytree.tree_map(as_argument, (args, kwargs))
            return self._fn(*tree[0], **tree[1])
        bound = self._bind(args, kwargs)
        for name, value in bound.arguments.items():
            if name in self._static:
                static_key(name, value)  # raises for what would not do outside a trace
            else:
                bound.arguments[name] = pytree.tree_map(as_argument, value)
        return self._fn(*bound.args, **bound.kwargs)

    def _key(self, args: Any, kwargs: Any) -> tuple[Any, list[Any], list[Any]]:
        """The signature as a tuple, the arrays (None where there is none), and the leaves
        themselves."""
        names: tuple[str, ...] | None = None
        static: tuple[tuple[str, Any], ...] = ()
        tree = args
        if kwargs or self._static:
            bound = self._bind(args, kwargs)
            if bound.kwargs or self._static:
                given = bound.arguments
                names = tuple(n for n in given if n not in self._static)
                static = tuple((n, static_key(n, v)) for n, v in given.items() if n in self._static)
                tree = tuple([given[n] for n in names])
            else:
                tree = bound.args
        leaves, structure = pytree.flatten(tree)
        keys, arrays = leaves_of(
            self._name, leaves, structure, names or self._parameters, self._gpu is not None
        )
        if self._input_signature is not None:
            keys = self._input_signature.fitted(structure, keys, arrays)
        return (structure, keys, names, static), arrays, [leaves, args, kwargs]

    def _bind(self, args: Any, kwargs: Any) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeRuleError(
                f"'{self._name}' cannot be called like this: {error}",
                hint=f"its signature is {self._name}{self._signature}",
                location=caller_location(),
            ) from None

    # --------------------------------------------------------------------------------- compiling
    def _specialization(self, key: Any, values: list[Any]) -> Compiled:
        cache = self._specializations
        evicted = cache.evicted
        made = cache.get_or_make(key, lambda: self._make(Signature(*key), values))
        if made.number == MANY and not self._told_many:
            self._told_many = True
            warn_of_many(self._name, made.reasons, self._static, not self._donate)
        if cache.evicted != evicted:
            live = set(cache.entries.copy().values())
            self._fast = {alias: c for alias, c in self._fast.copy().items() if c in live}
            self._native.install(c.native for c in live if c.native is not None)
        return made

    def _make(self, signature: Signature, values: list[Any]) -> Compiled:
        reasons = self._reasons(signature)
        _log.debug("tracing %s: %s", self._name, "; ".join(reasons))
        traced = self._trace(signature, values)
        self._add_flattener(signature)
        made = Compiled(
            signature, traced, self._passes, self._threads,
            donated_leaves(self._donate, signature, self._parameters), self._gpu,
            self._math_mode, self._isa or isa(), self._engine or engine(), self._cluster,
        )  # fmt: skip
        made.reasons = reasons
        return made

    def _add_flattener(self, signature: Signature) -> None:
        structure = signature.structure
        flat = structure is None or all(child is None for child in structure.children)
        if flat or signature.names is not None or structure in self._structures:
            return
        self._structures.add(structure)
        made = flattener(structure)
        if made is not None and len(self._flatteners) < _MAX_FLATTENERS:
            self._flatteners += (made,)

    def _trace(self, signature: Signature, values: list[Any]) -> Traced:
        self._bind(values[1], values[2])
        # variables may be created by the first trace, by that one alone: others wait for its end,
        # but not a thread that the first trace itself waits for
        if not self._traced_before and self._first_trace.acquire(self._name):
            try:
                if not self._traced_before:
                    traced = self._trace_once(signature, values, True)
                    self._traced_before = True
                    return traced
            finally:
                self._first_trace.release()
        return self._trace_once(signature, values, False)

    def _trace_once(self, signature: Signature, values: list[Any], creates: bool) -> Traced:
        leaves, args, kwargs = values
        paths = signature.paths(self._parameters)
        arguments = [
            Argument(TensorType(as_dtype(key[1]), key[0]), key[2], identifier(path))
            for key, path in zip(signature.leaves, paths, strict=True)
            if isinstance(key, tuple)
        ]

        def call(inputs: list[Tensor]) -> Any:
            given = iter(inputs)
            filled = [next(given) if isinstance(key, tuple) else leaf
                      for key, leaf in zip(signature.leaves, leaves, strict=True)]  # fmt: skip
            tree = pytree.unflatten(signature.structure, filled)
            if signature.names is None:
                return self._fn(*tree)  # type: ignore[call-arg]
            bound = self._bind(args, kwargs)
            bound.arguments.update(zip(signature.names, tree, strict=True))
            return self._fn(*bound.args, **bound.kwargs)

        return trace_function(
            self._name,
            call,
            arguments,
            creates_variables=creates,
            location=definition(self._fn),
            gpu=self._gpu,
            cluster=self._cluster,
            x64=self._x64,
            parameters=self._parameters,
            takes_host_ops=True,
        )

    def watch(self) -> None:
        """Have the watchers of steps looked for again (`watchers.Watched`)."""
        for made in self._specializations.entries.copy().values():
            made.watch()
            made.native, made.native_tried = None, False
        self._fast = {}
        self._native.install(())

    # --------------------------------------------------------------------------------- looking in
    def _specialized(self, args: Any, kwargs: Any) -> Compiled:
        key, _, values = self._key(args, kwargs)
        return self._specialization(key, values)


_NATIVE_CLASS = callable_class(CompiledFunction)


def _recompiled(fn: Any, *options: Any) -> Any:
    """The copy of a compiled method; `fn` is one itself if the class names the compiled one."""
    if isinstance(fn, CompiledFunction):
        return fn
    return CompiledFunction(fn, *options)
