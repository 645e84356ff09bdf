"""Native call path, in `weft.codegen.native_language`: never run by Python, compiled once.

`vectorcall` is what CPython calls for `f(x)`: it finds the specialisation whose signature the
arguments have, runs its step and makes the tensors; what it does not know it leaves to Python.
Nothing in it runs Python code before the step holds what it uses. `run_list` is
`Executable.__call__`. All of it runs with the GIL held, except the step itself where it is long
(X_RELEASE); what it uses of CPython and NumPy comes in by address.

The memory of results is blocks, kept for reuse. A block is aligned to a cache line, a large one to
a huge page plus a cache line; the words before it are its size class and, while it is free, the
next free block of the class. Classes are a quarter of a power of two apart. The functions are
NumPy's allocator interface (NEP 49) and run with the GIL held: arrays own their block, and give it
back when they die."""

from __future__ import annotations

from weft.codegen.native_language import call, call32, load, load32, stack, store
from weft.runtime.native import layout as at


def capacity_of(number: int) -> int:
    return ((4 + (number & 3)) << (number >> 2)) << 4


def class_of(size: int) -> int:
    number = 0
    while number < at.POOL_CLASSES and capacity_of(number) < size:
        number += 1
    return number


def pool_trim(pool: int) -> int:
    """Give all free blocks back to the system."""
    number = 0
    while number < at.POOL_CLASSES:
        block = load(pool + at.P_HEADS + 8 * number)
        store(pool + at.P_HEADS + 8 * number, 0)
        while block != 0:
            following = load(block + at.BLOCK_NEXT)
            call(load(pool + at.P_FREE), block - at.BLOCK_HEADER)
            block = following
        number += 1
    store(pool + at.P_KEPT, 0)
    return 0


def take_block(pool: int, number: int) -> int:
    if number >= at.POOL_CLASSES:  # no machine has so much
        return 0
    capacity = capacity_of(number)
    block = load(pool + at.P_HEADS + 8 * number)
    if block != 0:
        store(pool + at.P_HEADS + 8 * number, load(block + at.BLOCK_NEXT))
        store(pool + at.P_KEPT, load(pool + at.P_KEPT) - capacity)
        return block
    alignment = 64
    if capacity >= at.HUGE:
        alignment = at.HUGE_PAGE
    size = (capacity + at.BLOCK_HEADER + alignment - 1) & (0 - alignment)
    raw = call(load(pool + at.P_ALIGNED_ALLOC), alignment, size)
    if raw == 0:
        pool_trim(pool)
        raw = call(load(pool + at.P_ALIGNED_ALLOC), alignment, size)
        if raw == 0:
            return 0
    if capacity >= at.HUGE:
        if load(pool + at.P_MADVISE) != 0:
            call32(load(pool + at.P_MADVISE), raw, size, at.MADV_HUGEPAGE)
    block = raw + at.BLOCK_HEADER
    store(block + at.BLOCK_CLASS, number)
    return block


def pool_malloc(pool: int, size: int) -> int:
    """NumPy's malloc."""
    return take_block(pool, class_of(size))


def pool_calloc(pool: int, count: int, size: int) -> int:
    """NumPy's calloc."""
    block = pool_malloc(pool, count * size)
    if block != 0:
        call(load(pool + at.P_MEMSET), block, 0, count * size)
    return block


def pool_free(pool: int, block: int, size: int) -> int:
    """NumPy's free: the block is kept for the next result of its class, within the limit."""
    if block == 0:
        return 0
    number = load(block + at.BLOCK_CLASS)
    capacity = capacity_of(number)
    limit = load(pool + at.P_LIMIT)
    if capacity > limit:
        call(load(pool + at.P_FREE), block - at.BLOCK_HEADER)
        return 0
    if load(pool + at.P_KEPT) + capacity > limit:
        pool_trim(pool)
    store(block + at.BLOCK_NEXT, load(pool + at.P_HEADS + 8 * number))
    store(pool + at.P_HEADS + 8 * number, block)
    store(pool + at.P_KEPT, load(pool + at.P_KEPT) + capacity)
    return 0


def pool_realloc(pool: int, block: int, size: int) -> int:
    """NumPy's realloc, for `ndarray.resize`."""
    if block == 0:
        return pool_malloc(pool, size)
    held = capacity_of(load(block + at.BLOCK_CLASS))
    if size <= held:
        return block
    made = pool_malloc(pool, size)
    if made != 0:
        call(load(pool + at.P_MEMCPY), made, block, held)
        pool_free(pool, block, held)
    return made


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


