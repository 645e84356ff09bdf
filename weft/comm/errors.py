"""Errors of the transport: what went wrong with which peer.

They do not derive from weft's own (comm knows no IR); the runtime maps them to `wf.errors`.
"""

from __future__ import annotations


class CommError(Exception):
    """Base of all errors of `weft.comm`."""


class BadFrameError(CommError):
    """A frame is not what the protocol allows: counted, logged and never acted upon."""


class MessageTooLargeError(CommError, ValueError):
    """A message is larger than the limits allow, or its meta data than 60 KB."""


class UnsendableError(CommError, TypeError):
    """A value has no form on the wire: a dtype, an object, a name that is not text."""


class EndpointClosedError(CommError):
    """The endpoint is closed."""


class PeerLostError(CommError, ConnectionError):
    """The link to the peer is gone; whatever was on its way may be lost."""


class UnknownPeerError(PeerLostError):
    """There is no link to a peer of that name."""


class UnreachableError(PeerLostError):
    """No connection to the address could be made in time."""


class StaleIncarnationError(PeerLostError):
    """Another process than the one asked for answers at the address."""


class AuthenticationError(CommError, PermissionError):
    """The keys of the two ends do not fit together, or one end has none."""


class BackpressureError(CommError, TimeoutError):
    """The peer did not take a message in time."""


class InsecureAddressError(CommError, PermissionError):
    """An address that others can reach, without keys."""


class AddressError(CommError, ValueError):
    """An address that cannot be bound or connected to."""


class KeyFileError(CommError, PermissionError):
    """A key file is missing, readable by others or not a key."""


class DuplicateKeyError(CommError, ValueError):
    """A key of a step was put, or asked for, twice."""


class WrongSenderError(CommError, ValueError):
    """A tensor under a key that another task's send owns."""


class StepOverError(CommError):
    """The step was forgotten: its messages come too late."""


class LimitError(CommError, MemoryError):
    """A bound of `Limits` is reached."""


class GroupEndedError(CommError):
    """A collective group was closed, or a call before has ended it."""


class ProgramsDifferError(CommError, ValueError):
    """Members of a group make different calls."""


class DeadlineError(CommError, TimeoutError):
    """Members of a group did not come in time."""


class LeftBehindError(CommError):
    """The others have gone on without this process."""
