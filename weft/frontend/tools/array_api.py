"""`wf.__array_namespace_info__`: what the Python array API lets a program ask of a library
(https://data-apis.org/array-api/latest/API_specification/inspection.html): dtypes, devices, limits.
"""

from __future__ import annotations

from weft.codegen.cuda.source.dtypes import DTYPES as GPU_DTYPES
from weft.frontend.ops.promotion import KINDS
from weft.frontend.tools.devices import devices
from weft.ir import dtypes
from weft.ir.device import is_local, local_gpu, named_device
from weft.ir.dtypes import DType
from weft.ir.errors import InvalidArgumentError
from weft.ir.locations import caller_location

__all__ = ["NamespaceInfo", "__array_namespace_info__"]

#: The dtypes of the standard; float16, bfloat16 and strings are not.
_STANDARD = tuple(
    d for d in dtypes.ALL if d not in (dtypes.float16, dtypes.bfloat16, dtypes.string)
)
#: As many axes as NumPy's arrays, which hold the elements of tensors.
_MOST_AXES = 64


class NamespaceInfo:
    """What `wf.__array_namespace_info__()` gives."""

    __slots__ = ()

    def capabilities(self) -> dict[str, bool | int | None]:
        """ "boolean indexing" and "data-dependent shapes": True; "max dimensions": 64."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": _MOST_AXES,
        }

    def default_device(self) -> str:
        """ "cpu"."""
        return "cpu"

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python floats, complex numbers and integers, and of indices; on all devices
        the same."""
        _check_device(device)
        return {
            "real floating": dtypes.DEFAULT_FLOAT,
            "complex floating": dtypes.DEFAULT_COMPLEX,
            "integral": dtypes.DEFAULT_INT,
            "indexing": dtypes.int64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes by their names, those of a kind (as `wf.isdtype` has them) or of
        one of several. A GPU's kernels take no complex numbers.

        InvalidArgumentError for a kind or a device that is not there.
        """
        on_gpu = _check_device(device) != "cpu"
        return {
            d.name: d
            for d in _STANDARD
            if (kind is None or _is_kind(d, kind)) and (not on_gpu or d.short in GPU_DTYPES)
        }

    def devices(self) -> tuple[str, ...]:
        """What `device=` takes here: "cpu", and "gpu:0", "gpu:1", ... as many as there are."""
        return tuple("cpu" if d.kind == "cpu" else f"gpu:{d.index}" for d in devices())


def _is_kind(dtype: DType, kind: str | tuple[str, ...]) -> bool:
    """InvalidArgumentError for what is no kind, such as the name of a dtype."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for k in kinds:
        if k not in KINDS:
            raise InvalidArgumentError(
                f"wf.__array_namespace_info__: {k!r} is no kind of dtypes",
                hint="the kinds are " + ", ".join(KINDS),
                location=caller_location(),
            )
    return any(dtype.kind in KINDS[k] for k in kinds)


def _check_device(device: str | None) -> str:
    """The name of a device that is there; None means the default one."""
    if device is None:
        return "cpu"
    spec, known = named_device(device), NamespaceInfo().devices()
    number = local_gpu(spec)
    if number is None and is_local(spec):
        return "cpu"
    if number is not None and f"gpu:{number}" in known:
        return f"gpu:{number}"
    raise InvalidArgumentError(
        f"wf.__array_namespace_info__: there is no device {device!r}",
        hint="the devices are " + ", ".join(known),
        location=caller_location(),
    )


def __array_namespace_info__() -> NamespaceInfo:
    """What the array API lets a program ask of a library: `capabilities`, `default_device`,
    `default_dtypes`, `dtypes` and `devices` of the result.

    >>> info = wf.__array_namespace_info__()
    >>> info.default_dtypes()["real floating"], info.default_device()
    (weft.float32, 'cpu')
    >>> list(info.dtypes(kind=("bool", "complex floating")))
    ['bool', 'complex64', 'complex128']
    """
    return NamespaceInfo()
