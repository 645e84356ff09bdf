"""Products and what follows them in one kernel: the pass, and the kernels in the emulator, against
the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import cuda_models
import ml_dtypes
import numpy as np
import pytest
from cuda_epilogue_checks import DTYPES, array, check, kernels, traced
from cuda_graphs import lanes, run
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from shares import every

import weft as wf
from weft.codegen.cuda.lowerings import fused_launches
from weft.codegen.cuda.products import matmul
from weft.codegen.cuda.products.fused import fused_product
from weft.codegen.cuda.products.tiles import TENSOR_TILES, TILES, Tile, choose, cycles
from weft.ir.errors import UnsupportedError
from weft.ir.graph import Graph
from weft.passes.fusion.epilogues import epilogue_reasons, fuse_epilogues
from weft.passes.fusion.fuse import fuse
from weft.passes.manager import run_passes
from weft.passes.pipelines import GPU, PASSES
from weft.runtime.device.execution.executable import compile_for_device

Array = np.ndarray[Any, Any]


class TestRandom:
    """Sizes from 0 to three tiles, primes among them; every way of operands and results."""

    @given(st.data())
    @examples(25, deadline=None)
    def test_products_with_epilogues(self, data: st.DataObject) -> None:
        draw = data.draw
        side = st.sampled_from([0, 1, 2, 7, 16, 17, 31, 32, 36, 61, 97])
        m, n = draw(side), draw(side)
        k = draw(st.sampled_from([0, 1, 5, 32, 33, 65, 130]))
        dtype = draw(st.sampled_from(DTYPES))
        batch = draw(st.sampled_from([(), (), (3,), (2, 1), (1, 2)]))
        shared = draw(st.booleans())
        ta, tb = draw(st.booleans()), draw(st.booleans())
        summed = dtype is np.float32 and draw(st.booleans())
        follows = draw(st.lists(st.sampled_from(sorted(FOLLOWS)), min_size=1, max_size=3))
        x = array(*batch, *((k, m) if ta else (m, k)), dtype=dtype)
        y = array(*(() if shared else batch), *((n, k) if tb else (k, n)), dtype=dtype, seed=1)
        bias, full = array(n, dtype=dtype, seed=2), array(*batch, m, n, dtype=dtype, seed=3)
        outside = array(m, n, dtype=dtype, seed=4)

        def program(x: Any, y: Any, bias: Any, full: Any, outside: Any) -> Any:
            x = wf.matrix_transpose(x) if ta else x
            y = wf.matrix_transpose(y) if tb else y
            made = [x @ y]
            for name in follows:
                made.append(FOLLOWS[name](made[-1], bias, full, outside))
            if summed:
                made.append(wf.sum(made[-1], axis=tuple(range(len(made[-1].shape) - 1))))
            return made[1:] if len(follows) > 2 or summed else made[-1]

        check(program, x, y, bias, full, outside)


FOLLOWS: dict[str, Callable[..., Any]] = {
    "bias": lambda c, bias, full, outside: c + bias,
    "residual": lambda c, bias, full, outside: c + full,
    "gate": lambda c, bias, full, outside: c * full,
    "mask": lambda c, bias, full, outside: wf.where(outside > 0, c, outside),
    "relu": lambda c, bias, full, outside: wf.maximum(c, wf.zeros_like(c)),
    "scale": lambda c, bias, full, outside: c * 3,
    "row bias": lambda c, bias, full, outside: c - outside[..., :1] if c.shape[-1] else c,
}


class TestKernels:
    """Each way of doing a product, with what follows it."""

    @pytest.mark.parametrize("tile", TILES, ids=str)
    @pytest.mark.parametrize("columns", [3, 4])
    def test_tiles(self, tile: Tile, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Vectors of 128 bits where the columns are whole numbers of them, else one by one."""
        monkeypatch.setattr(matmul, "choose", lambda *given, **how: (tile, 1))
        size = tile.size
        x, w, b = array(size + 7, 20), array(20, size + columns), array(size + columns)
        made = check(lambda x, w, b: wf.tanh(x @ w + b), x, w, b)
        (op,) = made.ops
        ((launch,), _) = fused_launches(op)
        assert launch.kernel.name.startswith(f"matmul_add_tanh_f32_{size}x{size}")
        assert ("store_f32x4(out0" in launch.kernel.source) == (columns == 4)

    @pytest.mark.parametrize("tile", TENSOR_TILES, ids=str)
    @pytest.mark.parametrize("columns", [3, 8])
    def test_tensor_tiles(self, tile: Tile, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(matmul, "choose", lambda *given, **how: (tile, 1))
        size, dtype = tile.size, np.float16
        x, w = array(size + 7, 20, dtype=dtype), array(20, size + columns, dtype=dtype, seed=1)
        b = array(size + columns, dtype=dtype, seed=2)
        made = check(lambda x, w, b: wf.tanh(x / 4 @ w + b), x, w, b)
        op = made.ops[-1]
        ((launch,), _) = fused_launches(op)
        assert launch.kernel.name.startswith(f"matmul_add_tanh_f16_{size}x{size}")
        assert "_tensor" in launch.kernel.name
        assert ("store_u16x8(out0" in launch.kernel.source) == (columns == 8)

    def test_parts_of_k(self) -> None:
        x, w, b = array(20, 1100), array(1100, 36) * np.float32(0.03), array(36)
        made = check(lambda x, w, b: wf.tanh(x @ w + b), x, w, b)
        (op,) = made.ops
        launches, _ = fused_launches(op)
        assert ["tanh" in n.kernel.name for n in launches] == [False, True]

    @pytest.mark.parametrize("shape", [(2, 70), (70, 2)])
    @pytest.mark.parametrize("long", [matmul.LONG, 64])
    def test_few_rows_or_columns(
        self, shape: tuple[int, int], long: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(matmul, "LONG", long)
        m, n = shape
        check(lambda x, w, r: wf.exp(x @ w) * r, array(m, 40), array(40, n), array(m, n))

    @pytest.mark.parametrize("batch", [(), (3,)])
    @pytest.mark.parametrize("dtype", every(3, [np.float32, np.float64, np.float16]))
    @pytest.mark.parametrize("columns", [36, 37])
    def test_sums_over_all_rows(self, batch: tuple[int, ...], dtype: Any, columns: int) -> None:
        """The gradient of a bias; several results, one of them the product's own."""

        def program(x: Any, w: Any, m: Any) -> Any:
            c = x @ w
            d = wf.where(m > 0, c, wf.zeros_like(c))
            axes = tuple(range(len(batch) + 1))
            return d, wf.sum(d, axis=axes), wf.sum(d * d, axis=axes, keepdims=True), c

        x, w = array(*batch, 70, 40, dtype=dtype), array(*batch, 40, columns, dtype=dtype)
        made = check(program, x / 8, w, array(*batch, 70, columns, dtype=dtype))
        (op,) = made.ops
        assert len(op.results) == 4
        launches, _ = fused_launches(op)
        assert ["combine" in n.kernel.name for n in launches] == [False, True, True]

    def test_many_rows_add_up_exactly(self) -> None:
        """Sums over tiles' rows carry what they round off."""
        x, w = np.full((4100, 1), 0.1, np.float32), np.ones((1, 20), np.float32)
        _, made = traced(lambda x, w: wf.sum(wf.exp(x @ w), axis=0), x, w)
        (got,) = run(made, [x, w], lanes)
        exact = 4100 * np.float64(np.exp(np.float32(0.1)))
        assert np.abs(got / exact - 1).max() < 4 * 2.0**-24

    def test_a_mask_of_each_matrix_is_read_again_for_all(self) -> None:
        q, k = array(2, 3, 17, 20), array(2, 3, 17, 20, seed=1)
        mask = array(17, 17)
        made = check(lambda q, k, mask: q @ wf.matrix_transpose(k) * 0.1 + mask, q, k, mask)
        assert kernels(made) == ["matmul_fma"]

    def test_16_bit_floats_are_cast_from_sums_in_f32(self) -> None:
        """Results of more bits than the operands have the sums' own."""
        x, w = array(40, 33, dtype=np.float16), array(33, 36, dtype=np.float16)
        _, made = traced(lambda x, w: wf.astype(x @ w, wf.float32) * 2, x, w)
        (got,) = run(made, [x, w], lanes)
        wanted = np.float64(x) @ np.float64(w) * 2
        assert np.abs(got - wanted).max() < 1e-5

    def test_rows_and_columns_in_another_order(self) -> None:
        """A permutation after a product, rows before batches and columns before rows."""
        x, y = array(2, 3, 17, 20), array(2, 3, 20, 18)
        for axes in ((0, 2, 1, 3), (0, 1, 3, 2), (2, 0, 1, 3)):
            made = check(lambda x, y, a=axes: wf.permute_dims(x @ y, a), x, y)
            assert kernels(made) == ["matmul_permute_dims"]
            (op,) = made.ops
            columns = fused_product(op).product.n  # neighbours in what is written
            assert columns == (17 if axes == (0, 1, 3, 2) else 18)

    @pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int16])
    def test_heads_are_read_and_written_where_they_are(self, dtype: Any) -> None:
        q, k = array(2, 17, 3, 20, dtype=dtype), array(2, 17, 3, 20, dtype=dtype, seed=1)

        def heads(q: Any, k: Any) -> Any:
            q, k = (wf.permute_dims(t, (0, 2, 1, 3)) for t in (q, k))
            scores = (q @ wf.matrix_transpose(k)) * 2
            return wf.permute_dims(scores @ k, (0, 2, 1, 3))

        assert kernels(check(heads, q, k)) == ["matmul_multiply", "matmul_permute_dims"]


