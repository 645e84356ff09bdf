"""`wf.bench`: what `weft bench` does, from Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.frontend.calls.threads import checked

if TYPE_CHECKING:
    from weft.frontend.bench.report import Report


def bench(
    what: str | Path | Callable[..., Any] = "all",
    /,
    *args: Any,
    kernel: str | int | None = None,
    against: str | Sequence[str] = (),
    threads: int | None = None,
    rounds: int | None = None,
    quick: bool = False,
    **kwargs: Any,
) -> Report:
    """Time kernels (docs/bench.md): of a built-in suite ("chains", "rows", "matmul", "reductions",
    "copies", "conv", "all"), of a function called with args and kwargs, or of a dumped graph.

    A function is compiled if it is not yet; `TensorType`s in place of tensors get random values. Of
    a dump, "FILE.weft", kwargs are the inputs by name; those that are not given are random.
    kernel: only those with this in their names, or of this number. against: who else computes the
    suites, of "numpy", "jax", "torch", "torch.compile". threads: at most so many. rounds: how often
    each thing is timed. quick: small arrays, few rounds.

    `print` the report for the tables; it has `to_json()`, `png(path)` and `costs`. NotFoundError
    and InvalidArgumentError for what is not there and arguments that do not fit.
    """
    # who does not measure does not wait for these modules when weft is imported
    from weft.frontend.bench.report import Options, checked_peers, measure_all
    from weft.frontend.bench.targets import named_targets

    options = Options(
        None if kernel is None else str(kernel),
        None if threads is None else checked(threads, "wf.bench(threads=)"),
        checked_peers([against] if isinstance(against, str) else against),
        rounds,
        quick,
        asked=True,
    )
    return measure_all(named_targets(what, args, kwargs, quick), options)
