"""The language model of Figure 9 with its full softmax, in one process, beside PyTorch.

    python benchmarks/paper/figure9_torch.py [--rounds 10] [--json FILE] [--units 512] ...

PyTorch has the same arithmetic from the same first values: an embedding with sparse gradients,
`torch.nn.LSTM` with a projection where it takes one (narrower than the cells; else the cell is
written out, over time), `cross_entropy`, clipped gradients of the LSTM, Adagrad. The losses of
three steps must agree, which the updates are part of, before anything is timed. Needs the `bench`
extra. There is no sampled softmax in PyTorch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft as wf
from weft.frontend.tools.bench_workloads import compare, machine

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import language_model

Array = np.ndarray[Any, Any]


def gates_in_torch_order(kernel: Array) -> Array:
    """The columns i, j, f, o of weft's cell as rows i, f, g, o."""
    i, j, f, o = np.split(kernel, 4, axis=-1)
    return np.ascontiguousarray(np.concatenate([i, f, j, o], axis=-1).T)


def torch_cell(values: dict[str, Array], sizes: Any) -> tuple[list[Any], Callable[..., Any]]:
    """The LSTM's parameters, and a function of (rows, state): outputs and the state after them."""
    import torch
    from torch.nn import functional

    kernel, inside = gates_in_torch_order(values["kernel"]), sizes.projection
    bias = values["bias"].copy()
    bias[2 * sizes.units : 3 * sizes.units] += 1  # forget_bias, which weft adds in the cell
    given = (
        kernel[:, :inside], kernel[:, inside:], gates_in_torch_order(bias), values["projection"].T,
    )  # fmt: skip
    w, u, b, p = inner = [torch.tensor(np.ascontiguousarray(a), requires_grad=True) for a in given]
    if inside < sizes.units:
        module = torch.nn.LSTM(inside, sizes.units, proj_size=inside)
        with torch.no_grad():
            for name, value in zip(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "weight_hr_l0"),
                                   inner, strict=True):  # fmt: skip
                getattr(module, name).copy_(value)
            module.bias_hh_l0.zero_().requires_grad_(False)
        return [q for q in module.parameters() if q.requires_grad], module

    def written_out(rows: Any, state: tuple[Any, Any]) -> tuple[Any, tuple[Any, Any]]:
        h, c = state[0][0], state[1][0]
        outputs = []
        for x in functional.linear(rows, w, b):
            i, f, g, o = (x + functional.linear(h, u)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = functional.linear(torch.sigmoid(o) * torch.tanh(c), p)
            outputs.append(h)
        return torch.stack(outputs), (h[None], c[None])

    return inner, written_out


def torch_step(values: dict[str, Array], sizes: Any, batches: Iterator[Array]) -> Callable[[], Any]:
    """One training step in PyTorch, which returns the loss before it."""
    import torch
    from torch.nn import functional

    inner, cell = torch_cell(values, sizes)
    table, weights, biases = (
        torch.tensor(values[n], requires_grad=True)
        for n in ("embedding", "softmax", "softmax_bias")
    )
    state = [torch.zeros(1, sizes.batch, n) for n in (sizes.projection, sizes.units)]  # h, c
    optimizer = torch.optim.Adagrad(
        [*inner, table, weights, biases], language_model.RATE, initial_accumulator_value=0.1
    )

    def step() -> Any:
        ids = torch.from_numpy(next(batches).T.astype(np.int64))
        optimizer.zero_grad(set_to_none=True)
        rows = functional.embedding(ids[:-1], table, sparse=True)
        outputs, after = cell(rows, tuple(state))
        logits = functional.linear(outputs.flatten(0, 1), weights, biases)
        loss = functional.cross_entropy(logits, ids[1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(inner, language_model.CLIP)
        optimizer.step()
        state[:] = [s.detach() for s in after]
        return loss.detach()

    return step


def contest(sizes: Any, text: Any, rounds: int, clock: Callable[[], float]) -> Any:
    """Both sides, once their losses agree."""

    def batches() -> Iterator[Array]:
        found = list(language_model.pieces(text.learn, sizes.batch, sizes.length).take(50))
        while True:
            yield from found

    model = language_model.Model(sizes, 0, seed=0)
    session = wf.Session(graph=model.graph)
    session.run(model.init)
    net = model.net
    names = {
        "kernel": net.cell.kernel, "bias": net.cell.bias, "projection": net.cell.projection,
        "embedding": net.table[0], "softmax": net.weights[0], "softmax_bias": net.biases[0],
    }  # fmt: skip
    values = dict(zip(names, session.run(list(names.values())), strict=True))
    pieces = batches()

    def step() -> Any:
        return session.run([model.loss, model.train], {model.ids: next(pieces)})[0]

    contestants = {"weft": step, "torch": torch_step(values, sizes, batches())}
    losses = {n: [float(run()) for _ in range(3)] for n, run in contestants.items()}
    np.testing.assert_allclose(losses["weft"], losses["torch"], rtol=1e-4)
    name = f"LSTM-{sizes.units}-{sizes.projection}, {sizes.vocabulary} words"
    name = f"{name}, batch {sizes.batch} x {sizes.length}"
    return compare(name, contestants, rounds=rounds, clock=clock)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in (("rounds", 10), ("vocabulary", 40000), ("units", 512), ("projection", 512),
                        ("batch", 16), ("length", 20)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--processor-time", action="store_true",
                        help="not that of other jobs: for one thread, taskset -c 0")  # fmt: skip
    parser.add_argument("--json", type=Path)
    o = parser.parse_args(argv)
    text = language_model.Text.of(language_model.read_files(), o.vocabulary)
    sizes = language_model.Sizes(
        len(text.names), o.units, o.projection, o.batch, o.length, parts=1, sampled=0
    )
    clock = time.process_time if o.processor_time else time.perf_counter
    found = contest(sizes, text, o.rounds, clock)
    least, usual = found.ratio("torch")
    mine = found.timings["weft"]
    print(f"{found.workload}: weft {mine.minimum * 1e3:.1f} / {mine.median * 1e3:.1f} ms, "
          f"PyTorch over it {least:.2f} / {usual:.2f}")  # fmt: skip
    seconds = {n: {"minimum": t.minimum, "median": t.median} for n, t in found.timings.items()}
    result = {"workload": found.workload, "machine": machine(), "seconds": seconds}
    if o.json:
        o.json.write_text(json.dumps(result, indent=1) + "\n")
    return result


if __name__ == "__main__":
    main()
