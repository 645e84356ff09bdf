"""Fourier transforms, and what goes with them. Complex numbers are a last axis of size 2."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.budget import check_table
from weft.frontend.onnx.dtypes import dtype_of
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import op
from weft.ir.errors import InvalidArgumentError


def _complex(x: Tensor) -> Tensor:
    kind = wf.complex128 if x.dtype is wf.float64 else wf.complex64
    wide = x if x.dtype.bits >= 32 else wf.astype(x, wf.float32)
    if x.shape[-1] == 1:
        return wf.astype(wide[..., 0], kind)
    return wf.astype(wide[..., 0], kind) + 1j * wf.astype(wide[..., 1], kind)


def _pair(x: Tensor, dtype: Any) -> Tensor:
    return wf.astype(wf.stack([wf.real(x), wf.imag(x)], axis=-1), dtype)


@op("DFT", since=20, known=["dft_length", "axis"])
def _dft(
    input: Tensor, dft_length: Any = None, axis: Any = -2, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    along = int(np.reshape(axis, ())) % input.ndim
    n = None if dft_length is None else int(np.reshape(dft_length, ()))
    if n is not None:
        check_table("the factors of its sums", n)
    x = _complex(input)
    if inverse and onesided:
        made = wf.fft.irfft(x, n=n, axis=along)
        return wf.astype(wf.expand_dims(made, -1), input.dtype)
    if inverse:
        return _pair(wf.fft.ifft(x, n=n, axis=along), input.dtype)
    made = wf.fft.fft(x, n=n, axis=along)
    if onesided:
        half = known_size(made, along) // 2 + 1
        made = made[(*[slice(None)] * along, slice(0, half))]
    return _pair(made, input.dtype)


@op("DFT", since=17, known=["dft_length"])
def _dft_attribute(
    input: Tensor, dft_length: Any = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    return _dft(input, dft_length, axis, inverse=inverse, onesided=onesided)


@op("STFT", since=17, known=["frame_step", "frame_length"])
def _stft(
    signal: Tensor, frame_step: Any, window: Tensor | None = None, frame_length: Any = None, *,
    onesided: int = 1,
) -> Tensor:  # fmt: skip
    step = int(np.reshape(frame_step, ()))
    if window is None and frame_length is None:
        raise InvalidArgumentError("it has neither a window nor a frame_length")
    if frame_length is not None:
        size = int(np.reshape(frame_length, ()))
    elif window is not None:
        size = known_size(window, 0)
    count = (known_size(signal, 1) - size) // step + 1
    check_table("the places of its frames", count, size)
    places = np.arange(count)[:, None] * step + np.arange(size)
    frames = wf.take(signal, wf.asarray(places), axis=1)  # [batch, frames, size, parts]
    if window is not None:
        frames = frames * wf.reshape(window, (-1, 1))
    return _dft(frames, None, 2, onesided=onesided)


@op("MelWeightMatrix", since=17, known=[
    "num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz",
])  # fmt: skip
def _mel_weights(
    num_mel_bins: Any, dft_length: Any, sample_rate: Any, lower_edge_hertz: Any,
    upper_edge_hertz: Any, *, output_datatype: int = 1,
) -> Tensor:  # fmt: skip
    bins, length = int(num_mel_bins), int(dft_length)
    check_table("its result", length // 2 + 1, bins)
    low, high = (2595 * np.log10(1 + float(v) / 700) for v in (lower_edge_hertz, upper_edge_hertz))
    steps = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    hertz = 700 * (10 ** (steps / 2595) - 1)
    edges = (((length + 1) * hertz) // int(sample_rate)).astype(int)
    made = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        first, centre, last = edges[i : i + 3]
        if centre == first:
            made[centre, i] = 1
        else:
            rise = np.arange(first, centre + 1)
            made[rise, i] = (rise - first) / (centre - first)
        if last > centre:
            fall = np.arange(centre, last)
            made[fall, i] = (last - fall) / (last - centre)
    return wf.astype(wf.asarray(made), dtype_of(output_datatype))
