"""Packets that native code takes and sends, in `weft.codegen.native_language`: never run by Python,
compiled once.

`take` reads a packet of a lane and does what it asks for, if it is a RUN of a small part that was
prepared for that, or a tensor that such a part waits for: it computes, sends and answers without
the interpreter. What it does not know it gives to Python as it came. `fan_out` sends the RUNs of a
step.

All of it runs with the GIL held, so nothing of what it looks at changes meanwhile; only a kernel
that takes long lets the GIL go, and its run is marked as busy for so long. Numbers of frames are
counted where Python counts them. A run that cannot go on here goes on in Python, at the function
where it stopped (`_resume`)."""

from __future__ import annotations

from weft.codegen.native_language import (
    call,
    call32,
    copy,
    load,
    load8,
    load16,
    load32,
    stack,
    store,
    store16,
    store32,
    word32,
)
from weft.runtime.cluster import packet_layout as to
from weft.runtime.native import layout as at


def _now(context: int) -> int:
    """The time in nanoseconds."""
    words = load(context + to.C_TIME)
    call32(load(context + to.C_CLOCK), to.MONOTONIC, words)
    return load(words) * 1000000000 + load(words + 8)


def _same(a: int, b: int, size: int) -> int:
    i = 0
    while i < size:
        if load8(a + i) != load8(b + i):
            return 0
        i += 1
    return 1


# ------------------------------------------------------------------------------------------ sending
def _can_send(api: int, context: int, link: int) -> int:
    """Whether packets may be sent there now, by this code."""
    if load(load(link + to.K_STATE)) == -1:
        return 0
    lock = load(link + to.K_LOCK)
    locked = call(load(context + to.C_LOCKED), lock, load(api + at.NO_ARGUMENTS), 0, 0)
    if locked == 0:
        call(load(api + at.ERR_CLEAR))
        return 0
    call(load(api + at.DECREF), locked)
    return locked == load(api + at.FALSE)


def _head(out: int, link: int, word: int, meta: int, flags: int, step: int) -> int:
    store32(out, word)
    store16(out + 4, meta)
    store16(out + 6, flags)
    store(out + 8, load(link + to.K_TOKEN))
    store(out + 16, load(link + to.K_INCARNATION))
    store(out + 24, step)
    return 0


def _push(context: int, link: int, size: int, key: int, offset: int) -> int:
    """Send the packet that lies in `C_OUT`, so many bytes of it; 0 if the peer takes none now."""
    out = load(context + to.C_OUT)
    numbers = load(link + to.K_SEQUENCE)
    sequence = load(numbers)
    store32(out + 32, key)
    store32(out + 36, sequence)
    store(out + 40, offset)
    descriptor = load(load(link + to.K_STATE))
    if call(load(context + to.C_SEND), descriptor, out, size, to.SEND_FLAGS) != size:
        return 0
    store(numbers, (sequence + 1) & 0xFFFFFFFF)
    counts = load(link + to.K_COUNTS)
    store(counts + to.SENT, load(counts + to.SENT) + 1)
    store(counts + to.SENT_BYTES, load(counts + to.SENT_BYTES) + size)
    return 1


def _input(api: int, run: int, pair: int) -> int:
    """What a function reads, borrowed."""
    row = load(pair)
    port = load(pair + 8)
    if port == to.OBJECT:
        return row
    value = load(run + to.T_VALUES + 8 * row)
    if port == to.WHOLE:
        return value
    return call(load(api + at.LIST_GET), value, port)


def _is_array(api: int, given: int, kind: int) -> int:
    """Whether it is an array of that type, which lies in memory as it would be sent."""
    if load(given + at.OBJECT_TYPE) != load(api + at.NDARRAY):
        return 0
    if load(given + at.ARRAY_DESCR) != load(kind + to.D_DESCR):
        return 0
    if (load32(given + at.ARRAY_FLAGS) & at.BEHAVED) != at.BEHAVED:
        return 0
    rank = load(kind + to.D_RANK)
    if load32(given + at.ARRAY_NDIM) != rank:
        return 0
    dims = load(given + at.ARRAY_DIMS)
    i = 0
    while i < rank:
        if load(dims + 8 * i) != load(load(kind + to.D_DIMS) + 8 * i):
            return 0
        i += 1
    return 1


