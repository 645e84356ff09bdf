"""Native executor: the loop over ready nodes, in `weft.codegen.native_language`.

Never run by Python, compiled once. The rules are those of TensorFlow's executor (the paper, section
3.4, and Yu et al., "Dynamic control flow in large-scale machine learning", EuroSys 2018): a node
runs when its inputs are there; if one of them is dead, it does not run and its outputs are dead; a
merge passes the live input on and is dead only if all are; a frame is over when its iterations are,
and then exits that never gave a value give a dead one. The order of nodes is that of a stack, the
same in every run.

In this order: memory (blocks for frames and iterations, cells for tensors); where values go (to the
nodes that read them, into frames, through iterations, out again); the loop; the loop with a trace
of each node, of which the loop itself knows nothing."""

from __future__ import annotations

from weft.codegen.native_language import call, load, load8, stack, store
from weft.runtime.dataflow import layout as at


def take_block(state: int, free: int, all_blocks: int, size: int) -> int:
    """A block of the free list at `free`, or a new one; 0 if there is no memory. The word before
    it links all blocks, its first word the free ones."""
    block = load(free)
    if block != 0:
        store(free, load(block))
        return block
    raw = call(load(state + at.S_MALLOC), size + 16)
    if raw == 0:
        store(state + at.S_FAILED, at.NO_MEMORY)
        return 0
    store(raw + 8, load(all_blocks))
    store(all_blocks, raw)
    return raw + 16


def give_block(free: int, block: int) -> int:
    store(block, load(free))
    store(free, block)
    return 0


def class_of(size: int) -> int:
    number = 0
    while (64 << number) < size:
        number += 1
    return number


def new_cell(state: int, number: int) -> int:
    """A cell with room for 64 << number bytes, counted once; 0 if there is no memory."""
    free = load(state + at.S_CELLS) + 8 * number
    cell = load(free)
    if cell != 0:
        store(free, load(cell + at.C_NEXT))
        store(cell + at.C_COUNT, 1)
        return cell
    cell = call(load(state + at.S_MALLOC), at.CELL_HEADER + 64 + (64 << number))
    if cell == 0:
        store(state + at.S_FAILED, at.NO_MEMORY)
        return 0
    store(cell + at.C_CLASS, number)
    store(cell + at.C_DATA, (cell + at.CELL_HEADER + 63) & (0 - 64))
    store(cell + at.C_ALL, load(state + at.S_ALL_CELLS))
    store(state + at.S_ALL_CELLS, cell)
    store(cell + at.C_COUNT, 1)
    return cell


def release(state: int, cell: int) -> int:
    if cell == 0:
        return 0
    count = load(cell + at.C_COUNT) - 1
    store(cell + at.C_COUNT, count)
    number = load(cell + at.C_CLASS)
    if count == 0 and number >= 0:
        free = load(state + at.S_CELLS) + 8 * number
        store(cell + at.C_NEXT, load(free))
        store(free, cell)
    return 0


def give_back(state: int) -> int:
    """Forget a step, whole or half: all cells and blocks go to the system, the state is as new."""
    cell = load(state + at.S_ALL_CELLS)
    while cell != 0:
        following = load(cell + at.C_ALL)
        call(load(state + at.S_FREE), cell)
        cell = following
    raw = load(state + at.S_ALL_BLOCKS)
    while raw != 0:
        following = load(raw + 8)
        call(load(state + at.S_FREE), raw)
        raw = following
    return 0


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


def note_iterations(iteration: int, event: int) -> int:
    """The numbers of the iterations around a node, its own first, none for the root."""
    number = 0
    while number < at.TRACE_DEPTH:
        place = event + at.T_NUMBERS + 8 * number
        store(place, 0 - 1)
        around = 0
        if iteration != 0:
            around = load(load(iteration + at.I_FRAME) + at.FI_PARENT)
        if around != 0:
            store(place, load(iteration + at.I_NUMBER))
        iteration = around
        number += 1
    return 0


def run_traced(state: int, budget: int) -> int:
    """`run`, with an event for each node that is not left to Python; ends when the room for events
    is full, too."""
    time = stack(2)
    begin = now(state, time)
    executed = 0
    while executed < budget:
        lone = is_lone(state) & (load(state + at.S_READY_COUNT) == 0)
        if (load(state + at.S_READY_COUNT) == 0) & (lone == 0):
            return 0
        if load(state + at.S_TRACE_COUNT) == load(state + at.S_TRACE_ROOM):
            return 1
        count = load(state + at.S_TRACE_COUNT)
        event = load(state + at.S_TRACE) + 8 * at.EVENT_WORDS * count
        if lone != 0:
            entry = load(state + at.S_DEAR)
            store(event + at.T_DEAD, 0)
        else:
            entry = load(state + at.S_READY)
            entry = entry + (load(state + at.S_READY_COUNT) - 1) * at.READY_BYTES
            store(event + at.T_DEAD, load(entry + at.R_DEAD))
        store(event + at.T_NODE, load(entry + at.R_NODE))
        note_iterations(load(entry + at.R_ITERATION), event)
        left_to_python = load(state + at.S_HOST_COUNT) + load(state + at.S_DEAR_COUNT)
        before = load(state + at.S_EXECUTED)
        if lone != 0:
            run_lone(state)
            left_to_python = 0
        else:
            run_ready(state, 1)
            if load(state + at.S_EXECUTED) == before:
                return load(state + at.S_READY_COUNT)
        end = now(state, time)
        if load(state + at.S_HOST_COUNT) + load(state + at.S_DEAR_COUNT) == left_to_python:
            store(event + at.T_BEGIN, begin)
            store(event + at.T_END, end)
            store(state + at.S_TRACE_COUNT, count + 1)
        begin = end
        executed += 1
    return 1
