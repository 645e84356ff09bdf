"""Eager calls whose results have sizes that depend on values, small and large, against NumPy; in
sessions they give the same."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

import weft as wf
from weft.frontend.eager.numpy_calls import LARGE
from weft.ir.errors import InvalidArgumentError, ResourceExhaustedError, ShapeError
from weft.ir.interpreter.evaluate import interpret
from weft.ir.text.parser import parse_graph

Array = np.ndarray[Any, Any]
SMALL, BIG = 60, LARGE + 4


def data(size: int) -> Array:
    return np.random.default_rng(size).integers(-1, 4, size).astype(np.float32)


def by_occurrence(x: Array) -> tuple[Array, Array, Array]:
    """A plain loop: the values as they occur, the place of each element, counts."""
    places: dict[float, int] = {}
    numbers = [places.setdefault(v, len(places)) for v in x.tolist()]
    return (
        np.array(list(places), x.dtype), np.array(numbers, np.int32),
        np.bincount(numbers, minlength=len(places)).astype(np.int32),
    )  # fmt: skip


CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Any]]] = {
    "nonzero": (wf.nonzero, np.nonzero),
    "nonzero of a matrix": (
        lambda x: wf.nonzero(wf.reshape(x, (-1, 6))), lambda x: np.nonzero(x.reshape(-1, 6))
    ),
    "argwhere": (wf.argwhere, np.argwhere),
    "a mask": (lambda x: x[x > 0], lambda x: x[x > 0]),
    "a mask of rows": (
        lambda x: wf.reshape(x, (-1, 2))[wf.reshape(x, (-1, 2))[:, 0] > 0],
        lambda x: x.reshape(-1, 2)[x.reshape(-1, 2)[:, 0] > 0],
    ),
    "boolean_mask": (lambda x: wf.tf1.boolean_mask(x, x > 0), lambda x: x[x > 0]),
    "unique_values": (wf.unique_values, np.unique),
    "unique_counts": (
        wf.unique_counts, lambda x: np.unique(x, return_counts=True)
    ),
    "unique_inverse": (
        wf.unique_inverse, lambda x: np.unique(x, return_inverse=True)
    ),
    "unique_all": (
        wf.unique_all,
        lambda x: np.unique(x, return_index=True, return_inverse=True, return_counts=True),
    ),
    "unique_all of a matrix": (
        lambda x: wf.unique_all(wf.reshape(x, (-1, 6))),
        lambda x: np.unique(x, return_index=True, return_inverse=True, return_counts=True),
    ),
    "unique": (lambda x: tuple(wf.tf1.unique_with_counts(x)), by_occurrence),
    "repeat": (
        lambda x: wf.repeat(x, wf.astype(x + 1, wf.int64)),
        lambda x: np.repeat(x, (x + 1).astype(int)),
    ),
    "repeat along an axis": (
        lambda x: wf.repeat(wf.reshape(x, (2, -1)), wf.astype(x[: x.shape[0] // 2] + 1, wf.int64),
                            axis=1),
        lambda x: np.repeat(x.reshape(2, -1), (x[: len(x) // 2] + 1).astype(int), axis=1),
    ),
    "dynamic_partition": (
        lambda x: wf.tf1.dynamic_partition(x, wf.astype(x + 1, wf.int32), 5),
        lambda x: [x[x + 1 == i] for i in range(5)],
    ),
    "dynamic_stitch": (
        lambda x: wf.tf1.dynamic_stitch([wf.arange(x.shape[0])[::-1]], [x]), lambda x: x[::-1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("size", [0, SMALL, BIG])
@pytest.mark.parametrize("name", CALLS)
def test_small_and_large_calls(name: str, size: int) -> None:
    ours, theirs = CALLS[name]
    if not size and "axis" in name:
        return
    x = data(size)
    made, wanted = ours(wf.asarray(x)), theirs(x)
    listed = made if isinstance(made, tuple | list) else [made]
    for a, b in zip(listed, wanted if isinstance(wanted, tuple | list) else [wanted], strict=True):
        array = np.asarray(a)
        assert array.dtype == b.dtype or b.dtype == np.intp
        np.testing.assert_array_equal(array, b.reshape(array.shape))
        assert array.flags.c_contiguous
        assert isinstance(a, wf.Tensor)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "name", ["nonzero of a matrix", "a mask", "unique_all", "unique", "dynamic_partition", "repeat"]
)
def test_a_session_gives_what_an_eager_call_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    for module in ("selection", "unique"):
        where = f"weft.runtime.dynamic.{module}.run_kernel"
        plain = resolve_name(where)

        def noted(entry: str, *given: Any, plain: Any = plain) -> None:
            ran.append(entry)
            plain(entry, *given)

        monkeypatch.setattr(where, noted)
    ours, x = CALLS[name][0], data(BIG)
    eager = ours(wf.asarray(x))
    ran.clear()
    with wf.Graph().as_default():
        fed = wf.placeholder(wf.float32, [BIG])
        with wf.Session() as session:
            made = session.run(ours(fed), {fed: x})
    assert ran  # native kernels did it
    eager, made = ([v] if isinstance(v, np.ndarray | wf.Tensor) else list(v) for v in (eager, made))
    for a, b in zip(eager, made, strict=True):
        np.testing.assert_array_equal(np.asarray(a), b)


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_nan_and_zeros(size: int) -> None:
    """Each NaN is distinct; -0 is 0, and the first of them stays."""
    for first, other in ((0.0, -0.0), (-0.0, 0.0)):
        x = np.ones(size, np.float32)
        x[3], x[4], x[5], x[9] = first, other, np.nan, np.nan
        for values in (wf.unique_values(wf.asarray(x)), wf.unique_all(wf.asarray(x)).values):
            got = np.asarray(values)
            np.testing.assert_array_equal(got, [0, 1, np.nan, np.nan])
            assert np.signbit(got[0]) == np.signbit(np.float32(first))
        np.testing.assert_array_equal(
            wf.unique_counts(wf.asarray(x)).counts, [2, size - 4, 1, 1]
        )  # fmt: skip
        y = np.asarray(wf.tf1.unique(wf.asarray(x)).y)
        np.testing.assert_array_equal(y, [1, 0, np.nan, np.nan])


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_errors(size: int) -> None:
    x = wf.asarray(data(size))
    wrong = wf.arange(size)
    with pytest.raises(InvalidArgumentError, match=r"partitions\[4\] is 4"):
        wf.tf1.dynamic_partition(x, wrong, 4)
    with pytest.raises(ShapeError, match="must begin"):
        wf.tf1.dynamic_partition(x, wrong[1:], 4)
    with pytest.raises(InvalidArgumentError, match=r"indices 0: \[0\] is -1"):
        wf.tf1.dynamic_stitch([wrong - 1], [x])
    with pytest.raises(InvalidArgumentError, match="repeats must be integers >= 0"):
        wf.repeat(x, wrong - 1)
    with pytest.raises(InvalidArgumentError, match="mask of shape"):
        x[(x > 0)[1:]]


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_results_that_do_not_fit_into_memory(size: int) -> None:
    x = wf.asarray(data(size))
    for count in (2**55, 2**62, 2**63 - 1):
        far = np.zeros(size, np.int64)
        far[0] = count
        with pytest.raises(ResourceExhaustedError):
            wf.tf1.dynamic_stitch([wf.asarray(far)], [x])
        with pytest.raises(ResourceExhaustedError, match=r"wf.repeat.*\n.*test_eager_by_value"):
            wf.repeat(x, wf.asarray(far))
        with pytest.raises(ResourceExhaustedError):
            wf.repeat(x, wf.asarray(far.astype(np.uint64) * 2))


def test_repeats_whose_sum_does_not_fit_a_word() -> None:
    """NumPy's sum is 0 for them, and it writes on and on."""
    x = wf.arange(4)
    with pytest.raises(ResourceExhaustedError, match=r"1\.845e\+19 repeats"):
        wf.repeat(x, wf.asarray([2**62] * 4))
    with pytest.raises(ShapeError, match="more bytes than can be addressed"):
        wf.repeat(x, 2**62)
    graph = parse_graph(
        "graph @g(%counts: i64[n]) -> (i64[m]) stage=traced {\n"
        '  %0 = repeat_index(%counts) {sizes=["m"]} : i64[m]\n  return %0\n}\n'
    )
    with pytest.raises(ResourceExhaustedError, match=r"1\.845e\+19 repeats"):
        interpret(graph, [np.full(4, 2**62)])


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_repeats_that_are_unsigned(size: int) -> None:
    x, counts = data(size), np.arange(size).astype(np.uint64) % 3
    np.testing.assert_array_equal(
        wf.repeat(wf.asarray(x), wf.asarray(counts)), np.repeat(x, counts.astype(np.int64))
    )


