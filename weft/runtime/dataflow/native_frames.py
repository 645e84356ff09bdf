"""Where values go: to the nodes that read them, into frames, through iterations, out again. In
`weft.codegen.native_language`: never run by Python."""

from __future__ import annotations

from weft.codegen.native_language import call, load, store
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.native_memory import give_block, release, take_block


def drop_inputs(state: int, node: int, iteration: int) -> int:
    """Release what a node's slots hold."""
    slot = iteration + load(node + at.N_SLOT_AT)
    end = slot + 8 * load(node + at.N_INPUTS)
    while slot < end:
        release(state, load(slot))
        store(slot, 0)
        slot += 8
    return 0


def push(state: int, node: int, iteration: int, dead: int) -> int:
    count = load(state + at.S_READY_COUNT)
    if count == load(state + at.S_READY_ROOM):
        room = 2 * count
        moved = call(load(state + at.S_REALLOC), load(state + at.S_READY), room * at.READY_BYTES)
        if moved == 0:
            store(state + at.S_FAILED, at.NO_MEMORY)
            return 0
        store(state + at.S_READY, moved)
        store(state + at.S_READY_ROOM, room)
    entry = load(state + at.S_READY) + count * at.READY_BYTES
    store(entry + at.R_NODE, node)
    store(entry + at.R_ITERATION, iteration)
    store(entry + at.R_DEAD, dead)
    store(state + at.S_READY_COUNT, count + 1)
    store(iteration + at.I_OUTSTANDING, load(iteration + at.I_OUTSTANDING) + 1)
    return 0


def fail_at(state: int, node: int, why: int) -> int:
    store(state + at.S_FAILED, why)
    store(state + at.S_FAILED_NODE, node)
    return 0


def deliver_to_merge(state: int, edge: int, iteration: int, cell: int) -> int:
    """To a merge; `cell` is 0 for a dead value."""
    node = load(edge + at.E_NODE)
    word = iteration + load(edge + at.E_STATE_AT)
    pending = load(word) - 1
    if cell != 0:
        if load(edge + at.E_INDEX) != at.CONTROL:
            if (pending & at.LIVE) != 0:
                fail_at(state, node, at.TWO_VALUES)
            else:
                pending = pending | at.LIVE
                slot = iteration + load(edge + at.E_SLOT_AT)
                store(cell + at.C_COUNT, load(cell + at.C_COUNT) + 1)
                store(slot, cell)
                store(slot + 8, load(edge + at.E_INDEX))
    store(word, pending)
    if (pending & at.COUNT_MASK) == 0:
        push(state, node, iteration, (pending & at.LIVE) == 0)
    return 0


def deliver(state: int, edge: int, iteration: int, cell: int, dead: int) -> int:
    """A value, or for a control edge that its node is done, to one input of an iteration."""
    if load(edge + at.E_MERGE) != 0:
        return deliver_to_merge(state, edge, iteration, cell)
    word = iteration + load(edge + at.E_STATE_AT)
    pending = load(word) - 1
    if dead != 0:
        pending = pending | at.DEAD
    if cell != 0:
        slot_at = load(edge + at.E_SLOT_AT)
        if slot_at != 0:
            store(cell + at.C_COUNT, load(cell + at.C_COUNT) + 1)
            store(iteration + slot_at, cell)
    store(word, pending)
    if (pending & at.COUNT_MASK) == 0:
        push(state, load(edge + at.E_NODE), iteration, pending & at.DEAD)
    return 0


def propagate(state: int, node: int, iteration: int, outs: int, dead: int) -> int:
    """The outputs at `outs` (0: dead) to all that read them; control edges as the node is."""
    edge = load(node + at.N_EDGES)
    end = load(node + at.N_EDGE_END)
    while edge < end:
        port = load(edge + at.E_PORT)
        if port == at.CONTROL:
            deliver(state, edge, iteration, 0, dead)
        else:
            cell = load(outs + 8 * port)
            deliver(state, edge, iteration, cell, cell == 0)
        edge += 8 * at.EDGE_WORDS
    return 0


