"""The executor's loop, in `weft.codegen.native_language`: never run by Python, compiled once.

The rules are those of TensorFlow's executor (the paper, section 3.4, and Yu et al., "Dynamic
control flow in large-scale machine learning", EuroSys 2018): a node runs when its inputs are there;
if one of them is dead, it does not run and its outputs are dead; a merge passes the live input on
and is dead only if all are; a frame is over when its iterations are, and then exits that never gave
a value give a dead one. The order of nodes is that of a stack, the same in every run.
"""

from __future__ import annotations

from weft.codegen.native_language import call, load, load8, stack, store
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.native_frames import (
    done,
    drop_inputs,
    enter,
    fail_at,
    leave,
    new_instance,
    next_iteration,
    propagate,
    push,
)
from weft.runtime.dataflow.native_memory import give_block, new_cell, release


def run_merge(state: int, node: int, iteration: int, dead: int, outs: int) -> int:
    slot = iteration + load(node + at.N_SLOT_AT)
    store(outs, 0)
    store(outs + 8, 0)
    if dead == 0:
        store(outs, load(slot))
        store(slot, 0)
        if load(node + at.N_B) != 0:
            cell = new_cell(state, 0)
            if cell != 0:
                store(load(cell + at.C_DATA), load(slot + 8))
                store(outs + 8, cell)
    propagate(state, node, iteration, outs, dead)
    release(state, load(outs))
    release(state, load(outs + 8))
    return 0


def run_switch(state: int, node: int, iteration: int, dead: int, outs: int) -> int:
    slot = iteration + load(node + at.N_SLOT_AT)
    store(outs, 0)
    store(outs + 8, 0)
    if dead == 0:
        chosen = load8(load(load(slot + 8) + at.C_DATA)) != 0
        store(outs + 8 * chosen, load(slot))
    propagate(state, node, iteration, outs, dead)
    return drop_inputs(state, node, iteration)


def run_one_value(state: int, node: int, iteration: int, dead: int, kind: int, outs: int) -> int:
    """Nodes with one input at most, and one output at most."""
    slot = iteration + load(node + at.N_SLOT_AT)
    cell = 0
    if load(node + at.N_INPUTS) != 0:
        cell = load(slot)
        store(slot, 0)
    passed = cell
    if dead != 0:
        passed = 0
    if kind == at.ENTER:
        enter(state, node, iteration, passed)
    if kind == at.EXIT:
        if dead == 0:
            leave(state, node, iteration, passed)
    if kind == at.NEXT_ITERATION:
        if dead == 0:
            next_iteration(state, node, iteration, passed)
        propagate(state, node, iteration, outs, dead)
    if kind == at.FETCH:
        if dead == 0:
            store(load(state + at.S_FETCHES) + 8 * load(node + at.N_A), passed)
            cell = 0
    if kind == at.CONSTANT:
        if dead == 0:
            passed = load(node + at.N_A)
    if kind == at.FEED:
        if dead == 0:
            passed = load(load(state + at.S_FEEDS) + 8 * load(node + at.N_A))
    inside = kind == at.IDENTITY
    inside = inside | (kind == at.CONSTANT) | (kind == at.FEED) | (kind == at.FETCH)
    if inside != 0:
        store(outs, passed)
        propagate(state, node, iteration, outs, dead)
    return release(state, cell)


def sends_dead(node: int, iteration: int) -> int:
    """Whether a host node that is to run with a dead first input has all others alive."""
    if load(node + at.N_B) == 0:
        return 0
    slot = iteration + load(node + at.N_SLOT_AT)
    number = 1
    while number < load(node + at.N_INPUTS):
        if load(slot + 8 * number) == 0:
            return 0
        number += 1
    return 1


def run_host(state: int, node: int, iteration: int) -> int:
    """Note it for Python, which answers with `complete`. Its inputs stay in their slots."""
    count = load(state + at.S_HOST_COUNT)
    entry = load(state + at.S_HOST) + count * at.READY_BYTES
    store(entry + at.R_NODE, node)
    store(entry + at.R_ITERATION, iteration)
    store(state + at.S_HOST_COUNT, count + 1)
    return 0