@pytest.mark.parametrize("size", [SMALL, BIG])
def test_bools_whose_bytes_are_any(size: int) -> None:
    """Of memory that became bools NumPy takes all but 0 as true."""
    mask = (np.arange(size) % 5 * 51).astype(np.uint8).view(np.bool_)
    x, given = data(size), wf.asarray(mask)
    np.testing.assert_array_equal(wf.nonzero(given)[0], np.nonzero(mask)[0])
    np.testing.assert_array_equal(wf.asarray(x)[given], x[mask])
    np.testing.assert_array_equal(wf.unique_values(given), [False, True])
    values, counts = wf.unique_counts(given)
    np.testing.assert_array_equal(values, [False, True])
    np.testing.assert_array_equal(counts, [(~mask).sum(), mask.sum()])


@pytest.mark.parametrize("count", [50, 5000])
def test_strings(count: int) -> None:
    words = [f"{i}.5" for i in range(count)]
    given = wf.asarray(words)
    np.testing.assert_array_equal(
        wf.tf1.string_to_number(given), np.arange(count, dtype=np.float32) + 0.5
    )
    hashes = np.asarray(wf.tf1.string_to_hash_bucket_fast(given, 1000))
    assert (
        hashes.tolist()
        == [int(wf.tf1.string_to_hash_bucket_fast(wf.asarray(w), 1000)) for w in words[:50]]
        + hashes[50:].tolist()
    )
    raw = wf.asarray([np.int32(i).tobytes() for i in range(count)])
    np.testing.assert_array_equal(wf.tf1.decode_raw(raw, wf.int32)[:, 0], np.arange(count))
    numbers, names = wf.tf1.decode_csv([f"{i},n{i}" for i in range(count)], [[0], [""]])
    np.testing.assert_array_equal(numbers, np.arange(count))
    assert names.numpy().tolist() == [b"n%d" % i for i in range(count)]
    with pytest.raises(InvalidArgumentError, match="b'x' is no float32"):
        wf.tf1.string_to_number(wf.asarray([*words, "x"]))


def test_the_variable_that_turns_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.frontend.eager.numpy_calls import SWITCH

    monkeypatch.setattr(SWITCH, "on", False)
    for module in ("selection", "unique"):
        where = f"weft.runtime.dynamic.{module}.run_kernel"
        monkeypatch.setattr(where, lambda *_: pytest.fail("a kernel ran"))
    x = data(BIG)
    np.testing.assert_array_equal(wf.nonzero(wf.asarray(x))[0], np.nonzero(x)[0])
    np.testing.assert_array_equal(wf.unique_values(wf.asarray(x)), np.unique(x))
