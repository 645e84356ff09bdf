"""Layout of the native executor's tables: byte offsets and codes.

Static tables (`nodes.py` makes them, all steps of a graph share them): nodes, edges, frames. A
step's own: its state, frame instances, iteration records, cells."""

from __future__ import annotations

# What a node does
(
    NO_OP, IDENTITY, SWITCH, MERGE, ENTER, EXIT, NEXT_ITERATION, CONSTANT, FEED, FETCH, HOST, PLAN,
    DEAR,
) = range(13)  # fmt: skip

# A node. STATE_AT: where its pending count lies in an iteration record; SLOT_AT: its first input.
# A, B: SWITCH -; MERGE number of inputs, whether its index is used; ENTER the frame, whether it is
# constant; EXIT its number in the frame; NEXT_ITERATION the edge to its merge, which is not among
# its edges (those stay in the iteration); CONSTANT the cell; FEED, FETCH, HOST, PLAN, DEAR (a plan
# that is worth a thread of its own) a number; HOST whether it runs though its first input is dead.
(
    N_KIND, N_STATE_AT, N_SLOT_AT, N_INPUTS, N_OUTPUTS, N_EDGES, N_EDGE_END, N_A, N_B, N_NUMBER,
) = range(0, 80, 8)  # fmt: skip
NODE_WORDS = 10

# An edge: from a port of its node (CONTROL: it is done, or dead as a whole) to an input of another.
# SLOT_AT is 0 for one that carries no value. INDEX: the number of the input (what a merge gives as
# its second output), CONTROL for one that only says that the source is done, or dead.
E_PORT, E_NODE, E_STATE_AT, E_SLOT_AT, E_INDEX, E_MERGE = range(0, 48, 8)
EDGE_WORDS = 6
CONTROL = -1

# A static frame. CHILD_AT: where the parent's iteration keeps the instance; EXITS: node addresses;
# SWEPT: those of nodes that may hold inputs when an iteration ends.
(
    SF_RECORD_BYTES, SF_TEMPLATE, SF_CHILD_AT, SF_ENTERS, SF_PARALLEL, SF_EXITS, SF_EXIT_COUNT,
    SF_NUMBER, SF_SWEPT, SF_SWEPT_COUNT,
) = range(0, 80, 8)  # fmt: skip
FRAME_WORDS = 10

# An iteration record; its children's instances, its nodes' states and their inputs follow
I_FRAME, I_NUMBER, I_OUTSTANDING, I_NEXT, I_FIRST_STATE = range(0, 40, 8)

# A frame instance; a word for each exit follows: whether it gave a live value
(
    FI_STATIC, FI_PARENT, FI_FIRST, FI_LAST, FI_ACTIVE, FI_STARTED, FI_ENTERS_LEFT, FI_INVARIANTS,
    FI_DEFERRED, FI_EXITS,
) = range(0, 80, 8)  # fmt: skip
# Lists of a frame instance: (next, node, cell)
L_NEXT, L_NODE, L_CELL, LINK_BYTES = 0, 8, 16, 24

# The pending count of a node: how many inputs are missing, whether one of them was dead; of a
# merge, whether one was live.
COUNT_MASK, DEAD, LIVE = (1 << 32) - 1, 1 << 40, 1 << 41

# A cell: a tensor's memory. The data's address is where a NumPy array keeps it (the walker reads
# both). CLASS: of its size; EXTERNAL: memory that Python keeps.
C_COUNT, C_CLASS, C_DATA, C_ALL, C_NEXT = range(0, 40, 8)
CELL_HEADER = 64
EXTERNAL = -1
CELL_CLASSES = 48
# The last class: a cell of Python's, over an array of any shape or of strings (`state.py`)
BOXED = CELL_CLASSES - 1

# A plan of a step: the walker's address, the addresses of its header, slots and status, and of a
# row for each result: its slot, the class of its cell (NO_CELL: a token), its bytes; GIVEN: the
# input in whose memory the plan computes it (NOT_GIVEN: in none)
P_WALKER, P_HEADER, P_SLOTS, P_STATUS, P_RESULTS, P_RESULT_COUNT = range(0, 48, 8)
PLAN_WORDS = 6
PR_SLOT, PR_CLASS, PR_GIVEN, PR_BYTES, PLAN_RESULT_BYTES = range(0, 40, 8)
NO_CELL = NOT_GIVEN = -1

# The state of a step. FAILED: why it stops, FAILED_NODE: where. DEAR: plans that are ready, as the
# host list. BUSY: whether anything is under way elsewhere.
(
    S_READY, S_READY_COUNT, S_READY_ROOM, S_HOST, S_HOST_COUNT, S_HOST_ROOM, S_OUTS, S_FEEDS,
    S_FETCHES, S_EXECUTED, S_CELLS, S_BLOCKS, S_ALL_CELLS, S_ALL_BLOCKS, S_MALLOC, S_FREE,
    S_MEMCPY, S_MEMSET, S_REALLOC, S_LINKS, S_FAILED, S_FRAME_BLOCKS, S_PLANS, S_FAILED_NODE,
    S_TRACE, S_TRACE_COUNT, S_TRACE_ROOM, S_CLOCK, S_CLOCK_NUMBER, S_DEAR, S_DEAR_COUNT, S_BUSY,
) = range(0, 256, 8)  # fmt: skip
STATE_WORDS = 32
NO_MEMORY, PLAN_FAILED, TWO_VALUES = 1, 2, 3
#: How long dear plans run one after the other before Python has a look.
SLICE_NS = 20_000_000
# An entry of the ready stack and of the host list
R_NODE, R_ITERATION, R_DEAD, READY_BYTES = 0, 8, 16, 24

# An event of the trace. NUMBERS: of the iteration, then of those around it, innermost first; -1
# where there is none.
T_NODE, T_DEAD, T_BEGIN, T_END, T_NUMBERS = range(0, 40, 8)
TRACE_DEPTH = 4
EVENT_WORDS = 8