def take_over(state: int, row: int, given: int) -> int:
    """The cell for a result that a plan computes in the memory of its input `given`: that cell if
    nobody else reads it, else a copy."""
    if load(given + at.C_COUNT) == 1:
        if load(given + at.C_CLASS) == load(row + at.PR_CLASS):
            store(given + at.C_COUNT, 2)
            return given
    cell = new_cell(state, load(row + at.PR_CLASS))
    if cell != 0:
        source = load(given + at.C_DATA)
        call(load(state + at.S_MEMCPY), load(cell + at.C_DATA), source, load(row + at.PR_BYTES))
    return cell


def prepare(state: int, node: int, iteration: int, plan: int, outs: int) -> int:
    """Give a plan the node's inputs and, at `outs` too, cells for its results: to the walker a cell
    is what an array is."""
    slots = load(plan + at.P_SLOTS)
    call(
        load(state + at.S_MEMCPY), slots, iteration + load(node + at.N_SLOT_AT),
        8 * load(node + at.N_INPUTS),
    )  # fmt: skip
    row = load(plan + at.P_RESULTS)
    number = 0
    while number < load(plan + at.P_RESULT_COUNT):
        cell = 0
        if load(row + at.PR_CLASS) != at.NO_CELL:
            if load(row + at.PR_GIVEN) == at.NOT_GIVEN:
                cell = new_cell(state, load(row + at.PR_CLASS))
            else:
                cell = take_over(state, row, load(slots + 8 * load(row + at.PR_GIVEN)))
            store(slots + 8 * load(row + at.PR_SLOT), cell)
        store(outs + 8 * number, cell)
        row += at.PLAN_RESULT_BYTES
        number += 1
    return 0


def run_plan(state: int, node: int, iteration: int, dead: int, outs: int) -> int:
    """A compiled step on the node's inputs."""
    if dead != 0:
        return finish_dead(state, node, iteration, outs)
    plan = load(state + at.S_PLANS) + 8 * at.PLAN_WORDS * load(node + at.N_A)
    prepare(state, node, iteration, plan, outs)
    if load(state + at.S_FAILED) != 0:
        return 0
    call(load(plan + at.P_WALKER), load(plan + at.P_HEADER), 0, 0, 0)
    if load(load(plan + at.P_STATUS)) != 0:
        return fail_at(state, node, at.PLAN_FAILED)
    drop_inputs(state, node, iteration)
    propagate(state, node, iteration, outs, 0)
    number = 0
    while number < load(node + at.N_OUTPUTS):
        release(state, load(outs + 8 * number))
        number += 1
    return 0


def note_dear(state: int, node: int, iteration: int) -> int:
    """A plan that is worth a thread of its own waits until nothing else is ready."""
    count = load(state + at.S_DEAR_COUNT)
    entry = load(state + at.S_DEAR) + count * at.READY_BYTES
    store(entry + at.R_NODE, node)
    store(entry + at.R_ITERATION, iteration)
    store(state + at.S_DEAR_COUNT, count + 1)
    return 0


def is_lone(state: int) -> int:
    """Whether the one dear plan that is ready is all that there is to do."""
    lone = (load(state + at.S_DEAR_COUNT) == 1) & (load(state + at.S_HOST_COUNT) == 0)
    return lone & (load(state + at.S_BUSY) == 0) & (load(state + at.S_FAILED) == 0)


def run_lone(state: int) -> int:
    """That plan, on this thread, which lets it use all others."""
    entry = load(state + at.S_DEAR)
    store(state + at.S_DEAR_COUNT, 0)
    return run_here(state, load(entry + at.R_NODE), load(entry + at.R_ITERATION))


def run_here(state: int, node: int, iteration: int) -> int:
    """A dear plan on this thread."""
    run_plan(state, node, iteration, 0, load(state + at.S_OUTS))
    return done(state, iteration)


def now(state: int, time: int) -> int:
    """Nanoseconds; two words of room at `time`."""
    call(load(state + at.S_CLOCK), load(state + at.S_CLOCK_NUMBER), time)
    return load(time) * 1000000000 + load(time + 8)