def new_iteration(state: int, instance: int) -> int:
    """The next iteration of a frame; it is given the invariants that are there."""
    static = load(instance + at.FI_STATIC)
    size = load(static + at.SF_RECORD_BYTES)
    free = load(state + at.S_BLOCKS) + 8 * load(static + at.SF_NUMBER)
    iteration = take_block(state, free, state + at.S_ALL_BLOCKS, size)
    if iteration == 0:
        return 0
    call(load(state + at.S_MEMCPY), iteration, load(static + at.SF_TEMPLATE), size)
    store(iteration + at.I_FRAME, instance)
    last = load(instance + at.FI_LAST)
    if last == 0:
        store(instance + at.FI_FIRST, iteration)
    else:
        store(last + at.I_NEXT, iteration)
    started = load(instance + at.FI_STARTED)
    store(iteration + at.I_NUMBER, started)
    store(instance + at.FI_STARTED, started + 1)
    store(instance + at.FI_LAST, iteration)
    store(instance + at.FI_ACTIVE, load(instance + at.FI_ACTIVE) + 1)
    link = load(instance + at.FI_INVARIANTS)
    while link != 0:
        give_to_iteration(state, load(link + at.L_NODE), iteration, load(link + at.L_CELL))
        link = load(link + at.L_NEXT)
    return iteration


def give_to_iteration(state: int, node: int, iteration: int, cell: int) -> int:
    """The one output of an enter or exit to those that read it in an iteration."""
    edge = load(node + at.N_EDGES)
    end = load(node + at.N_EDGE_END)
    while edge < end:
        carried = cell
        if load(edge + at.E_PORT) == at.CONTROL:
            carried = 0
        deliver(state, edge, iteration, carried, cell == 0)
        edge += 8 * at.EDGE_WORDS
    return 0


def new_link(state: int, head: int, node: int, cell: int) -> int:
    """Note (node, cell) in the list at `head`; the cell's count goes with it."""
    link = take_block(state, state + at.S_LINKS, state + at.S_ALL_BLOCKS, at.LINK_BYTES)
    if link != 0:
        store(link + at.L_NODE, node)
        store(link + at.L_CELL, cell)
        store(link + at.L_NEXT, load(head))
        store(head, link)
    return link


def new_instance(state: int, static: int, parent: int) -> int:
    """A frame with its first iteration, in an iteration of its parent."""
    exits = load(static + at.SF_EXIT_COUNT)
    size = at.FI_EXITS + 8 * exits
    free = load(state + at.S_FRAME_BLOCKS) + 8 * load(static + at.SF_NUMBER)
    instance = take_block(state, free, state + at.S_ALL_BLOCKS, size)
    if instance == 0:
        return 0
    call(load(state + at.S_MEMSET), instance, 0, size)
    store(instance + at.FI_STATIC, static)
    store(instance + at.FI_PARENT, parent)
    store(instance + at.FI_ENTERS_LEFT, load(static + at.SF_ENTERS))
    if parent != 0:
        store(parent + load(static + at.SF_CHILD_AT), instance)
        store(parent + at.I_OUTSTANDING, load(parent + at.I_OUTSTANDING) + 1)
    if new_iteration(state, instance) == 0:
        return 0
    return instance


def enter(state: int, node: int, iteration: int, cell: int) -> int:
    """`cell`, 0 if dead, into the frame of an enter: into all iterations if it is constant."""
    static = load(node + at.N_A)
    instance = load(iteration + load(static + at.SF_CHILD_AT))
    if instance == 0:
        instance = new_instance(state, static, iteration)
        if instance == 0:
            return 0
    store(instance + at.FI_ENTERS_LEFT, load(instance + at.FI_ENTERS_LEFT) - 1)
    inside = load(instance + at.FI_FIRST)
    give_to_iteration(state, node, inside, cell)
    if load(node + at.N_B) != 0:
        inside = load(inside + at.I_NEXT)
        while inside != 0:
            give_to_iteration(state, node, inside, cell)
            inside = load(inside + at.I_NEXT)
        if cell != 0:
            store(cell + at.C_COUNT, load(cell + at.C_COUNT) + 1)
        new_link(state, instance + at.FI_INVARIANTS, node, cell)
    inside = load(instance + at.FI_FIRST)
    if load(inside + at.I_OUTSTANDING) == 0:
        finish_iterations(state, instance)
    return 0


