"""`wf.device` around what runs at once: the device must be here, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from weft.frontend.tracing.device_scope import device_scopes, scopes_spec
from weft.frontend.tracing.trace import is_suspended
from weft.ir.device import check_local
from weft.ir.locations import caller_location


def check_eager_device() -> None:
    """Raise InvalidArgumentError, which lists the devices, if a `wf.device` around the call names
    one that this process does not have."""
    if device_scopes() and not is_suspended():
        check_local(scopes_spec(), caller_location(), devices=_devices)


def _devices() -> Sequence[str]:
    # only who made a mistake waits for these modules
    from weft.runtime.device.backends.local import local_devices

    return local_devices()