def _take_activation(api: int, step: int) -> int:
    """An activation that no other call uses; 0 with an exception set."""
    activation = load(step + at.X_ACTIVATIONS)
    if activation != 0:
        store(step + at.X_ACTIVATIONS, load(activation + at.F_NEXT))
        store(step + at.X_IDLE, load(step + at.X_IDLE) - 1)
        return activation
    made = call(load(api + at.CALL_NO_ARGS), load(step + at.X_NEW_ACTIVATION))
    if made == 0:
        return 0
    activation = call(load(api + at.LONG_AS), made)
    call(load(api + at.DECREF), made)
    return activation


def _give_activation(api: int, step: int, activation: int) -> int:
    if load(step + at.X_IDLE) >= load(step + at.X_MOST_IDLE):
        return call(load(api + at.DECREF), load(activation + at.F_OWNER))
    store(activation + at.F_NEXT, load(step + at.X_ACTIVATIONS))
    store(step + at.X_ACTIVATIONS, activation)
    store(step + at.X_IDLE, load(step + at.X_IDLE) + 1)
    return 0


def _fill(step: int, activation: int, places: int, results: int) -> int:
    """Tell the activation where inputs and results are. A number lies in a cell of the activation:
    what the walker takes for an array is the cell's address, kept where an array keeps its
    data's."""
    slots = load(activation + at.F_SLOTS)
    cell = load(activation + at.F_CELLS)
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


def _called(api: int, function: int) -> int:
    """Call a Python function without arguments, whose result is dropped; 0 if it raised."""
    given = call(load(api + at.CALL_NO_ARGS), function)
    if given == 0:
        return 0
    call(load(api + at.DECREF), given)
    return 1


def _put_by(api: int, words: int) -> int:
    """Take the exception that is set into three words: no call may begin with one."""
    call(load(api + at.ERR_FETCH), words, words + 8, words + 16)
    return 0


def _put_back(api: int, words: int) -> int:
    call(load(api + at.ERR_RESTORE), load(words), load(words + 8), load(words + 16))
    return 0


def _is_read(row: int) -> int:
    """Whether any thread reads the variable."""
    words = load(row + at.V_DEPTH)
    cells = load(words + at.CELL_1) | load(words + at.CELL_2)
    more = load(words + at.CELL_3) | load(words + at.CELL_4)
    return load(load(row + at.V_READERS) + at.LIST_LENGTH) | cells | more


def _gate(api: int, row: int, function: int) -> int:
    """Call a function of a gate, which CPython has in C: 0 if it raised. By any of its conventions
    it finds its object first, and then no arguments."""
    given = call(function, load(row + at.V_GATE), load(api + at.NO_ARGUMENTS), 0, 0)
    if given == 0:
        return 0
    call(load(api + at.DECREF), given)
    return 1


def _begin_write(api: int, row: int) -> int:
    """As `VariableLock.acquire`; 0 with an exception set."""
    depth = load(row + at.V_DEPTH)
    if _is_read(row) != 0:  # perhaps by this thread
        return _called(api, load(row + at.V_ACQUIRE))
    if _gate(api, row, load(api + at.GATE_ACQUIRE)) == 0:
        return 0
    store(depth, load(depth) + 1)
    if _is_read(row) == 0:
        return 1
    taken = _called(api, load(row + at.V_ACQUIRE))  # once more, which waits for the readers
    if taken != 0:
        _end(api, row, 0)
        return 1
    words = stack(3)
    _put_by(api, words)
    _end(api, row, 0)
    _put_back(api, words)
    return 0


def _begin(api: int, row: int, thread: int) -> int:
    """Lock a variable; 0 with an exception set."""
    if load(row + at.V_GATE) != 0:
        return _begin_write(api, row)
    words = load(row + at.V_DEPTH)
    if load(words + at.DEPTH) == 0:
        cell = words + at.CELL_1
        while cell < words + at.CELLS_END:
            if load(cell) == 0:
                store(cell, thread)
                return 1
            cell += 8
    return _called(api, load(row + at.V_ACQUIRE))


def _end(api: int, row: int, thread: int) -> int:
    depth = load(row + at.V_DEPTH)
    if load(row + at.V_GATE) != 0:
        store(depth, load(depth) - 1)
        return _gate(api, row, load(api + at.GATE_RELEASE))
    if load(depth) == 0:  # else somebody waits for the last reader
        cell = depth + at.CELL_1
        while cell < depth + at.CELLS_END:
            if load(cell) == thread:
                store(cell, 0)
                return 0
            cell += 8
    _called(api, load(row + at.V_RELEASE))
    return 0


