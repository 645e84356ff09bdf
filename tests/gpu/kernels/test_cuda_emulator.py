"""The emulator of CUDA kernels: what it computes, and each fault that it must find."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cuda_sources import kernel, results

from weft.codegen.cuda.emulator import EmulationError, run
from weft.codegen.cuda.source.kernel import DIVISIONS

Array = np.ndarray[Any, Any]
#: Both ways to carry out a kernel: all threads together, and each alone in a random order.
WAYS = [None, 1, 2]


def floats(n: int) -> Array:
    return np.zeros(n, np.float32)


def fails(body: str, message: str, *args: Any, parameters: str = "x:f32 n", **more: Any) -> None:
    """`body` fails with `message` in every way in which it is carried out."""
    ways = more.pop("ways", WAYS)
    blocks, threads = more.pop("blocks", 1), more.pop("threads", 32)
    for seed in ways:
        with pytest.raises(EmulationError, match=message):
            run(kernel(parameters, body, **more), blocks, threads, args, seed=seed)


def refused(body: str, message: str, parameters: str = "x:f32 n", before: str = "") -> None:
    """`body` breaks a rule of the vocabulary: found before anything runs."""
    with pytest.raises(EmulationError, match=message):
        run(kernel(parameters, body, before), 1, 1, [floats(4), 1])


class TestControlFlow:
    @pytest.mark.parametrize("seed", WAYS)
    def test_loops_that_threads_leave_at_different_times(self, seed: int | None) -> None:
        body = """
            s = u32(0)
            k = u32(0)
            while True:
                k = u32(k + u32(1))
                if k > u32(100):
                    s = u32(s + u32(1000))
                    break
                if u32(k % u32(2)) == u32(0):
                    continue
                if k > t:
                    break
                for j in range(i64(t)):
                    if j == 3:
                        break
                    s = u32(s + k)
            out[t] = s
        """

        def wanted(t: int) -> int:
            s = k = 0
            while True:
                k += 1
                if k % 2 == 0:
                    continue
                if k > t:
                    return s
                s += k * min(t, 3)

        assert results(body, "u32", seed=seed).tolist() == [wanted(t) for t in range(32)]

    @pytest.mark.parametrize("seed", WAYS)
    def test_returns_from_loops_and_branches(self, seed: int | None) -> None:
        before = """
            def find(x, n, wanted):
                for i in range(n):
                    if x[i] == wanted:
                        return i
                    elif x[i] > wanted:
                        return i64(-2)
                return i64(-1)
        """
        body = """
            if t == u32(5):
                out[t] = i64(99)
                return
            out[t] = find(x, n, i64(t))
        """
        x = np.array([0, 2, 3, 7, 8, 30])
        got = results(body, "i64", before=before, seed=seed, x=x, n=6)
        wanted = [
            x.tolist().index(t) if t in x else (-2 if t < 30 else -1) if t != 5 else 99
            for t in range(32)
        ]
        assert got.tolist() == wanted

    @pytest.mark.parametrize("seed", WAYS)
    def test_a_variable_of_a_loop_seen_after_it(self, seed: int | None) -> None:
        # Threads that left earlier keep the value of their own last time round.
        body = """
            last = u32(0)
            k = u32(0)
            while k < t:
                seen = u32(k * u32(10))
                last = seen
                k = u32(k + u32(1))
            out[t] = last
        """
        got = results(body, "u32", seed=seed)
        assert got.tolist() == [0] + [10 * t for t in range(31)]

    @pytest.mark.parametrize("seed", WAYS)
    def test_counting_in_all_directions(self, seed: int | None) -> None:
        body = """
            s = i64(0)
            for i in range(3, i64(t), 4):
                s += i
            for j in range(i64(t), -3, -2):
                s = s * 3 + j
            for k in range(2, 5):
                last = k
            out[t] = s * 7 + last
        """

        def wanted(t: int) -> int:
            s = sum(range(3, t, 4))
            for j in range(t, -3, -2):
                s = s * 3 + j
            return s * 7 + 4

        assert results(body, "i64", seed=seed).tolist() == [wanted(t) for t in range(32)]

    @pytest.mark.parametrize("seed", WAYS)
    def test_the_second_of_and_is_for_those_whom_the_first_holds(self, seed: int | None) -> None:
        body = """
            inside = t < u32(n) and x[t] > f32(0.0)
            outside = t >= u32(n) or x[t] > f32(1.0)
            v = x[t] if t < u32(n) else f32(-1.0)
            out[t] = f32(u32(inside)) + f32(10.0) * f32(u32(outside)) + f32(100.0) * v
        """
        x = np.array([0, 1, 2], np.float32)
        wanted = [0, 101, 211] + [-90] * 29
        assert results(body, "f32", seed=seed, x=x, n=3).tolist() == wanted

    @pytest.mark.parametrize("seed", WAYS)
    def test_tuples_and_swaps(self, seed: int | None) -> None:
        before = """
            def both(a, b):
                if a > b:
                    return a, b
                return b, a
        """
        body = """
            a, b = both(i64(t), i64(10))
            a, b = b, a
            out[t] = a * 100 + b
        """
        wanted = [min(t, 10) * 100 + max(t, 10) for t in range(32)]
        assert results(body, "i64", before=before, seed=seed).tolist() == wanted

    @pytest.mark.parametrize("threads", [1, 31, 33, 96, 256])
    @pytest.mark.parametrize("seed", [None, 3])
    def test_grids_of_all_sizes(self, threads: int, seed: int | None) -> None:
        body = """
            i = u32(u32(cuda.blockIdx.x * cuda.blockDim.x) + u32(cuda.threadIdx.x))
            while i < u32(n):
                x[i] = f32(cuda.laneid) + f32(cuda.gridDim.x) * f32(100.0)
                i = u32(i + u32(cuda.gridDim.x * cuda.blockDim.x))
        """
        x = floats(1000)
        run(kernel("x:f32 n", body), 3, threads, [x, x.size], seed=seed)
        assert x.tolist() == [i % threads % 32 + 300 for i in range(1000)]

    def test_many_blocks_of_lanes_together(self) -> None:
        body = "x[cuda.blockIdx.x] = f32(cuda.blockIdx.x)\n"
        x = floats(3000)
        run(kernel("x:f32", f"if cuda.threadIdx.x == 63:\n    {body}"), 3000, 64, [x])
        assert (x == np.arange(3000)).all()


class TestMemoryFaults:
    def test_past_the_end(self) -> None:
        fails("x[cuda.threadIdx.x] = f32(0.0)", r"block 0, thread \d+: x\[\d+\] of 8", floats(8), 0)
        fails("v = x[n]\nx[0] = v", r"line 2, .*x\[8\] of 8 elements", floats(8), 8)

    def test_negative(self) -> None:
        body = "v = x[i32(cuda.threadIdx.x - i32(1))]"
        fails(body, r"thread 0: x\[-1\]", floats(64), 0)
        fails("v = x[n]", r"x\[-1\] of 8", floats(8), -1)

    def test_only_of_threads_that_are_there(self) -> None:
        body = "if cuda.threadIdx.x < 8:\n    x[cuda.threadIdx.x] = f32(1.0)"
        for seed in WAYS:
            x = floats(8)
            run(kernel("x:f32", body), 1, 32, [x], seed=seed)
            assert (x == 1).all()

    def test_shared_and_local(self) -> None:
        body = "s = cuda.shared.array(8, f32)\ns[n] = f32(0.0)"
        fails(body, r"line 3, .*a shared array\[8\] of 8", floats(1), 8, threads=1)
        body = "s = cuda.local.array(8, f32)\ns[n] = f32(0.0)"
        fails(body, r"line 3, .*\[-1\] of", floats(1), -1)
        body = "s = cuda.local.array(8, f32)\ns[cuda.threadIdx.x] = f32(0.0)"
        fails(body, r"line 3, .*\[\d+\] of", floats(1), -1)

    @pytest.mark.parametrize("space", ["shared", "local"])
    def test_nothing_was_written_there(self, space: str) -> None:
        body = f"""
            s = cuda.{space}.array(2, f32)
            if cuda.threadIdx.x == 0 and n == 3:
                s[1] = f32(0.0)
            cuda.syncthreads()
            x[cuda.threadIdx.x] = s[1]
        """
        fails(body, r"line 6, .*(is not set|before anything is written)", floats(32), 0)

    def test_128_bits_of_shared_memory(self) -> None:
        body = """
            s = cuda.shared.array(8, f32)
            store_f32x4(s, 0, x[0], x[1], x[2], x[3])
            s[4] = x[n]
            cuda.syncwarp(u32(1))
            a, b, c, d = load_f32x4(s, n)
            x[0] = f32(a + d)
        """
        for seed in WAYS:
            x = floats(8)
            wanted = x[0] + x[3]
            run(kernel("x:f32 n", body), 1, 1, [x, 0], seed=seed)
            assert x[0] == wanted
        fails(body, "before anything is written", floats(8), 4, threads=1)
        fails(body, r"128 bits at a shared array\[1\]", floats(8), 1, threads=1)
        body = "s = cuda.local.array(4, f32)\nstore_f32x4(s, 0, x[0], x[1], x[2], x[3])"
        refused(body, "store_f32x4 in local memory")

    def test_misaligned(self) -> None:
        body = "a, b, c, d = load_f32x4(x, n)"
        fails(body, r"128 bits at x\[2\], no multiple of 16 bytes", floats(8), 2)
        body = "store_f32x4(x, n, f32(0.0), f32(0.0), f32(0.0), f32(0.0))"
        fails(body, r"128 bits at x\[1\]", floats(8), 1, threads=1)
        fails(body, r"x\[8\] of 8", floats(9)[:8], 5, threads=1)
        whole = floats(64)
        start = (-whole.ctypes.data % 16) // 4
        fails(body, r"128 bits at x\[4\]", whole[start + 1 :], 4, threads=1)

    def test_arguments(self) -> None:
        made = kernel("x:f32 n", "x[0] = f32(n)")
        with pytest.raises(EmulationError, match="an array for the integer n"):
            run(made, 1, 1, [floats(2), floats(2)])
        with pytest.raises(EmulationError, match="x takes an array whose elements lie in a row"):
            run(made, 1, 1, [floats(4)[::2], 1])
        with pytest.raises(EmulationError, match="257 threads of a block; at most 256"):
            run(made, 1, 257, [floats(2), 1])
        with pytest.raises(EmulationError, match="1025 threads of a block; at most 1024"):
            run(kernel("x:f32 n", "x[0] = f32(n)", threads=2048), 1, 1025, [floats(2), 1])
        with pytest.raises(EmulationError, match="0 blocks"):
            run(made, 0, 1, [floats(2), 1])
        halves = np.array([1, 2], np.float16)
        run(kernel("x:u16", "x[0] = u16(15)"), 1, 1, [halves])
        assert halves.view(np.uint16)[0] == 15


class TestMeetings:
    def test_a_barrier_that_some_do_not_reach(self) -> None:
        body = "if cuda.threadIdx.x < 7:\n    cuda.syncthreads()\nx[0] = f32(0.0)"
        message = "thread 7: others of its block are at syncthreads"
        fails(body, message, floats(1), 0, ways=[None])
        body = """
            if cuda.threadIdx.x < 7:
                cuda.syncthreads()
            else:
                cuda.syncthreads()
        """
        fails(body, "line (3|5)", floats(1), 0)

    def test_a_barrier_in_a_loop_of_several_lengths(self) -> None:
        body = """
            for i in range(cuda.threadIdx.x):
                cuda.syncthreads()
            v = cuda.syncthreads_or(n == 0)
        """
        fails(body, "line (3|4)", floats(1), 0)

    def test_threads_that_have_ended_are_not_waited_for(self) -> None:
        body = """
            s = cuda.shared.array(32, f32)
            if cuda.threadIdx.x >= 20:
                return
            s[cuda.threadIdx.x] = f32(cuda.threadIdx.x)
            cuda.syncthreads()
            x[cuda.threadIdx.x] = s[i32(i32(19) - cuda.threadIdx.x)]
        """
        for seed in WAYS:
            x = floats(20)
            run(kernel("x:f32", body), 1, 32, [x], seed=seed)
            assert x.tolist() == list(range(19, -1, -1))

    def test_a_shuffle_that_some_do_not_reach(self) -> None:
        body = """
            v = f32(0.0)
            if cuda.laneid > 3:
                v = cuda.shfl_xor_sync(0xffffffff, v, 1)
            cuda.syncthreads()
        """
        fails(body, r"line 4, .*(wait for it in|waits in)", floats(1), 0)

    def test_a_shuffle_from_a_thread_that_has_ended(self) -> None:
        body = """
            if cuda.laneid > 29:
                return
            v = cuda.shfl_down_sync(0xffffffff, f32(0.0), 1)
        """
        fails(body, r"thread 29: shfl_down_sync reads lane 30, which takes no part", floats(1), 0)

    def test_a_shuffle_from_a_lane_that_the_mask_does_not_name(self) -> None:
        body = "if cuda.laneid < 16:\n    v = cuda.shfl_sync(0xffff, f32(0.0), 16)"
        fails(body, r"thread \d+: shfl_sync reads lane 16", floats(1), 0)

    def test_a_mask_without_the_thread_itself(self) -> None:
        body = "v = cuda.any_sync(0xffff, n == 0)"
        fails(body, r"thread 16: any_sync: .*no bit for the thread itself|waits in", floats(1), 0)

    def test_masks_that_differ(self) -> None:
        body = "m = u32(0xffffffff) if cuda.laneid < 16 else u32(0xffff0000)\ncuda.syncwarp(m)"
        fails(body, "different masks|waits in", floats(1), 0)

    def test_groups_of_lanes_by_themselves(self) -> None:
        body = """
            m = u32(0xffff) if t < u32(16) else u32(0xffff0000)
            if t < u32(16):
                out[t] = cuda.shfl_xor_sync(m, t, 15)
            else:
                out[t] = cuda.shfl_xor_sync(m, t, 1)
        """
        wanted = [15 - t for t in range(16)] + [t ^ 1 for t in range(16, 32)]
        for seed in WAYS:
            assert results(body, "u32", seed=seed).tolist() == wanted


SUMS = """
    s = cuda.shared.array(64, f32)
    t = cuda.threadIdx.x
    s[t] = f32(t)
    cuda.syncthreads()
    k = i32(32)
    while k > 0:
        if t < k:
            s[t] = s[t] + s[i32(t + k)]
        cuda.syncthreads()
        k = i32(k >> 1)
    if t == 0:
        x[0] = s[0]
