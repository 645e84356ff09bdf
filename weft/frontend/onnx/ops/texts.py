"""Strings."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.core.tensor import Tensor
from weft.frontend.onnx.sizes import known_size
from weft.frontend.onnx.table import op
from weft.frontend.ops.dynamic import boolean_mask


def _text(words: list[str]) -> Tensor:
    return wf.asarray(np.asarray([w.encode() for w in words], object))


@op("StringConcat", since=20)
def _concat(X: Tensor, Y: Tensor) -> Tensor:
    return wf.strings.join(list(wf.broadcast_arrays(X, Y)))


@op("RegexFullMatch", since=20)
def _full_match(X: Tensor, *, pattern: str) -> Tensor:
    return wf.strings.regex_full_match(X, pattern)


@op("StringSplit", since=20)
def _split(X: Tensor, *, delimiter: str = "", maxsplit: int = -1) -> Any:
    values, rows = wf.strings.split(wf.reshape(X, (-1,)), delimiter or None, maxsplit)
    counts = rows[1:] - rows[:-1]
    width = wf.max(wf.concat([counts, wf.zeros((1,), dtype=counts.dtype)]))
    places = wf.arange(0, width, 1)
    index = wf.expand_dims(rows[:-1], 1) + wf.expand_dims(places, 0)
    held = wf.concat([values, _text([""])])
    inside = wf.expand_dims(places, 0) < wf.expand_dims(counts, 1)
    index = wf.where(inside, index, wf.shape(held)[0] - 1)
    made = wf.take(held, index, axis=0)
    return wf.reshape(made, (*X.shape, made.shape[1])), wf.reshape(counts, X.shape)


@op("StringNormalizer", since=10)
def _normalizer(
    X: Tensor, *, case_change_action: str = "NONE", is_case_sensitive: int = 0,
    locale: str = "en_US", stopwords: Any = None,
) -> Tensor:  # fmt: skip
    lower, cases = wf.strings.lower, {"LOWER": wf.strings.lower, "UPPER": wf.strings.upper}
    row = wf.reshape(X, (-1,))
    if stopwords:
        words = list(stopwords) if is_case_sensitive else [w.lower() for w in stopwords]
        seen = row if is_case_sensitive else lower(row)
        found = reduce(wf.logical_or, [seen == _text([w])[0] for w in words])
        kept = wf.logical_not(found)
        none = wf.reshape(wf.logical_not(wf.any(kept)), (1,))
        row = boolean_mask(wf.concat([row, _text([""])]), wf.concat([kept, none]))
    made = cases.get(case_change_action, lambda x: x)(row)
    return made if X.ndim == 1 else wf.expand_dims(made, 0)


@op("TfIdfVectorizer", since=9)
def _tf_idf(
    X: Tensor, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: Any, ngram_indexes: Any, pool_int64s: Any = None, pool_strings: Any = None,
    weights: Any = None,
) -> Tensor:  # fmt: skip
    pool = list(pool_int64s or pool_strings)
    rows = X if X.ndim == 2 else wf.expand_dims(X, 0)
    length, size = known_size(rows, 1), max(ngram_indexes) + 1
    total = wf.zeros((rows.shape[0], size), dtype=wf.float32)
    number = 0
    for n, begin in enumerate(ngram_counts, 1):
        end = ngram_counts[n] if n < len(ngram_counts) else len(pool)
        grams = [pool[i : i + n] for i in range(begin, end, n)]
        numbers, number = range(number, number + len(grams)), number + len(grams)
        if not min_gram_length <= n <= max_gram_length or not grams:
            continue
        for skip in range(1, (max_skip_count if n > 1 else 0) + 2):
            windows = length - skip * (n - 1)
            if windows <= 0:
                break
            for gram, at in zip(grams, numbers, strict=True):
                hits = [
                    rows[:, i * skip : i * skip + windows] == _item(word)
                    for i, word in enumerate(gram)
                ]
                count = wf.sum(wf.astype(reduce(wf.logical_and, hits), wf.float32), axis=1)
                total = total.at[:, ngram_indexes[at]].add(count)
    each = None
    if weights:
        each = np.zeros(size, np.float32)
        each[list(ngram_indexes)] = weights
    if mode == "IDF":
        total = wf.astype(total > 0, wf.float32)
    if mode != "TF" and each is not None:
        total = total * wf.asarray(each)
    return total if X.ndim == 2 else total[0]


def _item(word: Any) -> Any:
    return _text([word])[0] if isinstance(word, str) else word