def _release_variables(api: int, step: int, activation: int, end: int, thread: int) -> int:
    row = load(step + at.X_VARIABLES)
    slots = load(activation + at.F_SLOTS)
    while row < end:
        call(load(api + at.DECREF), load(slots + 8 * load(row + at.V_SLOT)))
        _end(api, row, thread)
        row += at.V_WORDS
    return 0


def _take_variables(api: int, step: int, activation: int, thread: int) -> int:
    """Lock the variables and tell the activation where they are; ELSEWHERE if one has no value
    yet."""
    row = load(step + at.X_VARIABLES)
    end = load(step + at.X_VARIABLES_END)
    slots = load(activation + at.F_SLOTS)
    while row < end:
        if _begin(api, row, thread) == 0:
            words = stack(3)
            _put_by(api, words)
            _release_variables(api, step, activation, row, thread)
            _put_back(api, words)
            return at.RAISED
        array = load(load(row + at.V_OBJECT) + load(api + at.VARIABLE_ARRAY))
        if array == 0 or array == load(api + at.NONE):
            _release_variables(api, step, activation, row, thread)
            _end(api, row, thread)
            return at.ELSEWHERE
        call(load(api + at.INCREF), array)  # Python that the step calls may take it away
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


def _run(api: int, step: int, activation: int) -> int:
    """The step itself; 1 + the row at which it stopped, or 0."""
    if load(step + at.X_RELEASE) != 0:
        thread = call(load(api + at.SAVE_THREAD))
        call(load(step + at.X_WALKER), load(activation + at.F_HEADER), 0, 0, 0)
        call(load(api + at.RESTORE_THREAD), thread)
    else:
        call(load(step + at.X_WALKER), load(activation + at.F_HEADER), 0, 0, 0)
    return load(load(activation + at.F_FAILED)) + 1


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
    activation = _take_activation(api, step)
    if activation == 0:
        return at.RAISED
    if _new_results(api, step, results) == 0:
        _give_activation(api, step, activation)
        return _raise(api, load(step + at.X_NO_MEMORY), 0, 0, 0)
    _fill(step, activation, places, results)
    inputs = load(step + at.X_INPUTS)
    _hold(load(api + at.INCREF), places, inputs)  # others may drop them without the GIL
    stopped = 0
    status = 0
    index = 0
    state = at.RAN
    thread = 0
    last = load(step + at.X_VARIABLES_END)
    if load(step + at.X_VARIABLES) < last:
        thread = call(load(api + at.THREAD_IDENT))
        state = _take_variables(api, step, activation, thread)
    if state == at.RAN:
        stopped = _run(api, step, activation)
        status = load(load(activation + at.F_STATUS))
        index = load(load(activation + at.F_STATUS) + 8)
        _release_variables(api, step, activation, last, thread)
    if stopped == 0:
        _give_activation(api, step, activation)
    if state != at.RAN or stopped != 0:
        drop(api, results, load(step + at.X_RESULT_COUNT))
    _hold(load(api + at.DECREF), places, inputs)
    if stopped != 0:
        state = _raise(api, load(step + at.X_FAILED), stopped - 1, status, index)
        # now that nobody uses its memory; with it goes what its stacks hold
        call(load(api + at.DECREF), load(activation + at.F_OWNER))
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


def _leaf(api: int, leaf: int, given: int, place: int) -> int:
    """Whether `given` is what the signature says; if so, where it is goes to `place`."""
    kind = load(leaf + at.L_KIND)
    cls = load(given + at.OBJECT_TYPE)
    store(place, 0)
    if kind == at.LEAF_ARRAY:
        array = given
        if cls != load(api + at.NDARRAY):
            if cls == load(leaf + at.L_SCALAR):
                store(place + 8, load(given + at.SCALAR_VALUE))
                return 1
            if cls != load(api + at.TENSOR):
                return 0
            array = load(given + load(api + at.TENSOR_DATA))
            if array == 0:
                return 0
            if load(array + at.OBJECT_TYPE) != load(api + at.NDARRAY):
                return 0  # None: a symbolic tensor
            if load(given + load(api + at.TENSOR_WEAK)) != load(api + at.FALSE):
                return 0
        if load(array + at.ARRAY_DESCR) != load(leaf + at.L_DESCR):
            return 0
        ndim = load(leaf + at.L_NDIM)
        if load32(array + at.ARRAY_NDIM) != ndim:
            return 0
        if (load32(array + at.ARRAY_FLAGS) & at.BEHAVED) != at.BEHAVED:
            return 0
        dims = load(array + at.ARRAY_DIMS)
        i = 0
        while i < ndim:
            if load(dims + 8 * i) != load(leaf + at.L_DIMS + 8 * i):
                return 0
            i += 1
        store(place, array)
        return 1
    return _number(api, kind, cls, given, place)


