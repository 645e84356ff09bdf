"""How a CUDA kernel tells of an index out of bounds: the two words behind `call.Status`.

Both are zero before a step and grow by atomic maxima, so that of several faults the one at the
smallest position stays. Word 0 is that of `codegen/faults.py`. Word 1 has the index in its lower 32
bits (one that has more is cut to the nearest number that fits), above them the number of the op in
the launch and the position, so that both words tell of the same fault.
"""

from __future__ import annotations

from weft.codegen import faults
from weft.codegen.faults import FAULT_SHIFT

#: Of word 1: bits of the position, from bit 32 on; the op's number is above them.
_POSITION_BITS = 27

#: What a kernel that may meet a fault has among its device functions.
FAULT_FUNCTION = f"""\
def report_fault(status, number, position, index):
    last = i64({(1 << FAULT_SHIFT) - 1})
    word = i64(i64(number << i64({FAULT_SHIFT})) + i64(last - position)) + i64(1)
    cuda.atomic.max(status, 0, word)
    low = i64({-(1 << 31)})
    high = i64({(1 << 31) - 1})
    cut = low if index < low else (high if index > high else index)
    most = i64({(1 << _POSITION_BITS) - 1})
    rank = i64(0) if position > most else i64(most - position)
    order = i64(number << i64({_POSITION_BITS})) + rank
    cuda.atomic.max(status, 1, i64(order << i64(32)) + i64(cut & i64({(1 << 32) - 1})))
"""


def fault_of(word0: int, word1: int) -> tuple[int, int, int]:
    """(number of the op in the launch, position in its index operand, index) of the words of a
    launch that met a fault."""
    number, position = faults.fault_of(word0)
    index = word1 & ((1 << 32) - 1)
    return number, position, index - (1 << 32 if index >= 1 << 31 else 0)
