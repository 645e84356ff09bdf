"""One call of a compiled function, in `weft.codegen.native_language`: never run by Python.

`vectorcall` is what CPython calls for `f(x)`: it finds the specialisation whose signature the
arguments have, runs its step and makes the tensors; what it does not know it leaves to Python.
Nothing in it runs Python code before the step holds what it uses.
"""

from __future__ import annotations

from weft.codegen.native_language import call, call32, load, load32, stack, store
from weft.runtime.native import layout as at
from weft.runtime.native.run import execute, list_of


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