def _number(api: int, kind: int, cls: int, given: int, place: int) -> int:
    """The bits of a Python number in the dtype that `kind` has."""
    if kind == at.LEAF_FLOAT:
        if cls != load(api + at.TYPE_FLOAT):
            return 0
        store(place + 8, load(given + at.FLOAT_VALUE))
        return 1
    if kind == at.LEAF_BOOL:
        if cls != load(api + at.TYPE_BOOL):
            return 0
        store(place + 8, given == load(api + at.TRUE))
        return 1
    if cls != load(api + at.TYPE_INT):
        return 0
    value = call(load(api + at.LONG_AS), given)
    if value == -1:
        if call(load(api + at.ERR_OCCURRED)) != 0:  # beyond int64
            call(load(api + at.ERR_CLEAR))
            return 0
    store(place + 8, value)
    return 1


def _children(api: int, row: int, given: int, registers: int) -> int:
    """Take a container apart if it is as the signature says; its children go to registers."""
    code = load(row)
    cls = load(given + at.OBJECT_TYPE)
    first = registers + 8 * load(row + 24)
    i = 0
    if code == at.MATCH_DICT:
        keys = load(row + 16)
        count = call(load(api + at.TUPLE_SIZE), keys)
        if cls != load(api + at.TYPE_DICT):
            return 0
        if call(load(api + at.DICT_SIZE), given) != count:
            return 0
        while i < count:
            found = call(load(api + at.DICT_GET), given, call(load(api + at.TUPLE_GET), keys, i))
            if found == 0:
                call(load(api + at.ERR_CLEAR))
                return 0
            store(first + 8 * i, found)
            i += 1
        return 1
    getter = load(api + at.TUPLE_GET)
    sizer = load(api + at.TUPLE_SIZE)
    wanted = load(api + at.TYPE_TUPLE)
    if code == at.MATCH_LIST:
        getter = load(api + at.LIST_GET)
        sizer = load(api + at.LIST_SIZE)
        wanted = load(api + at.TYPE_LIST)
    if cls != wanted:
        return 0
    if call(sizer, given) != load(row + 16):
        return 0
    while i < load(row + 16):
        store(first + 8 * i, call(getter, given, i))
        i += 1
    return 1


def _matches(api: int, entry: int, args: int, registers: int, places: int) -> int:
    """Whether the arguments have the signature of `entry`; their arrays go to `places`."""
    i = 0
    while i < load(entry + at.E_ARGUMENTS):
        store(registers + 8 * i, load(args + 8 * i))
        i += 1
    row = load(entry + at.E_PROGRAM)
    end = load(entry + at.E_PROGRAM_END)
    while row < end:
        code = load(row)
        given = load(registers + 8 * load(row + 8))
        good = 0
        if code == at.MATCH_LEAF:
            good = _leaf(api, load(row + 16), given, places + 16 * load(row + 24))
        elif code == at.MATCH_SAME:
            good = given == load(row + 16)
        elif code == at.MATCH_NONE:
            good = given == load(api + at.NONE)
        else:
            good = _children(api, row, given, registers)
        if good == 0:
            return 0
        row += 32
    return 1


# ---------------------------------------------------------------------------------------- results
def _tensor(api: int, array: int, weak: int) -> int:
    """A Tensor that takes over the reference to `array`."""
    made = call(load(api + at.TYPE_ALLOC), load(api + at.TENSOR), 0)
    if made == 0:
        return 0
    none = load(api + at.NONE)
    call(load(api + at.INCREF), none)
    call(load(api + at.INCREF), none)
    call(load(api + at.INCREF), weak)
    store(made + load(api + at.TENSOR_DATA), array)
    store(made + load(api + at.TENSOR_VALUE), none)
    store(made + load(api + at.TENSOR_TRACE), none)
    store(made + load(api + at.TENSOR_WEAK), weak)
    return made


def _join(api: int, row: int, first: int) -> int:
    """The container of the objects from `first` on, whose references it takes over."""
    code = load(row)
    count = load(row + 8)
    i = 0
    if code == at.PACK_DICT:
        made = call(load(api + at.DICT_NEW))
        while i < count:
            key = call(load(api + at.TUPLE_GET), load(row + 16), i)
            call32(load(api + at.DICT_SET), made, key, load(first + 8 * i))
            call(load(api + at.DECREF), load(first + 8 * i))
            i += 1
        return made
    maker = load(api + at.TUPLE_NEW)
    setter = load(api + at.TUPLE_SET)
    if code == at.PACK_LIST:
        maker = load(api + at.LIST_NEW)
        setter = load(api + at.LIST_SET)
    made = call(maker, count)
    while i < count:
        call32(setter, made, i, load(first + 8 * i))
        i += 1
    return made


