"""The walker: native code that carries a step's table of kernel calls out.

One C function `void walker(int64_t *header, 0, 0, 0)`; `HEADER` names the words of its header.
"""

from __future__ import annotations

from weft.codegen.emitter import I64, KERNEL_TYPE, Emitter
from weft.codegen.jit import Kernel
from weft.codegen.pool_emit import emit_parallel_call

#: Where a NumPy array object keeps its data's address: PyArrayObject_fields, after the header.
ARRAY_DATA_OFFSET = 16
#: Words of one row of `Table.calls`: kernel address, first argument word, units, chunk.
CALL_WORDS = 4
#: The words of the walker's header: addresses, and counts of rows.
HEADER = (
    "words", "calls", "call_count", "patches", "patch_count", "slots", "status", "failed", "pool",
    "threads",
)  # fmt: skip


def _emit_walker(e: Emitter) -> None:
    b = e.builder
    i64p = I64.as_pointer()
    given = {name: e.argument(k) for k, name in enumerate(HEADER)}
    words, calls, patches, slots, status, failed = (
        b.inttoptr(given[name], i64p)
        for name in ("words", "calls", "patches", "slots", "status", "failed")
    )
    with e.for_range(e.index(0), given["patch_count"]) as p:
        row = b.mul(p, e.index(3))
        word, slot, offset = (b.load(e.at(patches, b.add(row, e.index(k)))) for k in range(3))
        array = b.load(e.at(slots, slot))
        data = b.load(b.inttoptr(b.add(array, e.index(ARRAY_DATA_OFFSET)), i64p))
        b.store(b.add(data, offset), e.at(words, word))
    with e.for_range(e.index(0), given["call_count"]) as c:
        row = b.mul(c, e.index(CALL_WORDS))
        address, first, units, chunk = (
            b.load(e.at(calls, b.add(row, e.index(k)))) for k in range(CALL_WORDS)
        )
        kernel = b.inttoptr(address, KERNEL_TYPE.as_pointer())
        arguments = e.at(words, first)
        emit_parallel_call(e, given["pool"], given["threads"], kernel, arguments, units, chunk)
        with b.if_then(b.icmp_signed("!=", b.load(status), e.index(0)), likely=False):
            b.store(c, failed)
            b.ret_void()


WALKER = Kernel("walker-2", "walker", _emit_walker)
