"""Layout of the tables that the native path of packets reads: offsets in bytes, and constants.

The tables are int64 words that `native_parts.py` fills; the code that reads them is
`packet_path.py`."""

from __future__ import annotations

import errno
import socket
import sys
import time
from typing import Final

from weft.comm import traffic, wire
from weft.comm.lane import LANE_BYTES
from weft.runtime.cluster import messages as m
from weft.runtime.trace.prometheus import SECONDS

IS_LINUX: Final = sys.platform == "linux"
HEADER: Final = wire.HEADER.size
PACKET_BYTES: Final = LANE_BYTES
TENSOR: Final = wire.word_of(wire.TENSOR)
RUN, DONE = wire.word_of(wire.USER + m.RUN), wire.word_of(wire.USER + m.DONE)
BUFFERS: Final = wire.BUFFERS_FLAG << 8  # as flags and lane are one number
DONTWAIT: Final = int(socket.MSG_DONTWAIT)
SEND_FLAGS: Final = DONTWAIT | (int(socket.MSG_NOSIGNAL) if IS_LINUX else 0)
AGAIN: Final = errno.EAGAIN
MONOTONIC: Final = time.CLOCK_MONOTONIC if IS_LINUX else 0
ARRAY_DATA: Final = 16
FORGET_EVERY: Final = m.FORGET_EVERY

# A task's context
(
    C_API, C_RECV, C_SEND, C_CLOCK, C_ERRNO, C_BYTES, C_UNSIGNED, C_LOCKED, C_KNOWN, C_RESUME, C_ME,
    C_IN, C_OUT, C_TIME, C_PROGRAMS, C_COUNT, C_STEPS, C_RUNS, C_ACTIVE, C_WATCHED, C_OFF,
) = range(0, 8 * 21, 8)  # fmt: skip
CONTEXT_WORDS: Final = 21
PROGRAMS: Final = 64
PROGRAM_ROW: Final = 24  # source, handle, address

# A link: `comm.link.LinkWords`
K_STATE, K_LOCK, K_SEQUENCE, K_EXPECTED, K_COUNTS, K_TOKEN, K_INCARNATION = range(0, 8 * 7, 8)
SENT, SENT_BYTES = 8 * traffic.SENT, 8 * traffic.SENT_BYTES
CAME, CAME_BYTES = 8 * traffic.CAME, 8 * traffic.CAME_BYTES

# A tensor's type, and its meta data in a frame
D_DESCR, D_RANK, D_DIMS, D_BYTES, D_META, D_META_AT = range(0, 8 * 6, 8)

# A program
BOUNDS: Final = len(SECONDS)
(
    P_VALID, P_HANDLE, P_DONE, P_META, P_META_AT, P_FLAGS, P_FEED_BYTES, P_FEED_COUNT, P_FEEDS,
    P_ROWS, P_FIRST, P_EDGES, P_EDGE_COUNT, P_LEFT, P_LEFT_COUNT, P_LOW, P_LAST, P_BOUNDS,
    P_RESULTS, P_BEGUN, P_RUNS, P_TIME, P_WAITED, P_BUCKETS,
) = range(0, 8 * 24, 8)  # fmt: skip
PROGRAM_WORDS: Final = 24 + BOUNDS + 1
# A segment, and what it does: a call of a step if A_CALL is not 0, else a message
S_ACTS, S_COUNT, S_PLACE = range(0, 8 * 3, 8)
(
    A_CALL, A_SLOW, A_ROW, A_INPUTS, A_COUNT, A_LINK, A_KEY, A_TYPE, A_SENT,
) = range(0, 8 * 9, 8)  # fmt: skip
ACT_BYTES: Final = 72
#: Ports of inputs: the row's value as it is; the object at the address in place of a row.
WHOLE, OBJECT = -1, -2
# What a part waits for
(
    E_KEY, E_SOURCE, E_LINK, E_TYPE, E_ROW, E_BIT, E_SEGMENTS, E_SEGMENT_COUNT,
) = range(0, 8 * 8, 8)  # fmt: skip
EDGE_BYTES: Final = 64
MOST_EDGES: Final = 60

# A message of a fan-out: to whom, the part's handle, and what is fed: rows (place, type)
G_LINK, G_HANDLE, G_META, G_META_AT, G_FEEDS, G_FEED_COUNT = range(0, 8 * 6, 8)
FAN_BYTES: Final = 48

# A run
RUNS: Final = 32
MOST_ROWS: Final = 256
(
    T_NUMBER, T_STEP, T_PROGRAM, T_TODO, T_CAME, T_BEGUN, T_WORKED, T_BUSY, T_OWNER, T_LEFT,
) = range(0, 8 * 10, 8)  # fmt: skip
T_VALUES: Final = T_LEFT + 8 * MOST_ROWS
RUN_BYTES: Final = T_VALUES + 8 * MOST_ROWS
