"""What devices there are: `wf.devices`."""

from __future__ import annotations

from weft.ir.errors import InvalidArgumentError, WeftError
from weft.runtime.device.backends.info import DeviceInfo, cpu

__all__ = ["DeviceInfo", "devices", "why_no_gpu"]


def devices(kind: str | None = None) -> list[DeviceInfo]:
    """The devices of this process: its CPU, then its GPUs. As `jax.devices` and
    `tf.config.list_physical_devices`, which there is the model for.

    kind: "cpu" or "gpu", only those; the list is empty if there is no GPU (`weft devices` says
    why). Nothing is allocated on a GPU. InvalidArgumentError for another kind, or for a
    WEFT_EMULATE_GPU that is no number of devices.
    """
    if kind not in (None, "cpu", "gpu", "CPU", "GPU"):
        raise InvalidArgumentError(f"there are no devices of kind {kind!r}", hint='"cpu" or "gpu"')
    found, _ = _look()
    return [info for info in found if kind in (None, info.kind, info.kind.upper())]


def why_no_gpu() -> WeftError | None:
    """Why there is no GPU; None if there is one. Errors as `devices`."""
    return _look()[1]


def _look() -> tuple[list[DeviceInfo], WeftError | None]:
    # whoever has no GPU does not wait for these modules when weft is imported
    from weft.runtime.device.backends.registry import gpus

    try:
        return [cpu(), *gpus()], None
    except InvalidArgumentError:
        raise
    except WeftError as error:
        return [cpu()], error
