"""The executor's loop with a trace of each node, in `weft.codegen.native_language`: never run by
Python. The loop itself knows nothing of it."""

from __future__ import annotations

from weft.codegen.native_language import load, stack, store
from weft.runtime.dataflow import layout as at
from weft.runtime.dataflow.native_loop import is_lone, now, run_lone, run_ready


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
