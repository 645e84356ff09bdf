"""One step, in `weft.codegen.native_language`: never run by Python, compiled once.

`run_list` is `Executable.__call__`. All of it runs with the GIL held, except the step itself where
it is long (X_RELEASE); what it uses of CPython and NumPy comes in by address.
"""

from __future__ import annotations

from weft.codegen.native_language import call, call32, load, stack, store
from weft.runtime.native import layout as at
from weft.runtime.native.blocks import pool_free, take_block


def _new_result(api: int, row: int) -> int:
    """A new array for a result: aligned memory of the pool, owned by the array. 0: no memory."""
    data = take_block(load(api + at.POOL), load(row + at.R_CLASS))
    if data == 0:
        return 0
    descr = load(row + at.R_DESCR)
    call(load(api + at.INCREF), descr)
    made = call(
        load(api + at.ARRAY_NEW), load(api + at.NDARRAY), descr, load(row + at.R_NDIM),
        load(row + at.R_DIMS), 0, data, at.CARRAY, 0,
    )  # fmt: skip
    if made == 0:
        pool_free(load(api + at.POOL), data, 0)
        call(load(api + at.ERR_CLEAR))
        return 0
    handler = load(api + at.HANDLER)
    call(load(api + at.INCREF), handler)
    store(made + at.ARRAY_HANDLER, handler)
    # the flags are 32 bits wide, next to padding
    store(made + at.ARRAY_FLAGS, load(made + at.ARRAY_FLAGS) | at.OWNS_DATA)
    return made


def _new_results(api: int, step: int, results: int) -> int:
    count = load(step + at.X_RESULT_COUNT)
    row = load(step + at.X_RESULTS)
    i = 0
    while i < count:
        made = load(api + at.NONE)
        if load(row + at.R_DESCR) != 0:
            made = _new_result(api, row)
        else:
            call(load(api + at.INCREF), made)
        if made == 0:
            drop(api, results, i)
            return 0
        store(results + 8 * i, made)
        row += at.R_WORDS
        i += 1
    return 1


def drop(api: int, objects: int, count: int) -> int:
    i = 0
    while i < count:
        call(load(api + at.DECREF), load(objects + 8 * i))
        i += 1
    return 0


def _take_frame(api: int, step: int) -> int:
    """A frame that no other call uses; 0 with an exception set."""
    frame = load(step + at.X_FRAMES)
    if frame != 0:
        store(step + at.X_FRAMES, load(frame + at.F_NEXT))
        store(step + at.X_IDLE, load(step + at.X_IDLE) - 1)
        return frame
    made = call(load(api + at.CALL_NO_ARGS), load(step + at.X_NEW_FRAME))
    if made == 0:
        return 0
    frame = call(load(api + at.LONG_AS), made)
    call(load(api + at.DECREF), made)
    return frame


def _give_frame(api: int, step: int, frame: int) -> int:
    if load(step + at.X_IDLE) >= load(step + at.X_MOST_IDLE):
        return call(load(api + at.DECREF), load(frame + at.F_OWNER))
    store(frame + at.F_NEXT, load(step + at.X_FRAMES))
    store(step + at.X_FRAMES, frame)
    store(step + at.X_IDLE, load(step + at.X_IDLE) + 1)
    return 0


def _fill(step: int, frame: int, places: int, results: int) -> int:
    """Tell the frame where inputs and results are. A number lies in a cell of the frame: what the
    walker takes for an array is the cell's address, kept where an array keeps its data's."""
    slots = load(frame + at.F_SLOTS)
    cell = load(frame + at.F_CELLS)
    count = load(step + at.X_INPUTS)
    i = 0
    while i < count:
        array = load(places)
        if array == 0:
            store(cell + 8, load(places + 8))
            store(cell, cell + 8)
            array = cell - 16
        store(slots + 8 * i, array)
        places += 16
        cell += 16
        i += 1
    row = load(step + at.X_RESULTS)
    i = 0
    while i < load(step + at.X_RESULT_COUNT):
        if load(row + at.R_DESCR) != 0:
            store(slots + 8 * load(row + at.R_SLOT), load(results + 8 * i))
        row += at.R_WORDS
        i += 1
    return 0


def _release_variables(api: int, step: int, end: int) -> int:
    row = load(step + at.X_VARIABLES)
    while row < end:
        given = call(load(api + at.CALL_NO_ARGS), load(row + at.V_RELEASE))
        if given != 0:
            call(load(api + at.DECREF), given)
        row += at.V_WORDS
    return 0


