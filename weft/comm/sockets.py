"""ZeroMQ sockets as every link has them: no queue for the dead, bounded queues and frames, signs of
life, keys."""

from __future__ import annotations

import contextlib
import resource

import zmq

from weft.comm.limits import FRAME_BYTES, Limits
from weft.comm.security import Keys

INBOX_HWM = 16  # messages of one connection that wait for the inbox; a chunk of 1 MB is one
CTL_HWM = 256  # messages that wait for one peer's connection; tensors among them up to 256 KB
BULK_HWM = 4

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]


def _common(socket: Socket, limits: Limits) -> Socket:
    beat = int(limits.heartbeat_s * 1000)
    timeout = int(limits.heartbeat_timeout_s * 1000)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
    socket.set(zmq.HEARTBEAT_IVL, beat)
    socket.set(zmq.HEARTBEAT_TIMEOUT, timeout)
    socket.set(zmq.HEARTBEAT_TTL, timeout)
    socket.set(zmq.HANDSHAKE_IVL, int(limits.connect_s * 1000))
    return socket


def inbox(context: Context, limits: Limits, keys: Keys | None) -> Socket:
    """The inbox of a task, not bound yet. A DEALER, which shows the messages of all who connect as
    a ROUTER does, but without a frame before each that says by which connection it came: frames
    say that themselves."""
    socket = _common(context.socket(zmq.DEALER), limits)
    socket.set(zmq.RCVHWM, INBOX_HWM)
    if keys is not None:
        keys.serve(socket)
    return socket


def dealer(context: Context, limits: Limits, keys: Keys | None, hwm: int) -> Socket:
    """One lane to a peer, not connected yet. IMMEDIATE: nothing is queued for a peer that is not
    there, so a process that is restarted at its address never gets what was meant for the old."""
    socket = _common(context.socket(zmq.DEALER), limits)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.SNDHWM, hwm)
    socket.set(zmq.RCVHWM, 1)  # nothing is ever sent back on it
    socket.set(zmq.RECONNECT_IVL, 20)
    socket.set(zmq.RECONNECT_IVL_MAX, 500)
    if keys is not None:
        keys.call(socket)
    return socket


def make_context(peers: int) -> Context:
    """A context for links to so many peers: with sockets, and descriptors, for all of them (libzmq
    ends the process where some of its calls find none left)."""
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 6 * peers + 64)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8 * peers + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    return context