def _send_value(context: int, run: int, act: int) -> int:
    api = load(context + to.C_API)
    link = load(act + to.A_LINK)
    array = _input(api, run, load(act + to.A_INPUTS))
    kind = load(act + to.A_TYPE)
    nbytes = load(kind + to.D_BYTES)
    if _is_array(api, array, kind) == 0:
        return 0
    if _can_send(api, context, link) == 0:
        return 0
    out = load(context + to.C_OUT)
    meta = load(kind + to.D_META)
    _head(out, link, to.TENSOR, meta, 0, load(run + to.T_STEP))
    copy(out + to.HEADER, load(kind + to.D_META_AT), meta)
    if nbytes != 0:
        copy(out + to.HEADER + meta, load(array + to.ARRAY_DATA), nbytes)
    if _push(context, link, to.HEADER + meta + nbytes, load(act + to.A_KEY), 0) == 0:
        return 0
    store(act + to.A_SENT, load(act + to.A_SENT) + 1)
    return 1


# ---------------------------------------------------------------------------------------- computing
def _compute(context: int, run: int, act: int) -> int:
    """0 with an exception set."""
    api = load(context + to.C_API)
    count = load(act + to.A_COUNT)
    given = call(load(api + at.LIST_NEW), count)
    if given == 0:
        return 0
    pair = load(act + to.A_INPUTS)
    i = 0
    while i < count:
        item = _input(api, run, pair + 16 * i)
        call(load(api + at.INCREF), item)
        call32(load(api + at.LIST_SET), given, i, item)
        i += 1
    words = stack(1)
    store(words, given)
    made = call(load(api + at.VECTORCALL), load(act + to.A_CALL), words, 1, 0)
    if made == load(api + at.NONE):  # a variable has no value: Python says which
        call(load(api + at.DECREF), made)
        made = call(load(api + at.VECTORCALL), load(act + to.A_SLOW), words, 1, 0)
    call(load(api + at.DECREF), given)
    if made == 0:
        return 0
    store(run + to.T_VALUES + 8 * load(act + to.A_ROW), made)
    return 1


def _error(api: int) -> int:
    """The exception that is set, which is none any more."""
    words = stack(3)
    call(load(api + at.ERR_FETCH), words, words + 8, words + 16)
    if load(words + 16) != 0:
        call(load(api + at.DECREF), load(words + 16))
    if load(words + 8) == 0:
        return load(words)  # its class
    call(load(api + at.DECREF), load(words))
    return load(words + 8)


def _resume(context: int, run: int, row: int, segment: int, act: int, error: int) -> int:
    """Go on in Python, which frees the run; act: -1 if all is done. Takes the reference to `error`.
    What that raises is set then."""
    api = load(context + to.C_API)
    words = stack(5)
    store(words, call(load(api + at.LONG_FROM), load(run + to.T_NUMBER)))
    store(words + 8, call(load(api + at.LONG_FROM), row))
    store(words + 16, call(load(api + at.LONG_FROM), segment))
    store(words + 24, call(load(api + at.LONG_FROM), act))
    if error == 0:
        error = load(api + at.NONE)
        call(load(api + at.INCREF), error)
    store(words + 32, error)
    step = load(run + to.T_STEP)
    made = call(load(api + at.VECTORCALL), load(context + to.C_RESUME), words, 5, 0)
    if made != 0:
        call(load(api + at.DECREF), made)
    else:
        saved = stack(3)
        call(load(api + at.ERR_FETCH), saved, saved + 8, saved + 16)
        if load(load(context + to.C_STEPS) + 8 * load(run + to.T_NUMBER)) == step:
            free_run(context, run)  # Ctrl-C came before Python did
        call(load(api + at.ERR_RESTORE), load(saved), load(saved + 8), load(saved + 16))
    i = 0
    while i < 5:
        call(load(api + at.DECREF), load(words + 8 * i))
        i += 1
    return 0


