"""Plans on disk: a graph that was compiled before, by any process, runs no pass again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from weft.codegen.llvm.cache import PLAN_SUFFIX, CachedRecord, file_name, plan_cache
from weft.codegen.llvm.cache_key import describe_kernel, describe_plan
from weft.codegen.llvm.jit import Kernel, Kernels, do_later, load_kernels
from weft.ir.dataclass import dataclass
from weft.ir.graph import Graph
from weft.ir.ops import REGISTERED
from weft.ir.spec import ConstArray
from weft.ir.text.digest import digest_graph
from weft.passes.manager import NamedPipeline, PassOptions, pass_name
from weft.runtime.step_plan import StepPlan, kernel_files, pack_plan, unpack_plan

T = TypeVar("T")
_log = logging.getLogger("weft.compile")


@dataclass(frozen=True)
class PlanKey:
    """What the plan of a traced graph depends on. target: as of `describe_plan`."""

    graph: Graph
    passes: tuple[str, ...]
    donated: tuple[int, ...]
    target: str = ""

    @cached_property
    def content(self) -> tuple[str | None, list[ConstArray]]:
        """The description, None if it cannot be known, and the graph's constants."""
        digest, constants = digest_graph(self.graph)
        return describe_plan(digest, self.passes, self.donated, self.target), constants

    def load(self, read: Callable[[CachedRecord, list[ConstArray]], T]) -> T | None:
        """What `read` makes of what is kept of the plan and of the graph's constants; None if it is
        not there, or damaged."""
        cache = plan_cache()
        if cache is None or not cache.exists():
            return None
        description, constants = self.content
        if description is None:
            return None
        return cache.load_record(description, PLAN_SUFFIX, lambda found: read(found, constants))

    def store(self, name: str, packed: tuple[dict[str, Any], bytes] | None) -> None:
        """Keep a plan, if it can be packed."""
        cache, (description, _) = plan_cache(), self.content
        if cache is not None and description is not None and packed is not None:
            cache.store_record(description, PLAN_SUFFIX, CachedRecord(name, *packed))


def plan_key(
    graph: Graph,
    passes: Sequence[Any],
    options: PassOptions,
    donated: Sequence[int],
    target: str = "",
) -> PlanKey | None:
    """None if the plan is not kept: no cache, passes that are not weft's own, who compiles wants
    to see the passes at work, or the graph has ops whose meaning is the user's."""
    watched = options.verify or options.dump is not None or "passes" in options.log
    if watched or plan_cache() is None:
        return None
    if REGISTERED and any(op.name in REGISTERED for op in graph.walk()):
        return None
    names = _names(passes)
    return None if names is None else PlanKey(graph, names, tuple(donated), target)


def _names(passes: Sequence[Any]) -> tuple[str, ...] | None:
    """What plans say of their passes: those of weft by name, a pipeline by its own, as the sources
    of the passes are in the key. None if one of them is the user's."""
    if isinstance(passes, NamedPipeline):
        return (f"pipeline {passes.name}",)
    # who names no passes does not wait for these modules, unless a step has to be planned
    from weft.passes.pipelines import PASSES, PIPELINES

    for name, pipeline in PIPELINES.items():
        if pipeline == tuple(passes):
            return (f"pipeline {name}",)
    names = tuple([pass_name(run) for run in passes])
    if any(PASSES.get(name) is not run for name, run in zip(names, passes, strict=True)):
        return None
    return names


def load_plan(key: PlanKey) -> tuple[StepPlan, Kernels] | None:
    """The plan and its kernels' addresses; None if the plan or one of the kernels is not there."""
    kept = key.load(_read_plan)
    if kept is None:
        return None
    name, files, plan = kept
    addresses = load_kernels(files)
    if addresses is None:
        _log.info("cache: a kernel of the plan of %s is gone, it is planned again", name)
        return None
    return plan, addresses


def _read_plan(
    found: CachedRecord, constants: list[ConstArray]
) -> tuple[str, dict[str, str], StepPlan]:
    plan = unpack_plan(found.fields, found.payload, constants)
    return found.name, kernel_files(found.fields), plan


def store_plan(key: PlanKey, name: str, plan: StepPlan, kernels: Sequence[Kernel]) -> None:
    """Keep a plan, if its kernels are kept and its constants are not too large; in another thread,
    when the kernels are there."""
    do_later(partial(_store, key, name, plan, kernels))


def _store(key: PlanKey, name: str, plan: StepPlan, kernels: Sequence[Kernel]) -> None:
    files = {}
    for kernel in kernels:
        description = describe_kernel(kernel)
        if description is None:
            return
        files[kernel.key] = file_name(description)
    key.store(name, pack_plan(plan, files, key.content[1]))