"""


class TestRaces:
    @pytest.mark.parametrize("seed", WAYS)
    def test_a_tree_of_sums(self, seed: int | None) -> None:
        x = floats(1)
        run(kernel("x:f32", SUMS), 1, 64, [x], seed=seed)
        assert x[0] == 64 * 63 / 2

    @pytest.mark.parametrize("place", [0, 1])
    def test_each_barrier_is_needed(self, place: int) -> None:
        parts = SUMS.split("cuda.syncthreads()")
        parts[place] += "pass" + parts.pop(place + 1)
        body = "cuda.syncthreads()".join(parts)
        fails(
            body,
            "a race: reads what block 0, thread 63|a race",
            floats(1),
            0,
            ways=[None],
            threads=64,
        )

    def test_lanes_are_no_barrier(self) -> None:
        # In lock-step the values are right; on a GPU they need not be.
        body = """
            s = cuda.shared.array(32, f32)
            t = cuda.threadIdx.x
            s[t] = f32(t)
            x[t] = s[i32(t ^ i32(1))]
        """
        fails(
            body,
            "line 5, .*a race: reads what block 0, thread 1 writes",
            floats(32),
            0,
            ways=[None],
        )
        synced = body.replace("x[t]", "cuda.syncwarp(0xffffffff)\n            x[t]")
        for seed in WAYS:
            x = floats(32)
            run(kernel("x:f32", synced), 1, 32, [x], seed=seed)
            assert x.tolist() == [t ^ 1 for t in range(32)]

    def test_syncwarp_is_not_for_other_warps(self) -> None:
        body = """
            s = cuda.shared.array(64, f32)
            t = cuda.threadIdx.x
            s[t] = f32(t)
            cuda.syncwarp(0xffffffff)
            x[t] = s[i32(t ^ i32(32))]
        """
        fails(
            body,
            "a race: reads what block 0, thread 32 writes",
            floats(64),
            0,
            ways=[None],
            threads=64,
        )

    def test_a_write_after_others_read(self) -> None:
        body = """
            v = x[0]
            {}
            if cuda.threadIdx.x == 0:
                x[0] = v + f32(1.0)
        """
        fails(
            body.format(""),
            "a race: writes what block 0, thread 31 reads",
            floats(1),
            0,
            ways=[None],
        )
        for seed in WAYS:
            run(
                kernel("x:f32 n", body.format("cuda.syncthreads()")),
                1,
                32,
                [floats(1), 0],
                seed=seed,
            )
        fails(
            body.format("cuda.syncthreads()"),
            "a race: writes what block 1",
            floats(1),
            0,
            ways=[None],
            blocks=2,
        )

    def test_two_writes(self) -> None:
        fails(
            "x[0] = f32(1.0)",
            "a race: writes what block 0, thread 31 writes",
            floats(1),
            0,
            ways=[None],
        )
        fails(
            "if cuda.threadIdx.x == 0:\n    x[0] = f32(1.0)",
            "a race: writes what block 2",
            floats(1),
            0,
            ways=[None],
            blocks=3,
        )

    def test_blocks_that_are_not_carried_out_together(self) -> None:
        body = "if cuda.threadIdx.x == 0:\n    x[cuda.blockIdx.x % n] = f32(1.0)".replace(
            "cuda.blockIdx.x %", "i64(cuda.blockIdx.x) %"
        )
        fails(
            body,
            "block 1000, thread 0: a race: writes what block 0, thread 0 writes: x.0.",
            floats(1000),
            1000,
            ways=[None],
            blocks=1001,
            threads=64,
        )

    def test_one_memory_by_two_names(self) -> None:
        body = "y[cuda.threadIdx.x] = x[cuda.threadIdx.x]"
        made = kernel("x:f32 y:f32", body)
        x = floats(33)
        run(made, 1, 32, [x, x])
        with pytest.raises(
            EmulationError, match="thread 1: a race: writes what block 0, thread 0 reads"
        ):
            run(made, 1, 32, [x[1:], x[:-1]])
        words = kernel(
            "x:u32 y:u64",
            "if cuda.threadIdx.x < 2:\n    y[cuda.threadIdx.x] = u64(x[cuda.threadIdx.x])",
        )
        raw = np.zeros(4, np.uint32)
        with pytest.raises(
            EmulationError, match=r"a race: writes what block 0, thread 1 reads: y\[0\]"
        ):
            run(words, 1, 2, [raw, raw.view(np.uint64)])

    def test_atomics_race_with_others_alone(self) -> None:
        body = "cuda.atomic.add(x, 0, u32(1))"
        for seed in WAYS:
            x = np.zeros(2, np.uint32)
            run(kernel("x:u32", body), 3, 64, [x], seed=seed)
            assert x[0] == 192
        fails(
            body + "\nv = x[0]",
            "a race: reads what",
            np.zeros(1, np.uint32),
            0,
            parameters="x:u32 n",
            ways=[None],
        )
        fails(
            "x[cuda.threadIdx.x] = u32(0)\n" + body,
            "a race: writes what",
            np.zeros(32, np.uint32),
            0,
            parameters="x:u32 n",
            ways=[None],
        )

    def test_no_checks_no_races(self) -> None:
        x = floats(1)
        run(kernel("x:f32", "x[0] = f32(cuda.threadIdx.x)"), 1, 32, [x], check=False)
        assert x[0] == 31


class TestNumbers:
    def test_casts_out_of_range(self) -> None:
        body = "v = {}(x[0])\nx[0] = f32(v)"
        for dtype, value in [
            ("i32", 2.0**31), ("i32", -(2.0**31) - 1000), ("u8", 256), ("u8", -1),
            ("i64", 2.0**63), ("u64", -1.0), ("u32", np.nan), ("i16", np.inf),
        ]:  # fmt: skip
            x = np.full(1, value, np.float32)
            fails(body.format(dtype), "out of range", x, 0, threads=1)
        for dtype, value in [("i32", -(2.0**31)), ("u8", 255.5), ("u8", -0.5), ("i64", -(2.0**63))]:
            for seed in WAYS:
                x = np.full(1, value, np.float32)
                run(kernel("x:f32", body.format(dtype)), 1, 1, [x], seed=seed)
                assert x[0] == np.trunc(value)

    def test_shifts_out_of_range(self) -> None:
        body = "v = n << i64(n)"
        fails(body, "a shift by 64", floats(1), 64)
        fails(body, "a shift by -1", floats(1), -1)
        refused("v = n << 64", "a shift by 64")

    def test_divisions_by_nothing(self) -> None:
        for name in DIVISIONS:
            dtype = name[-3:]
            body = f"v = {name}({dtype}(7), {dtype}(n))"
            fails(body, "line 2.*: a division by 0", floats(1), 0)
            for seed in WAYS:
                x = np.array([2**63 + 9], np.uint64)
                made = kernel("x:u64", f"x[0] = u64({name}({dtype}(x[0]), {dtype}(4)))")
                run(made, 1, 1, [x], seed=seed)
                held = 9 if dtype == "u32" else 2**63 + 9
                assert x[0] == (held // 4 if name.startswith("div") else held % 4)
        for seed in WAYS:
            x = floats(3)
            body = "x[0] = f32(div_u32(u32(n), u32(7)))\nx[1] = f32(rem_u32(u32(n), u32(7)))"
            body += "\nx[2] = f32(div_u32(u32(7), u32(n))) if n > 100 else f32(-1.0)"
            run(kernel("x:f32 n", body), 1, 1, [x, 2**32 + 31], seed=seed)
            assert x.tolist() == [4, 3, 0]
            run(kernel("x:f32 n", body), 1, 1, [x, 0], seed=seed)
            assert x.tolist() == [0, 0, -1]

    @pytest.mark.parametrize("seed", WAYS)
    def test_narrow_integers_wrap_where_they_are_cast(self, seed: int | None) -> None:
        c = 4_000_000_000
        values = {
            "i64(u8(a + a))": 144,
            "i64(a + a)": 400,
            "i64(i32(b + b))": -294967296,
            "i64(b + b)": 4_000_000_000,
            "i64(u32(c * c))": c * c % 2**32,
            "i64(i32(-b))": -2_000_000_000,
            "i64(u32(~c))": 2**32 - 1 - c,
            "i64(~c)": -1 - c,
            "i64(u32(c - u32(4100000000)))": c - 4100000000 + 2**32,
            "i64(u32(c << 3))": c * 8 % 2**32,
            "i64(c << 3)": c * 8,
            "i64(u32(c >> 40))": 0,
            "i64(i32(i32(-7) // i32(2)))": -4,
            "i64(i32(i32(-7) % i32(2)))": 1,
            "i64(u32(c // u32(0)))": 0,
            "i64(-9223372036854775808) // i64(-1)": -(2**63),
            "n + 1": 6,
            "i64(9223372036854775807) + n": -(2**63) + 4,
            "i64(9223372036854775807) * n": 2**63 - 5,
            "i64(-9223372036854775808) - n": 2**63 - 5,
            "2 * 3 + 4": 10,
        }
        lines = ["a = u8(200)", "b = i32(2000000000)", "c = u32(4000000000)"]
        lines += [f"out[{i}] = {text}" for i, text in enumerate(values)]
        out = np.zeros(len(values), np.int64)
        run(kernel("out:i64 n", "\n".join(lines)), 1, 1, [out, 5], seed=seed)
        assert dict(zip(values, out.tolist(), strict=True)) == values


class TestRules:
    """What would have to be widened or rounded behind one's back."""

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("x[0] = x[0] * 0.5", "f32 and float in x.0. . 0.5: cast to one type"),
            ("x[0] = x[0] + f64(1.0)", "f32 and f64"),
            ("v = u32(n)\nw = v + v", r"v \+ v is of 64 bits: write u32\(v \+ v\)"),
            ("v = u32(n)\nw = u32(v + 1)", "u32 and int in"),
            ("v = u32(n)\nw = u32(v + n)", "u32 and i64 in"),
            ("v = u64(n)\nw = v + n", "u64 and i64 in"),
            ("v = u32(n)\nw = -v", "is of 64 bits"),
            ("v = u32(n)\nw = u32(u32(v & v) | (v & v))", "is of 64 bits"),
            ("v = f32(0.0)\nv = f64(0.0)", "v is f32 and becomes f64"),
            ("v = 0.5", "a bare float is f64"),
            ("v = n / n", "no n / n on i64"),
            ("v = x[0] // x[0]", "no x.0. // x.0. on f32"),
            ("v = x[0] ** x[0]", "no x.0. .. x.0. on f32"),
            ("x[0] = n", "a store of i64 to f32"),
            ("x[f32(0.0)] = f32(0.0)", "an index of type f32"),
            ("if n:\n    pass", "a condition of type i64, not bool"),
            ("v = n and n", "are for bools"),
            ("if n > 0:\n    v = n\nx[0] = f32(v)", "v is read where it may not be assigned yet"),
            (
                "while n > 2:\n    v = n\nx[0] = f32(v)",
                "v is read where it may not be assigned yet",
            ),
            ("x[0] = f32(unknown)", "unknown is not known"),
            ("x[0] = sin(x[0])", "no function sin"),
            ("x[0] = exp_f32(f64(0.0))", "exp_f32.f64.: takes f32"),
            ("v = min(n, n)", "no function min"),
            ("cuda.atomic.add(x, 0, f32(1.0))", "cuda.atomic.add on f32"),
            ("v = cuda.shfl_sync(0xffffffff, n > 0, 0)", "cuda.shfl_sync of bool"),
            ("s = cuda.shared.array(n, f32)", "the size of an array is a literal"),
            ("s = cuda.shared.array(12289, f32)", "49156 bytes of shared memory: above 49152"),
            ("s = cuda.shared.array(4, f32); r = cuda.shared.array(4, f32)", "one array each line"),
            ("y = x", "a second name for a pointer"),
            ("return n", "a kernel returns nothing"),
            ("return\nx[0] = f32(0.0)", "is never reached"),
            ("with n:\n    pass", "kernel source has no With"),
            ("v = [n]", "kernel source has no"),
            ("v = i64('1')", "a constant '1'"),
            ("for i in x:\n    pass", "counts a variable over range"),
            ("v = helper(n)", "cuda.syncthreads in a device function"),
            ("v = again(n)", "again calls itself"),
        ],
    )
    def test_rule(self, body: str, message: str) -> None:
        before = """
            def helper(n):
                cuda.syncthreads()
                return n

            def again(n):
                return again(n)

        """
        refused(body, message, before=before)

    def test_the_message_has_the_line(self) -> None:
        with pytest.raises(EmulationError) as e:
            run(kernel("x:f32", "v = f32(1.0)\nx[0] = v * 0.5"), 1, 1, [floats(1)])
        assert str(e.value).startswith("kernel tested, line 3: f32 and float in v * 0.5")
        assert str(e.value).endswith("\n  x[0] = v * 0.5")
        assert (e.value.line, e.value.block, e.value.thread) == (3, -1, -1)