def _carry_out(context: int, run: int, row: int, number: int, segment: int) -> int:
    """Do what a segment does; 0 if that goes on in Python."""
    act = load(segment + to.S_ACTS)
    count = load(segment + to.S_COUNT)
    i = 0
    while i < count:
        if load(act + to.A_CALL) != 0:
            if _compute(context, run, act) == 0:
                return _resume(context, run, row, number, i, _error(load(context + to.C_API)))
        else:
            if _send_value(context, run, act) == 0:
                return _resume(context, run, row, number, i, 0)
        act += to.ACT_BYTES
        i += 1
    return 1


# --------------------------------------------------------------------------------------------- runs
def free_run(context: int, run: int) -> int:
    """Nothing is known of a run any more."""
    api = load(context + to.C_API)
    rows = load(load(run + to.T_PROGRAM) + to.P_ROWS)
    i = 0
    while i < rows:
        value = load(run + to.T_VALUES + 8 * i)
        if value != 0:
            store(run + to.T_VALUES + 8 * i, 0)
            call(load(api + at.DECREF), value)
        i += 1
    owner = load(run + to.T_OWNER)
    if owner != 0:
        store(run + to.T_OWNER, 0)
        call(load(api + at.DECREF), owner)
    store(load(context + to.C_STEPS) + 8 * load(run + to.T_NUMBER), 0)
    store(run + to.T_BUSY, 0)
    active = load(context + to.C_ACTIVE)
    store(active, load(active) - 1)
    return 0


def recall(context: int, step: int) -> int:
    """Have the run of a step go on in Python, where it waits; -1 if there is none, -2 if it is
    busy."""
    steps = load(context + to.C_STEPS)
    i = 0
    while i < to.RUNS:
        if step != 0 and load(steps + 8 * i) == step:
            run = load(context + to.C_RUNS) + to.RUN_BYTES * i
            if load(run + to.T_BUSY) != 0:
                return -2
            store(run + to.T_BUSY, 1)
            return _resume(context, run, -1, 0, -1, 0)
        i += 1
    return -1


def _count_run(program: int, seconds: int, worked: int) -> int:
    store(program + to.P_RUNS, load(program + to.P_RUNS) + 1)
    store(program + to.P_TIME, load(program + to.P_TIME) + seconds)
    waited = seconds - worked
    if waited > 0:
        store(program + to.P_WAITED, load(program + to.P_WAITED) + waited)
    bound = 0
    bounds = load(program + to.P_BOUNDS)
    while bound < to.BOUNDS and load(bounds + 8 * bound) < seconds:
        bound += 1
    bucket = program + to.P_BUCKETS + 8 * bound
    store(bucket, load(bucket) + 1)
    return 0


def _finish(context: int, run: int, begun: int) -> int:
    """Answer the session."""
    program = load(run + to.T_PROGRAM)
    link = load(program + to.P_DONE)
    if load(run + to.T_OWNER) != 0 or load(program + to.P_RESULTS) != 0:
        store(run + to.T_WORKED, load(run + to.T_WORKED) + _now(context) - begun)
        return _resume(context, run, -1, 0, -1, 0)
    if _can_send(load(context + to.C_API), context, link) == 0:
        return _resume(context, run, -1, 0, -1, 0)
    _head(load(context + to.C_OUT), link, to.DONE, 0, 0, load(run + to.T_STEP))
    if _push(context, link, to.HEADER, load(program + to.P_HANDLE), 0) == 0:
        return _resume(context, run, -1, 0, -1, 0)
    now = _now(context)
    _count_run(program, now - load(run + to.T_BEGUN), load(run + to.T_WORKED) + now - begun)
    return free_run(context, run)


def _end_turn(context: int, run: int, begun: int) -> int:
    """All is done that can be done now."""
    if load(run + to.T_TODO) == 0:
        return _finish(context, run, begun)
    store(run + to.T_WORKED, load(run + to.T_WORKED) + _now(context) - begun)
    store(run + to.T_BUSY, 0)
    return 0