def next_iteration(state: int, node: int, iteration: int, cell: int) -> int:
    """A live value to the merge of the next iteration, or to wait until that may begin."""
    instance = load(iteration + at.I_FRAME)
    following = load(iteration + at.I_NEXT)
    if following == 0:
        if load(instance + at.FI_ACTIVE) < load(load(instance + at.FI_STATIC) + at.SF_PARALLEL):
            following = new_iteration(state, instance)
            if following == 0:
                return 0
    if following == 0:
        store(cell + at.C_COUNT, load(cell + at.C_COUNT) + 1)
        return new_link(state, instance + at.FI_DEFERRED, node, cell)
    return deliver_to_merge(state, load(node + at.N_A), following, cell)


def leave(state: int, node: int, iteration: int, cell: int) -> int:
    """A live value out of a frame."""
    instance = load(iteration + at.I_FRAME)
    given = instance + at.FI_EXITS + 8 * load(node + at.N_A)
    if load(given) != 0:
        return fail_at(state, node, at.TWO_VALUES)
    store(given, 1)
    return give_to_iteration(state, node, load(instance + at.FI_PARENT), cell)


def start_deferred(state: int, instance: int) -> int:
    """Begin the iteration that waited for an earlier one to end."""
    link = load(instance + at.FI_DEFERRED)
    if link == 0:
        return 0
    store(instance + at.FI_DEFERRED, 0)
    iteration = new_iteration(state, instance)
    if iteration == 0:
        return 0
    # it must not end between two of its values
    store(iteration + at.I_OUTSTANDING, load(iteration + at.I_OUTSTANDING) + 1)
    while link != 0:
        following = load(link + at.L_NEXT)
        cell = load(link + at.L_CELL)
        deliver_to_merge(state, load(load(link + at.L_NODE) + at.N_A), iteration, cell)
        release(state, cell)
        give_block(state + at.S_LINKS, link)
        link = following
    store(iteration + at.I_OUTSTANDING, load(iteration + at.I_OUTSTANDING) - 1)
    return 0


def sweep(state: int, static: int, iteration: int) -> int:
    """Release what nodes hold that never got all their inputs."""
    number = 0
    while number < load(static + at.SF_SWEPT_COUNT):
        node = load(load(static + at.SF_SWEPT) + 8 * number)
        if load(node + at.N_KIND) == at.MERGE:
            release(state, load(iteration + load(node + at.N_SLOT_AT)))
        else:
            drop_inputs(state, node, iteration)
        number += 1
    return 0


def finish_iterations(state: int, instance: int) -> int:
    """Free the oldest iterations that are over; if no other is left, the frame is over."""
    if load(instance + at.FI_ENTERS_LEFT) != 0:
        return 0
    if load(instance + at.FI_PARENT) == 0:
        return 0
    static = load(instance + at.FI_STATIC)
    free = load(state + at.S_BLOCKS) + 8 * load(static + at.SF_NUMBER)
    iteration = load(instance + at.FI_FIRST)
    while iteration != 0:
        if load(iteration + at.I_OUTSTANDING) != 0:
            return 0
        following = load(iteration + at.I_NEXT)
        sweep(state, static, iteration)
        give_block(free, iteration)
        store(instance + at.FI_FIRST, following)
        if following == 0:
            store(instance + at.FI_LAST, 0)
        store(instance + at.FI_ACTIVE, load(instance + at.FI_ACTIVE) - 1)
        start_deferred(state, instance)
        iteration = load(instance + at.FI_FIRST)
    return finish_frame(state, instance)


def finish_frame(state: int, instance: int) -> int:
    static = load(instance + at.FI_STATIC)
    parent = load(instance + at.FI_PARENT)
    link = load(instance + at.FI_INVARIANTS)
    while link != 0:
        following = load(link + at.L_NEXT)
        release(state, load(link + at.L_CELL))
        give_block(state + at.S_LINKS, link)
        link = following
    number = 0
    while number < load(static + at.SF_EXIT_COUNT):
        if load(instance + at.FI_EXITS + 8 * number) == 0:
            node = load(load(static + at.SF_EXITS) + 8 * number)
            give_to_iteration(state, node, parent, 0)
        number += 1
    store(parent + load(static + at.SF_CHILD_AT), 0)
    give_block(load(state + at.S_FRAME_BLOCKS) + 8 * load(static + at.SF_NUMBER), instance)
    return done(state, parent)


def done(state: int, iteration: int) -> int:
    """One node, or one frame, of an iteration is done."""
    left = load(iteration + at.I_OUTSTANDING) - 1
    store(iteration + at.I_OUTSTANDING, left)
    if left == 0:
        finish_iterations(state, load(iteration + at.I_FRAME))
    return 0