def run(state: int, budget: int) -> int:
    """Run nodes until none is ready, a list for Python is full, memory is short, or `budget` nodes
    or some dear plans were run. Whether there is more to do at once."""
    left = run_ready(state, budget)
    if is_lone(state) & (left == 0):
        time = stack(2)
        end = now(state, time) + at.SLICE_NS
        while is_lone(state) & (left == 0):
            run_lone(state)
            left = run_ready(state, budget)
            if now(state, time) > end:
                return 1
    return left


def run_ready(state: int, budget: int) -> int:
    """`run` without dear plans. How many nodes are still ready."""
    outs = load(state + at.S_OUTS)
    executed = 0
    while load(state + at.S_READY_COUNT) != 0:
        stop = (executed >= budget) | (load(state + at.S_FAILED) != 0)
        stop = stop | (load(state + at.S_HOST_COUNT) == load(state + at.S_HOST_ROOM))
        stop = stop | (load(state + at.S_DEAR_COUNT) == load(state + at.S_HOST_ROOM))
        if stop != 0:
            store(state + at.S_EXECUTED, load(state + at.S_EXECUTED) + executed)
            return load(state + at.S_READY_COUNT)
        executed += 1
        top = load(state + at.S_READY_COUNT) - 1
        store(state + at.S_READY_COUNT, top)
        entry = load(state + at.S_READY) + top * at.READY_BYTES
        node = load(entry + at.R_NODE)
        iteration = load(entry + at.R_ITERATION)
        dead = load(entry + at.R_DEAD)
        kind = load(node + at.N_KIND)
        held = 0
        if kind == at.NO_OP:
            propagate(state, node, iteration, outs, dead)
        else:
            if kind == at.MERGE:
                run_merge(state, node, iteration, dead, outs)
            else:
                if kind == at.SWITCH:
                    run_switch(state, node, iteration, dead, outs)
                else:
                    if kind == at.HOST:
                        runs = dead == 0
                        if runs == 0:
                            runs = sends_dead(node, iteration) != 0
                        if runs != 0:
                            run_host(state, node, iteration)
                            held = 1
                        else:
                            finish_dead(state, node, iteration, outs)
                    else:
                        if kind >= at.PLAN:
                            if (kind == at.DEAR) & (dead == 0):
                                note_dear(state, node, iteration)
                                held = 1
                            else:
                                run_plan(state, node, iteration, dead, outs)
                        else:
                            run_one_value(state, node, iteration, dead, kind, outs)
        if held == 0:
            done(state, iteration)
    store(state + at.S_EXECUTED, load(state + at.S_EXECUTED) + executed)
    return 0


def finish_dead(state: int, node: int, iteration: int, outs: int) -> int:
    """A node of any outputs that does not run."""
    drop_inputs(state, node, iteration)
    number = 0
    while number < load(node + at.N_OUTPUTS):
        store(outs + 8 * number, 0)
        number += 1
    return propagate(state, node, iteration, outs, 1)


def complete(state: int, node: int, iteration: int, outs: int) -> int:
    """A host node is done: its outputs, one count each, are at `outs`."""
    drop_inputs(state, node, iteration)
    propagate(state, node, iteration, outs, 0)
    number = 0
    while number < load(node + at.N_OUTPUTS):
        release(state, load(outs + 8 * number))
        number += 1
    return done(state, iteration)


def start(state: int, static: int, roots: int, count: int) -> int:
    """Begin a step: the root frame, and the nodes that wait for nothing. The root iteration."""
    instance = new_instance(state, static, 0)
    if instance == 0:
        return 0
    iteration = load(instance + at.FI_FIRST)
    number = 0
    while number < count:
        push(state, load(roots + 8 * number), iteration, 0)
        number += 1
    return iteration


def end(state: int, iteration: int) -> int:
    """The step is over: its root frame is free for the next one."""
    instance = load(iteration + at.I_FRAME)
    number = load(load(instance + at.FI_STATIC) + at.SF_NUMBER)
    give_block(load(state + at.S_BLOCKS) + 8 * number, iteration)
    return give_block(load(state + at.S_FRAME_BLOCKS) + 8 * number, instance)
