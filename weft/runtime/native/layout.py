"""Layout of the native call path's tables: offsets in bytes, codes, and the table of addresses.

The tables are int64 words that `api.py`, `step.py` and `compile/native_call.py` fill; the code that
reads them is `call_path.py`."""

from __future__ import annotations

# Objects: PyObject, PyTypeObject, PyFloatObject, PyArrayObject_fields; all probed before first use.
OBJECT_TYPE, LIST_LENGTH, TYPE_VECTORCALL, FLOAT_VALUE, CAPSULE_POINTER = 8, 16, 56, 16, 16
METHOD_DEFINITION, METHOD_OBJECT, DEFINITION_FUNCTION = 16, 24, 8
ARRAY_NDIM, ARRAY_DIMS, ARRAY_DESCR, ARRAY_FLAGS, ARRAY_HANDLER = 24, 32, 56, 64, 88
BEHAVED = 0x101  # C-contiguous and aligned
CARRAY, OWNS_DATA = 0x501, 0x4
COUNT_MASK = (1 << 63) - 1  # of a vectorcall's nargsf

# The table of addresses
(
    INCREF, DECREF, VECTORCALL, CALL_NO_ARGS, CONTEXT_GET, SAVE_THREAD, RESTORE_THREAD, TYPE_ALLOC,
    TUPLE_NEW, TUPLE_SIZE, TUPLE_GET, TUPLE_SET, LIST_NEW, LIST_SIZE, LIST_GET, LIST_SET,
    DICT_NEW, DICT_SIZE, DICT_GET, DICT_SET, LONG_AS, LONG_FROM, ERR_CLEAR, ERR_OCCURRED,
    ARRAY_NEW, HANDLER, NDARRAY, TENSOR, TENSOR_DATA, TENSOR_VALUE, TENSOR_TRACE, TENSOR_WEAK,
    TYPE_TUPLE, TYPE_LIST, TYPE_DICT, TYPE_FLOAT, TYPE_INT, TYPE_BOOL, NONE, FALSE, TRUE,
    VARIABLE_ARRAY, POOL, THREAD_IDENT, ERR_FETCH, ERR_RESTORE, GATE_ACQUIRE, GATE_RELEASE,
    NO_ARGUMENTS,
) = range(0, 8 * 49, 8)  # fmt: skip
API_WORDS = 49

# A compiled function: words after `S_ENTRIES` are its specialisations
S_API, S_COUNT, S_STACK, S_FALLBACK, S_TRACE, S_ENTRIES = range(0, 8 * 6, 8)
# A specialisation
(
    E_OWNER, E_ARGUMENTS, E_KEYWORDS, E_PROGRAM, E_PROGRAM_END, E_INPUTS, E_REGISTERS, E_USED,
    E_STEP, E_PACK, E_PACK_END, E_PACKER, E_COUNT,
) = range(0, 8 * 13, 8)  # fmt: skip
# How arguments are taken apart: rows (code, register, a, b)
MATCH_LEAF, MATCH_TUPLE, MATCH_LIST, MATCH_DICT, MATCH_NONE, MATCH_SAME = range(6)
LEAF_ARRAY, LEAF_FLOAT, LEAF_INT, LEAF_BOOL = range(4)
L_KIND, L_DESCR, L_NDIM, L_SCALAR, L_DIMS = range(0, 8 * 5, 8)
SCALAR_VALUE = 16  # where a NumPy scalar keeps its value
# How results are put together: rows (code, a, b)
PACK_TENSOR, PACK_TUPLE, PACK_LIST, PACK_DICT, PACK_NONE = range(5)
# A step
(
    X_WALKER, X_ACTIVATIONS, X_IDLE, X_MOST_IDLE, X_NEW_ACTIVATION, X_RESULTS, X_RESULT_COUNT,
    X_INPUTS, X_VARIABLES, X_VARIABLES_END, X_RELEASE, X_FAILED, X_NO_MEMORY, X_NOT_ARRAYS,
) = range(0, 8 * 14, 8)  # fmt: skip
R_DESCR, R_NDIM, R_DIMS, R_CLASS, R_SLOT, R_WORDS = range(0, 8 * 6, 8)
# A variable: its state and what is of its lock (`resources/variable_lock.py`): how Python takes it
# and gives it back, the gate if it is written (else 0), words, readers that Python has noted
(
    V_OBJECT, V_ACQUIRE, V_RELEASE, V_GATE, V_DEPTH, V_READERS, V_SLOT, V_WORDS,
) = range(0, 8 * 8, 8)  # fmt: skip
DEPTH, CELL_1, CELL_2, CELL_3, CELL_4, CELLS_END = range(0, 8 * 6, 8)
F_NEXT, F_OWNER, F_HEADER, F_SLOTS, F_STATUS, F_FAILED, F_CELLS = range(0, 8 * 7, 8)
RAN, ELSEWHERE, RAISED = 0, 1, -1

# Free blocks: kept bytes, their limit, libc, then a list per size class
P_KEPT, P_LIMIT, P_ALIGNED_ALLOC, P_FREE, P_MEMSET, P_MEMCPY, P_MADVISE, P_HEADS = range(0, 64, 8)
POOL_CLASSES = 192
BLOCK_HEADER, BLOCK_CLASS, BLOCK_NEXT = 64, -64, -56
HUGE, HUGE_PAGE, MADV_HUGEPAGE = 1 << 22, 1 << 21, 14