def _new_array(api: int, kind: int, data: int) -> int:
    """An array of its own with these bytes; 0 if there is no memory for it."""
    descr = load(kind + to.D_DESCR)
    call(load(api + at.INCREF), descr)
    made = call(
        load(api + at.ARRAY_NEW), load(api + at.NDARRAY), descr, load(kind + to.D_RANK),
        load(kind + to.D_DIMS), 0, 0, 0, 0,
    )  # fmt: skip
    if made == 0:
        call(load(api + at.ERR_CLEAR))
        return 0
    if load(kind + to.D_BYTES) != 0:
        copy(load(made + to.ARRAY_DATA), data, load(kind + to.D_BYTES))
    return made


def _accept(link: int, sequence: int, size: int) -> int:
    """The packet is taken."""
    store(load(link + to.K_EXPECTED), (sequence + 1) & 0xFFFFFFFF)
    counts = load(link + to.K_COUNTS)
    store(counts + to.CAME, load(counts + to.CAME) + 1)
    store(counts + to.CAME_BYTES, load(counts + to.CAME_BYTES) + size)
    return 0


def _is_next(link: int, sequence: int) -> int:
    if load(load(link + to.K_STATE) + 8) == 0:
        return 0
    return load(load(link + to.K_EXPECTED)) == sequence


def _is_known(context: int, step: int) -> int:
    """Whether Python knows something of a step."""
    api = load(context + to.C_API)
    number = call(load(context + to.C_UNSIGNED), step)
    if number == 0:
        call(load(api + at.ERR_CLEAR))
        return 1
    found = call(load(api + at.DICT_GET), load(context + to.C_KNOWN), number)
    call(load(api + at.DECREF), number)
    return found != 0


def _find_program(context: int, source: int, handle: int) -> int:
    row = load(context + to.C_PROGRAMS)
    end = row + to.PROGRAM_ROW * load(load(context + to.C_COUNT))
    while row < end:
        if load(row) == source and load(row + 8) == handle:
            return load(row + 16)
        row += to.PROGRAM_ROW
    return 0


def _free_slot(context: int, step: int) -> int:
    """A run that is nobody's; 0 if there is none, or the step runs already."""
    steps = load(context + to.C_STEPS)
    found = 0
    i = 0
    while i < to.RUNS:
        held = load(steps + 8 * i)
        if held == step:
            return 0
        if held == 0 and found == 0:
            found = load(context + to.C_RUNS) + to.RUN_BYTES * i
        i += 1
    return found


def _may_run(context: int, program: int, step: int, low: int) -> int:
    if load(program + to.P_VALID) == 0 or load(context + to.C_OFF) != 0:
        return 0
    if load(load(load(program + to.P_DONE) + to.K_STATE)) == -1:
        return 0
    known = load(load(program + to.P_LOW))
    if low - known >= to.FORGET_EVERY or step - known <= 0:
        return 0
    return _is_known(context, step) == 0


def _begin(context: int, program: int, run: int, step: int, begun: int) -> int:
    store(run + to.T_STEP, step)
    store(run + to.T_PROGRAM, program)
    store(run + to.T_TODO, load(program + to.P_EDGE_COUNT))
    store(run + to.T_CAME, 0)
    store(run + to.T_BEGUN, begun)
    store(run + to.T_WORKED, 0)
    store(run + to.T_BUSY, 1)
    store(program + to.P_BEGUN, load(program + to.P_BEGUN) + 1)
    i = 0
    while i < load(program + to.P_LEFT_COUNT):
        store(run + to.T_LEFT + 8 * i, load(load(program + to.P_LEFT) + 8 * i))
        i += 1
    store(load(context + to.C_STEPS) + 8 * load(run + to.T_NUMBER), step)
    active = load(context + to.C_ACTIVE)
    store(active, load(active) + 1)
    return 0