def _take_variables(api: int, step: int, frame: int) -> int:
    """Lock the variables and tell the frame where they are; ELSEWHERE if one has no value yet."""
    row = load(step + at.X_VARIABLES)
    end = load(step + at.X_VARIABLES_END)
    slots = load(frame + at.F_SLOTS)
    while row < end:
        taken = call(load(api + at.CALL_NO_ARGS), load(row + at.V_ACQUIRE))
        if taken == 0:
            _release_variables(api, step, row)
            return at.RAISED
        call(load(api + at.DECREF), taken)
        array = load(load(row + at.V_OBJECT) + load(api + at.VARIABLE_ARRAY))
        if array == 0 or array == load(api + at.NONE):
            _release_variables(api, step, row + at.V_WORDS)
            return at.ELSEWHERE
        store(slots + 8 * load(row + at.V_SLOT), array)
        row += at.V_WORDS
    return at.RAN


def _hold(function: int, places: int, count: int) -> int:
    i = 0
    while i < count:
        if load(places + 16 * i) != 0:
            call(function, load(places + 16 * i))
        i += 1
    return 0


def _run(api: int, step: int, frame: int) -> int:
    """The step itself; 1 + the row at which it stopped, or 0."""
    if load(step + at.X_RELEASE) != 0:
        thread = call(load(api + at.SAVE_THREAD))
        call(load(step + at.X_WALKER), load(frame + at.F_HEADER), 0, 0, 0)
        call(load(api + at.RESTORE_THREAD), thread)
    else:
        call(load(step + at.X_WALKER), load(frame + at.F_HEADER), 0, 0, 0)
    return load(load(frame + at.F_FAILED)) + 1


def _raise(api: int, function: int, first: int, second: int, third: int) -> int:
    """Call a Python function that raises; what it returns is dropped."""
    words = stack(3)
    store(words, call(load(api + at.LONG_FROM), first))
    store(words + 8, call(load(api + at.LONG_FROM), second))
    store(words + 16, call(load(api + at.LONG_FROM), third))
    made = call(load(api + at.VECTORCALL), function, words, 3, 0)
    if made != 0:
        call(load(api + at.DECREF), made)
    drop(api, words, 3)
    return at.RAISED


def execute(api: int, step: int, places: int, results: int) -> int:
    """Run the step. `places`: (array, or 0 and the bits of a number) of each input. Fills
    `results` with new arrays when it RAN."""
    frame = _take_frame(api, step)
    if frame == 0:
        return at.RAISED
    if _new_results(api, step, results) == 0:
        _give_frame(api, step, frame)
        return _raise(api, load(step + at.X_NO_MEMORY), 0, 0, 0)
    _fill(step, frame, places, results)
    inputs = load(step + at.X_INPUTS)
    _hold(load(api + at.INCREF), places, inputs)  # others may drop them without the GIL
    stopped = 0
    status = 0
    index = 0
    state = _take_variables(api, step, frame)
    if state == at.RAN:
        stopped = _run(api, step, frame)
        status = load(load(frame + at.F_STATUS))
        index = load(load(frame + at.F_STATUS) + 8)
        _release_variables(api, step, load(step + at.X_VARIABLES_END))
    if stopped != 0:  # with the frame goes what its stacks hold
        call(load(api + at.DECREF), load(frame + at.F_OWNER))
    else:
        _give_frame(api, step, frame)
    if state != at.RAN or stopped != 0:
        drop(api, results, load(step + at.X_RESULT_COUNT))
    _hold(load(api + at.DECREF), places, inputs)
    if stopped != 0:
        return _raise(api, load(step + at.X_FAILED), stopped - 1, status, index)
    return state


def run_list(capsule: int, inputs: int) -> int:
    """A PyCFunction (METH_O) of a list of arrays; None if the step has to run elsewhere. `capsule`
    points to (API, step)."""
    words = load(capsule + at.CAPSULE_POINTER)
    api = load(words)
    step = load(words + 8)
    count = load(step + at.X_INPUTS)
    places = stack(2 * count + load(step + at.X_RESULT_COUNT) + 1)
    results = places + 16 * count
    i = 0
    while i < count:
        array = call(load(api + at.LIST_GET), inputs, i)
        if array == 0:
            return 0  # IndexError is set: a caller in weft gave too few
        if load(array + at.OBJECT_TYPE) != load(api + at.NDARRAY):
            return call(load(api + at.CALL_NO_ARGS), load(step + at.X_NOT_ARRAYS))
        store(places + 16 * i, array)
        i += 1
    state = execute(api, step, places, results)
    if state == at.RAISED:
        return 0
    if state == at.ELSEWHERE:
        call(load(api + at.INCREF), load(api + at.NONE))
        return load(api + at.NONE)
    return list_of(api, results, load(step + at.X_RESULT_COUNT))


def list_of(api: int, objects: int, count: int) -> int:
    made = call(load(api + at.LIST_NEW), count)
    i = 0
    while i < count:
        if made != 0:
            call32(load(api + at.LIST_SET), made, i, load(objects + 8 * i))
        i += 1
    return made
