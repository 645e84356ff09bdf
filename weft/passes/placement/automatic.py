"""Whether ops that nothing binds leave the session's task, where nobody has said so.

They do if two predictions say that the step is a tenth faster then: the simulated step, where each
op begins when its own operands are there; and, as regions of the executor are larger than ops, and
others may do the same step at once, the phases of all of them (`replicas.done_at_once`), where a
task gets all that it needs, computes, and sends. A session knows these things of the other tasks:

* which of them have processors that no other task counts on (`Machine`): only to these ops go.
  Where the tasks of a machine would use more threads than it has processors, they are in each
  other's way already;
* which of them serve this step: those of the jobs on which it binds something; of the session's
  own job only those that say that they have nothing else to do, no program and no session of their
  own. All others are taken to do the same step at the same time, as replicas do, each with what is
  the session's task here in its own, and all with the same servers. So no op goes to them, and the
  more they are, the more the servers have to do.

An op is priced as if all threads of its task shared its work, which is the least that it can take:
then what it would take to send its values counts for most."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from weft.ir.dataclass import dataclass
from weft.ir.device import DeviceSpec
from weft.ir.graph import Graph
from weft.passes.placement.choose import HOME
from weft.passes.placement.costs import CostModel
from weft.passes.placement.devices import CPU, Device
from weft.passes.placement.placer import Placement, place

STAYS = "ops that nothing binds stay in the session's task"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a task runs, as it says itself: the machine's name, how many of its processors the task
    may use, and how many threads its steps have."""

    name: str
    processors: int
    threads: int


def place_where_it_wins(
    graph: Graph,
    devices: Sequence[Device],
    tasks: Mapping[str, Machine],
    serving: Callable[[], Collection[str]],
    *,
    costs: CostModel | None = None,
    soft: bool = False,
    held: Mapping[str, str] | None = None,
) -> Placement:
    """`place`, where ops leave the session's task if that wins (see the module's text);
    `Placement.note` says why they do or do not. tasks: what is known of them, by name. serving:
    which of them say that they have nothing else to do; asked where it matters. Errors as `place`
    has."""
    home = devices[0].task

    def placed(spread: Collection[str], replicas: int = 0) -> Placement:
        return place(
            graph, fast if spread else devices, costs=costs, soft=soft, spread=spread, held=held,
            replicas=replicas,
        )  # fmt: skip

    fast = [
        replace(d, scale=d.scale / tasks[d.task].threads)
        if d.kind == CPU and d.task in tasks
        else d
        for d in devices
    ]
    stay = placed(())
    others = {d.task for d in devices} - {home}
    if not others:
        return stay
    room = _with_room(tasks) & others
    if not room:
        return replace(stay, note=f"{STAYS}: no other task has processors of its own")
    alone = placed(room)
    if alone.choice.why == HOME:
        return replace(stay, note=_no_gain(alone, len(room)))
    own = {t for t in others if DeviceSpec.parse(t).job == devices[0].spec.job}
    serve = _bound_to(stay) & others
    if serve & own:
        serve -= own - set(serving())
    replicas = 1 + len(others - serve)
    to = room & serve
    if not to:
        return replace(
            stay, note=f"{STAYS}: the others may do the same step for their own sessions"
        )
    made = placed(to, replicas)
    if made.choice.why == HOME:
        return replace(stay, note=_no_gain(made, len(to)))
    return replace(made, note=_gain(made, len(to)))


def _with_room(tasks: Mapping[str, Machine]) -> set[str]:
    """The tasks on machines that have a processor for each thread of their tasks."""
    wanted: dict[str, int] = {}
    there: dict[str, int] = {}
    for task in tasks.values():
        wanted[task.name] = wanted.get(task.name, 0) + task.threads
        there[task.name] = min(there.get(task.name, task.processors), task.processors)
    return {name for name, t in tasks.items() if wanted[t.name] <= there[t.name]}


def _bound_to(placed: Placement) -> set[str]:
    """The tasks of the jobs on which something is that cannot be in the session's task."""
    found = {DeviceSpec.parse(op.device) for op in placed.reasons}
    jobs = {spec.job for spec in found if spec.task_name != placed.devices[0].task}
    return {d.task for d in placed.devices if d.spec.job in jobs}


def _no_gain(tried: Placement, count: int) -> str:
    compared = dict(tried.predict().compared)
    home = compared.pop(HOME)
    least = f", elsewhere {min(compared.values()) * 1e3:.3g} ms at least" if compared else ""
    return f"{STAYS}, which {_of(tried, count)} takes {home * 1e3:.3g} ms there{least}"


def _gain(made: Placement, count: int) -> str:
    found = made.predict().compared
    return (
        f"ops that nothing binds may leave the session's task, as {_of(made, count)} takes "
        f"{found[made.choice.why] * 1e3:.3g} ms then, and {found[HOME] * 1e3:.3g} ms there"
    )


def _of(tried: Placement, count: int) -> str:
    replicas = tried.predict().replicas
    at_once = f", {replicas} of which are taken to be done at once," if replicas > 1 else ""
    return f"the step over {count} other task{'s' * (count != 1)}{at_once}"