def _take_run(context: int, packet: int, size: int) -> int:
    """A RUN; 0 if Python has to look at it."""
    program = _find_program(context, load(packet + 8), word32(packet + 32))
    if program == 0:
        return 0
    meta = load(program + to.P_META)
    sequence = word32(packet + 36)
    step = load(packet + 24)
    link = load(program + to.P_DONE)
    if load16(packet + 4) != meta or load16(packet + 6) != load(program + to.P_FLAGS):
        return 0
    if size != to.HEADER + meta + load(program + to.P_FEED_BYTES):
        return 0
    if _is_next(link, sequence) == 0:
        return 0
    if _same(packet + to.HEADER, load(program + to.P_META_AT), meta) == 0:
        return 0
    if _may_run(context, program, step, load(packet + 40)) == 0:
        return 0
    begun = _now(context)
    if begun < load(context + to.C_WATCHED):
        return 0
    run = _free_slot(context, step)
    if run == 0:
        return 0
    _begin(context, program, run, step, begun)
    feed = load(program + to.P_FEEDS)
    data = packet + to.HEADER + meta
    i = 0
    while i < load(program + to.P_FEED_COUNT):
        made = _new_array(load(context + to.C_API), load(feed + 8), data)
        if made == 0:
            free_run(context, run)
            return 0
        store(run + to.T_VALUES + 8 * load(feed), made)
        data += load(load(feed + 8) + to.D_BYTES)
        feed += 16
        i += 1
    _accept(link, sequence, size)
    store(program + to.P_LAST, step)
    if _carry_out(context, run, -1, 0, load(program + to.P_FIRST)) != 0:
        _end_turn(context, run, begun)
    return 1


def begin_run(context: int, program: int, step: int, owner: int, feeds: int) -> int:
    """Begin a run, with a list of arrays; 0 if Python has to. owner: is told of its end."""
    api = load(context + to.C_API)
    if load(program + to.P_VALID) == 0 or load(context + to.C_OFF) != 0:
        return 0
    begun = _now(context)
    if begun < load(context + to.C_WATCHED) or _is_known(context, step) != 0:
        return 0
    run = _free_slot(context, step)
    if run == 0:
        return 0
    _begin(context, program, run, step, begun)
    call(load(api + at.INCREF), owner)
    store(run + to.T_OWNER, owner)
    feed = load(program + to.P_FEEDS)
    i = 0
    while i < load(program + to.P_FEED_COUNT):
        given = call(load(api + at.LIST_GET), feeds, i)
        call(load(api + at.INCREF), given)
        store(run + to.T_VALUES + 8 * load(feed), given)
        feed += 16
        i += 1
    if _carry_out(context, run, -1, 0, load(program + to.P_FIRST)) != 0:
        _end_turn(context, run, begun)
    return 1


def _go_on(context: int, run: int, edge: int, begun: int) -> int:
    """What an edge brings has come."""
    row = load(edge + to.E_ROW)
    pointer = load(edge + to.E_SEGMENTS)
    i = 0
    while i < load(edge + to.E_SEGMENT_COUNT):
        segment = load(pointer + 8 * i)
        place = load(segment + to.S_PLACE)
        ready = 1
        if place >= 0:
            left = load(run + to.T_LEFT + 8 * place) - 1
            store(run + to.T_LEFT + 8 * place, left)
            ready = left == 0
        if ready != 0:
            if _carry_out(context, run, row, i, segment) == 0:
                return 0
        i += 1
    return _end_turn(context, run, begun)


def _take_edge(context: int, run: int, edge: int, packet: int, size: int) -> int:
    bit = load(edge + to.E_BIT)
    link = load(edge + to.E_LINK)
    kind = load(edge + to.E_TYPE)
    meta = load(kind + to.D_META)
    sequence = word32(packet + 36)
    if (load(run + to.T_CAME) & bit) != 0 or _is_next(link, sequence) == 0:
        return 0
    if load16(packet + 4) != meta or size != to.HEADER + meta + load(kind + to.D_BYTES):
        return 0
    if _same(packet + to.HEADER, load(kind + to.D_META_AT), meta) == 0:
        return 0
    begun = _now(context)
    made = _new_array(load(context + to.C_API), kind, packet + to.HEADER + meta)
    if made == 0:
        return 0
    _accept(link, sequence, size)
    store(run + to.T_CAME, load(run + to.T_CAME) | bit)
    store(run + to.T_TODO, load(run + to.T_TODO) - 1)
    store(run + to.T_VALUES + 8 * load(edge + to.E_ROW), made)
    store(run + to.T_BUSY, 1)
    _go_on(context, run, edge, begun)
    return 1


