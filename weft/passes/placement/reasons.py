"""Why each op is where it is, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.passes.placement.choose import HOME, Choice
from weft.passes.placement.constraints import Constraint, Problem
from weft.passes.placement.devices import Device
from weft.passes.placement.together import Together


def reasons_of(
    problem: Problem,
    together: Together,
    devices: Sequence[Device],
    choice: Choice,
    wishes: Mapping[int, str],
) -> list[str]:
    """One text for each op. wishes: what soft placement has given up, by op."""
    causes = _causes(problem, together, devices, choice)
    links: dict[int, Constraint] = {}
    asked: dict[int, Constraint] = {}
    for c in problem.constraints:
        if c.anchor >= 0:
            links.setdefault(c.op, c)
        elif c.kind == "device":
            asked[c.op] = c
    texts = []
    for number, op in enumerate(problem.ops):
        cause, owner = causes[together.groups.root(number)]
        if number in asked:
            text = f"asked for: {_wanted(op.device, asked[number])}"
            if owner < 0:  # that was not all
                text += f"; {cause}"
        elif number == owner:
            text = cause
        else:
            link = together.why.get(number)
            if number in links:
                link = _linked(problem, links[number])
            text = f"{link}: {cause}" if link else cause
        if number in problem.unused:
            text += f"; {problem.unused[number]} is not used: it goes where its state is"
        if number in wishes:
            told = "asked for" if op.device else "it was to go with the step's,"
            text += f"; {told} {wishes[number]}, which cannot be (soft placement)"
        texts.append(text)
    return texts


def _wanted(device: str, constraint: Constraint) -> str:
    at = f" at {constraint.locations[0]}" if constraint.locations else ""
    return device + at


def _linked(problem: Problem, link: Constraint) -> str:
    return f"with {problem.anchors[link.anchor - len(problem.ops)]}"


def _causes(
    problem: Problem, together: Together, devices: Sequence[Device], choice: Choice
) -> dict[int, tuple[str, int]]:
    """For each group, what decided, and the op whose constraint that was (-1: none)."""
    groups = together.groups
    found: dict[int, tuple[str, int]] = {}
    for kind in ("held", "device", "default", "kernel"):
        for c in problem.constraints:
            root = groups.root(c.op)
            if c.kind != kind or root in found or root in choice.free:
                continue
            if kind != "kernel" or c.mask & (c.mask - 1) == 0:
                at = f" at {c.locations[0]}" if c.locations else ""
                found[root] = f"{c.what}{at}", c.op
    for root, text in together.rule.items():
        found[groups.root(root)] = text, -1
    one = f"{devices[0].name} is the only device"
    for number in range(len(problem.ops)):
        root = groups.root(number)
        if root not in found:
            free = root in choice.free
            found[root] = (_chosen(choice) if free else one if len(devices) == 1 else _LEFT), -1
    return found


#: Predictions that differ by less are the same to people.
_NEAR = 0.01
_LEFT = "the only device that all constraints leave"


def _chosen(choice: Choice) -> str:
    """Why a group that had a choice is where it is."""
    took = f"{choice.seconds * 1e3:.3g} ms predicted"
    least = choice.seconds * _NEAR
    others = {k: v for k, v in choice.compared.items() if abs(v - choice.seconds) > least}
    if not others:
        return f"{choice.why} ({took})"
    name = min(others, key=lambda k: others[k])
    if choice.why != HOME and HOME in others:
        name = HOME
    return f"{choice.why} ({took}; {name}: {others[name] * 1e3:.3g} ms)"
