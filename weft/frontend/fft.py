"""`wf.fft`: the array API's Fourier transforms, and NumPy's of two axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frontend.core.public_names import only_public as _only_public
from weft.frontend.ops.fourier import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__, __dir__ = _only_public(__name__, __all__)