def _take_tensor(context: int, packet: int, size: int) -> int:
    """A tensor; 0 if Python has to look at it."""
    if load(load(context + to.C_ACTIVE)) == 0 or load16(packet + 6) != 0:
        return 0
    step = load(packet + 24)
    steps = load(context + to.C_STEPS)
    number = 0
    while number < to.RUNS and load(steps + 8 * number) != step:
        number += 1
    if number == to.RUNS:
        return 0
    run = load(context + to.C_RUNS) + to.RUN_BYTES * number
    if load(run + to.T_BUSY) != 0:
        return 0
    source = load(packet + 8)
    key = word32(packet + 32)
    edge = load(load(run + to.T_PROGRAM) + to.P_EDGES)
    i = 0
    while i < load(load(run + to.T_PROGRAM) + to.P_EDGE_COUNT):
        if load(edge + to.E_KEY) == key and load(edge + to.E_SOURCE) == source:
            return _take_edge(context, run, edge, packet, size)
        edge += to.EDGE_BYTES
        i += 1
    return 0


def take(capsule: int, given: int) -> int:
    """A PyCFunction (METH_O) of a lane's descriptor: `comm.protocol.TakePacket`."""
    context = load(capsule + at.CAPSULE_POINTER)
    api = load(context + to.C_API)
    packet = load(context + to.C_IN)
    descriptor = call(load(api + at.LONG_AS), given)
    size = call(load(context + to.C_RECV), descriptor, packet, to.PACKET_BYTES, to.DONTWAIT)
    if size < 0:
        if load32(call(load(context + to.C_ERRNO))) == to.AGAIN:
            call(load(api + at.INCREF), load(api + at.NONE))
            return load(api + at.NONE)
        size = 0
    if size >= to.HEADER and load(packet + 16) == load(context + to.C_ME):
        word = word32(packet)
        taken = 0
        if word == to.TENSOR:
            taken = _take_tensor(context, packet, size)
        elif word == to.RUN:
            taken = _take_run(context, packet, size)
        if taken != 0:
            if call(load(api + at.ERR_OCCURRED)) != 0:
                call(load(api + at.ERR_CLEAR))  # Python has said it, and is not to end for that
            call(load(api + at.INCREF), load(api + at.TRUE))
            return load(api + at.TRUE)
    return call(load(context + to.C_BYTES), packet, size)


# ---------------------------------------------------------------------------------------- sessions
def _send_run(context: int, row: int, step: int, low: int, feeds: int) -> int:
    """One RUN; 0 if Python has to send it."""
    api = load(context + to.C_API)
    link = load(row + to.G_LINK)
    out = load(context + to.C_OUT)
    meta = load(row + to.G_META)
    if _can_send(api, context, link) == 0:
        return 0
    flags = 0
    if meta != 0:
        flags = to.BUFFERS
        copy(out + to.HEADER, load(row + to.G_META_AT), meta)
    _head(out, link, to.RUN, meta, flags, step)
    size = to.HEADER + meta
    feed = load(row + to.G_FEEDS)
    i = 0
    while i < load(row + to.G_FEED_COUNT):
        array = call(load(api + at.LIST_GET), feeds, load(feed))
        kind = load(feed + 8)
        if array == 0:
            call(load(api + at.ERR_CLEAR))
            return 0
        if _is_array(api, array, kind) == 0:
            return 0
        nbytes = load(kind + to.D_BYTES)
        if nbytes != 0:
            copy(out + size, load(array + to.ARRAY_DATA), nbytes)
        size += nbytes
        feed += 16
        i += 1
    return _push(context, link, size, load(row + to.G_HANDLE), low)


def fan_out(context: int, rows: int, count: int, step: int, low: int, feeds: int) -> int:
    """Send the RUNs of a step, whose feeds are in a list, until one cannot be sent here: how many
    were."""
    i = 0
    while i < count:
        if _send_run(context, rows + to.FAN_BYTES * i, step, low, feeds) == 0:
            return i
        i += 1
    return count
