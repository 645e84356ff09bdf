"""examples/skipgram.py: it learns, and tables in parts are the same model."""

from __future__ import annotations

import numpy as np
import pytest
from example_programs import load_example

example = load_example("skipgram")


@pytest.fixture(scope="module")
def text() -> object:
    """A text of two topics: words of one never stand beside words of the other."""
    rng = np.random.default_rng(0)
    pieces = []
    for _ in range(300):
        topic = rng.integers(0, 2)
        pieces += [f"{'ab'[topic]}{chr(97 + k)}" for k in rng.integers(0, 12, 40)]
    return example.Text.of(pieces, threshold=1.0)


def test_learns_which_words_belong_together(text: object) -> None:
    result = example.train(text, 400, batch=128, dim=16, sampled=8, quiet=True)
    before, after = result.losses
    assert before == pytest.approx(np.log(24), rel=0.01)  # every word as likely
    assert after < np.log(24) - 0.4  # half of them: log(12) and what pieces' ends add
    near = result.nearest("aa", count=8)
    assert len(near) == 8
    assert sum(word.startswith("a") for word in near) >= 7


@pytest.mark.slow
def test_parts_are_the_same_model(text: object) -> None:
    whole = example.train(text, 5, batch=32, dim=8, sampled=6, quiet=True)
    parts = example.train(text, 5, batch=32, dim=8, sampled=6, shards=3, quiet=True)
    assert parts.table.shape == whole.table.shape
    assert parts.losses == pytest.approx(whole.losses, rel=0.05)  # other initial values
    assert not np.array_equal(parts.table, whole.table)


@pytest.mark.slow
def test_the_text() -> None:
    words = example.read_words()
    assert len(words) > 50_000
    text = example.Text.of(words)
    assert {"import", "list", "error"} <= set(text.names)
    assert text.ids.max() < len(text.names)
    counts = np.bincount(text.ids, minlength=len(text.names))
    assert counts[0] < words.count(text.names[0])  # the most frequent words are thinned
    centre, context = next(example.pairs(text, 1000, seed=0))
    assert centre.shape == context.shape == (1000,)