class TestModels:
    """What the pass is worth: launches, and bytes that nests read and write."""

    @pytest.mark.parametrize(("model", "fewer"), [("digits step", 3), ("MLP", 2)])
    def test_fewer_launches_and_bytes(
        self, model: str, fewer: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plans = []

        def compiled(graph: Graph, variables: Any, **options: Any) -> Any:
            apart = tuple(p for p in GPU if p is not fuse_epilogues)
            made = [compile_for_device(graph, variables, passes=p, **options) for p in (apart, GPU)]
            plans.extend(made)
            return made[-1]

        monkeypatch.setattr(cuda_models, "compile_for_device", compiled)
        cuda_models.MODELS[model]().kernels()
        before, after = plans
        assert len(before.plan.launches()) - len(after.plan.launches()) >= fewer
        moved = [made.report.passes[-1].bytes for made in plans]
        assert moved[1] < 0.9 * moved[0]


class TestPass:
    """What joins, and what does not, with the reason."""

    def reason(self, function: Callable[..., Any], *args: Array) -> str:
        graph, made = traced(function, *args)
        before = GPU[: GPU.index(fuse_epilogues)]
        ((_, why),) = epilogue_reasons(run_passes(graph, before)[0])
        run(made, list(args), lanes)
        return why

    def test_who_else_needs_the_product_reads_it(self) -> None:
        def program(x: Any, w: Any, v: Any) -> Any:
            c = x @ w
            return wf.tanh(c), c @ v, c

        made = check(program, array(33, 20), array(20, 40), array(40, 20))
        assert sorted(kernels(made)) == ["matmul", "matmul_tanh"]

    def test_softmax_does_rows(self) -> None:
        why = self.reason(lambda x, w: wf.nn.softmax(x @ w), array(9, 4), array(4, 50))
        assert "does rows" in why

    def test_what_is_read_across(self) -> None:
        x, w = array(33, 20), array(20, 40)
        why = self.reason(lambda x, w, y: wf.tanh(x @ w) + y.T, x, w, array(40, 33))
        assert "reads something else across its columns" in why

    def test_a_fold_of_everything(self) -> None:
        why = self.reason(lambda x, w: wf.sum(wf.tanh(x @ w)), array(33, 20), array(20, 40))
        assert "more than elementwise" in why

    def test_two_products_in_one_nest(self) -> None:
        x, w = array(33, 20), array(20, 40)
        made = check(lambda x, w, v: wf.tanh(x @ w) * (x @ v), x, w, array(20, 40, seed=1))
        assert sorted(kernels(made)) == ["matmul", "matmul_tanh_multiply"]

    def test_loops(self) -> None:
        def program(x: Any, w: Any) -> Any:
            return wf.while_loop(lambda x: wf.sum(x) < 100, lambda x: wf.exp(x @ w) + x, [x])

        _, made = traced(program, array(18, 20), array(20, 20))
        body = next(op for op in made.ops if op.name == "while").regions[1]
        assert "matmul_exp_add" in [str(op.attrs.get("kind")) for op in body.ops]

    def test_sums_over_rows_keep_k_whole_only_where_that_takes_little(self) -> None:
        """The pass and the choice of parts go by sizes each: sums join no product whose k had
        better be cut."""
        for m, n, k in product((32, 384, 640, 2048, 4096), (64, 384, 768), (200, 512, 4096)):
            x, w = np.empty((m, k), np.float32), np.empty((k, n), np.float32)
            graph = wf.compile(lambda x, w: wf.sum(wf.tanh(x @ w), axis=0)).trace(x, w)
            ((_, why),) = epilogue_reasons(fuse(graph))
            whole, cut = (
                cycles((m, n, k), 1, *choose((m, n, k), 1, bits=32, whole=whole), bits=32)
                for whole in (True, False)
            )
            if "k is cut" in why:
                assert whole > cut
            else:
                assert whole <= 1.4 * cut

    def test_sums_over_few_blocks_stay_apart(self) -> None:
        """k is cut into parts there, whose sums are complete only after the product's kernel."""

        def program(x: Any, w: Any) -> Any:
            return wf.sum(wf.tanh(x @ w), axis=0)

        why = self.reason(program, array(33, 300), array(300, 40))
        assert "sums over its rows, and k is cut into parts" in why
        assert kernels(check(program, array(33, 200), array(200, 40))) == ["matmul_tanh_sum"]
        assert len(kernels(check(program, array(16, 200), array(200, 40)))) == 2

    def test_computed_operands_are_refused(self) -> None:
        x, w = np.zeros((1 << 14, 512), np.float32), np.zeros((512, 4), np.float32)
        graph = wf.compile(lambda x, w: wf.tanh(x) @ w).trace(x, w)
        (op,) = run_passes(graph, [fuse, PASSES["fuse_prologues"]])[0].ops
        with pytest.raises(UnsupportedError, match="'matmul' of what a loop nest computes has no"):
            fused_launches(op)
