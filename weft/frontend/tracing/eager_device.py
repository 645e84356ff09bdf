"""`wf.device` around what runs at once: the device must be here, and changes nothing."""

from __future__ import annotations

from weft.frontend.tracing.device_scope import device_scopes, scopes_spec
from weft.frontend.tracing.trace import is_suspended
from weft.ir.device import check_local
from weft.ir.source import caller_location


def check_eager_device() -> None:
    """Raise InvalidArgumentError, which lists the devices, if a `wf.device` around the call names
    one that this process does not have."""
    if device_scopes() and not is_suspended():
        check_local(scopes_spec(), caller_location())
