"""`@wf.compile`: its arguments, checked, before `function.py` makes the compiled function.

`passes=` takes names of pipelines, names of passes and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from weft.codegen.engines import checked_engine
from weft.codegen.llvm.target import checked_isa
from weft.frontend.compile.gpu import gpu_number
from weft.frontend.compile.specializations import below
from weft.frontend.compile.threads import checked
from weft.ir.dtypes import checked_math
from weft.ir.errors import PassError, suggest
from weft.ir.locations import caller_location
from weft.ir.process import load
from weft.passes.manager import STANDARD, Pass
from weft.runtime.native.ahead import compile_ahead

if TYPE_CHECKING:
    from weft.frontend.compile.function import CompiledFunction
    from weft.runtime.cluster.spec import Cluster


def pipeline_of(passes: str | Sequence[Pass | str] | None) -> Sequence[Pass]:
    """The passes in order; None: the standard ones. PassError for what is no pass.

    A name may be that of a pipeline, "standard" or "reproducible", and a string may hold several
    with commas, as for `weft opt --passes`.
    """
    if passes is None:
        return STANDARD
    given = passes.split(",") if isinstance(passes, str) else passes
    if callable(given):
        given = [given]
    return tuple(run for item in given for run in _named(item))


def _named(given: Pass | str) -> Sequence[Pass]:
    # who names none does not wait for these modules, unless a step has to be planned
    from weft.passes.pipelines import PASSES, PIPELINES

    if isinstance(given, str):
        name = given.strip()
        if name in PIPELINES:
            return PIPELINES[name]
        if name not in PASSES:
            raise PassError(
                f"there is no pass '{name}'{suggest(name, list(PASSES))}",
                hint=f"the passes are: {', '.join(PASSES)}; pipelines: {', '.join(PIPELINES)}",
                location=caller_location(),
            )
        return (PASSES[name],)
    if not callable(given):
        raise PassError(
            f"wf.compile: {given!r:.60} in passes= is no pass",
            hint="a pass is a name, or a function from graph to graph",
            location=caller_location(),
        )
    return (given,)


def _on_cluster(cluster: object, **options: tuple[object, object]) -> Cluster | str:
    """`cluster`, checked. options: what was given, and what none is. Errors as `check_options`."""
    # who has no cluster does not wait for this module
    from weft.frontend.compile.on_cluster import check_options, checked_cluster

    check_options(options)
    return checked_cluster(cluster)


P = ParamSpec("P")
R = TypeVar("R")


@overload
def compile(
    fn: Callable[P, R],
    /,
    *,
    static_argnames: str | int | Sequence[str | int] = (),
    donate: str | int | Sequence[str | int] = (),
    threads: int | None = None,
    device: str = "cpu",
    passes: str | Sequence[Pass | str] | None = None,
    math: str = "ieee",
    target: str | None = None,
    input_signature: Sequence[Any] | None = None,
    x64: bool = True,
    engine: str | None = None,
    cluster: Cluster | str | None = None,
    autograph: bool = False,
) -> CompiledFunction[P, R]: ...
@overload
def compile(
    *,
    static_argnames: str | int | Sequence[str | int] = (),
    donate: str | int | Sequence[str | int] = (),
    threads: int | None = None,
    device: str = "cpu",
    passes: str | Sequence[Pass | str] | None = None,
    math: str = "ieee",
    target: str | None = None,
    input_signature: Sequence[Any] | None = None,
    x64: bool = True,
    engine: str | None = None,
    cluster: Cluster | str | None = None,
    autograph: bool = False,
) -> Callable[[Callable[P, R]], CompiledFunction[P, R]]: ...


def compile(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    static_argnames: str | int | Sequence[str | int] = (),
    donate: str | int | Sequence[str | int] = (),
    threads: int | None = None,
    device: str = "cpu",
    passes: str | Sequence[Pass | str] | None = None,
    math: str = "ieee",
    target: str | None = None,
    input_signature: Sequence[Any] | None = None,
    x64: bool = True,
    engine: str | None = None,
    cluster: Cluster | str | None = None,
    autograph: bool = False,
) -> Any:
    """Compile a function of tensors: `@wf.compile`, or `@wf.compile(static_argnames="training")`.

    static_argnames: parameters whose (hashable) values the code depends on; each value compiles
    anew. passes: the pipeline, names or functions from graph to graph (default: "standard"); calls
    need one that ends with "fuse". threads: one call uses at most so many, and never more than
    `get_num_threads()`; the results' bits do not depend on it. donate: parameters whose memory the
    call takes for results of the same type; their tensors cannot be used afterwards, and it is an
    error if someone else sees it, or if no result can take it (GPU, executor, open sizes give it
    back). Both name parameters by name or position. device: "cpu", or "gpu:0" for the first GPU, as
    `wf.device` names them: the function runs there, but for ops of the host; its results stay there
    as `wf.DeviceArray`s, which it takes without a copy, as variables stay; arrays of the host are
    copied there (docs/guide/gpu.md). UnsupportedError for a device of another task. math: "tf32"
    lets GPU libraries round f32 to 10 bits of mantissa before it is multiplied; "ieee" does not;
    weft's own kernels and the CPU never do. target: the CPU's instruction set, "x86-64-v2" (SSE4),
    "x86-64-v3" (AVX2), "x86-64-v4" (AVX-512) or "native" (default: what WEFT_TARGET says).

    input_signature: a `wf.TensorType` for each parameter that is not static (or a container of
    them), None or a name in its shape for a size that is open: the function is traced once, with
    sizes that are symbols, and a size that never came before costs a fraction of a new trace.
    Arguments that do not fit are an InvalidArgumentError; a Python number becomes an array of the
    given dtype. In another function's trace it takes what is there.
    x64: False makes float64 and complex128 in the function, its arguments and results a
    TypeRuleError with their line. engine: "llvm" (or WEFT_ENGINE's), "numba" (docs/guide/numba.md).
    cluster: a `wf.train.Cluster`, or the address of a task: ops run on the task that `wf.device` in
    the function names, the others on that one (docs/guide/cluster.md). autograph: Python's `if`,
    `while` and `for` in it work on tensors (docs/guide/control-flow.md).

    >>> wf.compile(lambda x, n: x**n, static_argnames="n")(wf.asarray([1.0, 2.0]), 3)
    Tensor([1., 8.], dtype=float32)
    """
    threads = None if threads is None else checked(threads, "wf.compile(threads=)")
    isa = None if target is None else checked_isa(target, "wf.compile(target=)")
    gpu, mode = gpu_number(device), checked_math(math, "wf.compile(math=)")
    by = None if engine is None else checked_engine(engine, "wf.compile(engine=)")
    passes = pipeline_of("gpu" if passes is None and gpu is not None else passes)
    compile_ahead()  # while the next modules are loaded, and the program goes on to the first call
    there = None if cluster is None else _on_cluster(
        cluster, device=(device, "cpu"), threads=(threads, None), donate=(donate, ()),
        math=(math, "ieee"), target=(target, None), engine=(engine, None),
    )  # fmt: skip
    given = (static_argnames, passes, threads, donate, gpu, mode, isa, input_signature, x64, by)
    return _decorated(fn, (*given, there), autograph)


def _decorated(fn: Callable[..., Any] | None, given: tuple[Any, ...], autograph: bool) -> Any:
    """The compiled function, or the decorator that makes it. given: its arguments after `fn`."""
    made: Any = load("weft.frontend.compile.function", "CompiledFunction")

    def decorate(function: Any) -> Any:
        kind = below(function)  # @wf.compile above @classmethod is as @classmethod above it
        if kind is not None:
            return kind(decorate(function.__func__))
        if autograph:
            convert: Any = load("weft.frontend.extend.autograph", "convert")
            function = convert(function)
        return made(function, *given)

    return decorate if fn is None else decorate(fn)
