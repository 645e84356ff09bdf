"""Programs of sequences: CTC with its gradient, decoders, attention with a cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from loop_programs import random_array

import weft as wf

LABELS = np.array([[1, 2, 0], [2, 2, 1]])
STEP = wf.asarray(random_array(4, 4) * 2)


def _ctc(x: wf.Tensor) -> Any:
    def loss(x: wf.Tensor) -> wf.Tensor:
        return wf.sum(wf.nn.ctc_loss(LABELS, x, [2, 3], [7, 6]))

    return wf.value_and_grad(loss)(x)


def _ctc_beam(x: wf.Tensor) -> Any:
    return wf.nn.ctc_beam_search_decoder(x, [7, 6], beam_width=4, top_paths=2)


def _beam(start: wf.Tensor) -> Any:
    def step(ids: wf.Tensor, state: wf.Tensor) -> Any:
        state = wf.tanh(state @ STEP + wf.take(STEP, ids, axis=0))
        return state @ STEP, state

    return wf.nn.beam_search(step, start, [0, 3], beam_width=3, max_length=5, end_token=1)


def _cached(x: wf.Tensor) -> Any:
    def step(cache: wf.nn.KVCache, row: wf.Tensor) -> Any:
        q = wf.nn.rotary_embedding(row, cache.length[:, None])
        cache = cache.append(q, row)
        return cache, wf.nn.scaled_dot_product_attention(q, cache.key, cache.value, cache.mask(1))

    return wf.scan(step, wf.nn.KVCache.empty(2, 3, 6, 4), x)[1]


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ctc": (_ctc, (random_array(2, 7, 4),)),
    "ctc_beam": (_ctc_beam, (random_array(2, 7, 4) * 2,)),
    "beam": (_beam, (random_array(2, 4),)),
    "cache": (_cached, (random_array(6, 2, 3, 1, 4),)),
}