def _pack(api: int, entry: int, results: int, objects: int) -> int:
    """The nested result: a stack machine, operands before their container. `objects`: its stack.

    0 with an exception set where CPython has no memory for an object of some bytes; what was made
    so far is lost then.
    """
    if load(entry + at.E_PACKER) != 0:
        words = stack(1)
        step = load(entry + at.E_STEP)
        store(words, list_of(api, results, load(step + at.X_RESULT_COUNT)))
        made = call(load(api + at.VECTORCALL), load(entry + at.E_PACKER), words, 1, 0)
        call(load(api + at.DECREF), load(words))
        return made
    row = load(entry + at.E_PACK)
    end = load(entry + at.E_PACK_END)
    top = objects
    while row < end:
        if load(row) == at.PACK_TENSOR:
            made = _tensor(api, load(results + 8 * load(row + 8)), load(row + 16))
        elif load(row) == at.PACK_NONE:
            made = load(api + at.NONE)
            call(load(api + at.INCREF), made)
        else:
            top -= 8 * load(row + 8)
            made = _join(api, row, top)
        if made == 0:
            return 0
        store(top, made)
        top += 8
        row += 32
    return load(objects)


# --------------------------------------------------------------------------------------- the call
def _fallback(api: int, state: int, callable: int, args: int, count: int, keywords: int) -> int:
    """The call in Python: S_FALLBACK is CompiledFunction.__call__."""
    total = count
    if keywords != 0:
        total += call(load(api + at.TUPLE_SIZE), keywords)
    given = stack(total + 1)
    store(given, callable)
    i = 0
    while i < total:
        store(given + 8 + 8 * i, load(args + 8 * i))
        i += 1
    return call(load(api + at.VECTORCALL), load(state + at.S_FALLBACK), given, count + 1, keywords)


def _tracing(api: int, state: int, word: int) -> int:
    """Whether a trace is current in this context, or Python has to find that out."""
    store(word, 0)
    if call32(load(api + at.CONTEXT_GET), load(state + at.S_TRACE), 0, word) != 0:
        call(load(api + at.ERR_CLEAR))
        return 1
    found = load(word)
    if found == 0:
        return 0
    call(load(api + at.DECREF), found)
    return found != load(api + at.NONE)


def _same_names(api: int, entry: int, keywords: int) -> int:
    """Whether the call has the keywords of `entry` in its order; names in calls are interned."""
    known = load(entry + at.E_KEYWORDS)
    if keywords == 0 or known == 0:
        return keywords == known
    count = call(load(api + at.TUPLE_SIZE), known)
    if call(load(api + at.TUPLE_SIZE), keywords) != count:
        return 0
    i = 0
    while i < count:
        name = call(load(api + at.TUPLE_GET), keywords, i)
        if name != call(load(api + at.TUPLE_GET), known, i):
            return 0
        i += 1
    return 1


def vectorcall(callable: int, args: int, flagged: int, keywords: int) -> int:
    """`f(*args, **keywords)`."""
    state = load(callable + load(load(callable + at.OBJECT_TYPE) + at.TYPE_VECTORCALL) + 8)
    api = load(state + at.S_API)
    count = flagged & at.COUNT_MASK
    registers = stack(load(state + at.S_STACK))
    if _tracing(api, state, registers) != 0:
        return _fallback(api, state, callable, args, count, keywords)
    i = 0
    while i < load(state + at.S_COUNT):
        entry = load(state + at.S_ENTRIES + 8 * i)
        if load(entry + at.E_COUNT) == count and _same_names(api, entry, keywords) != 0:
            places = registers + 8 * load(entry + at.E_REGISTERS)
            if _matches(api, entry, args, registers, places) != 0:
                results = places + 16 * load(entry + at.E_INPUTS)
                step = load(entry + at.E_STEP)
                store(entry + at.E_USED, 1)
                owner = load(entry + at.E_OWNER)
                call(load(api + at.INCREF), owner)  # the step may let other threads drop it
                ran = execute(api, step, places, results)
                made = 0
                if ran == at.RAN:
                    objects = results + 8 * load(step + at.X_RESULT_COUNT)
                    made = _pack(api, entry, results, objects)
                call(load(api + at.DECREF), owner)
                if ran != at.ELSEWHERE:
                    return made
                return _fallback(api, state, callable, args, count, keywords)
        i += 1
    return _fallback(api, state, callable, args, count, keywords)
