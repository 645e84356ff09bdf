"""Quantised products against float32: weft's own, PyTorch's, onnxruntime's, where they are there.

    python benchmarks/quantized.py [--json benchmarks/quantized.json] [--rounds 20] [--threads 2]
        [--only decode] [--small]

decode: one row (and a few) times weights of 8 bits (a scale for each column; onnxruntime's
MatMulNBits: for 32 numbers), and of 4 (for 32), with sizes beyond the caches of a core; `copy`
moves as many bytes as the weights have. layers: x in float32, quantised by a known range or by the
rows of a batch, times weights of 8 bits, with bias and ReLU (PyTorch: quantize_dynamic;
onnxruntime: MatMulInteger of DynamicQuantizeLinear). conv: NHWC in float32, quantised by a known
range, as QDQ. Every row is checked against float32 first. "weft" is the quantised form: ratios
above 1 say that it is faster.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Comparison, compare, report

import weft as wf

Array = np.ndarray[Any, Any]
Runs = dict[str, Callable[[], object]]
Q = wf.quantization
#: rows, k, n
DECODE = ((1, 4096, 4096), (1, 4096, 11008), (1, 11008, 4096), (4, 4096, 4096))
LAYERS = ((512, 512, 512), (1024, 1024, 1024), (512, 768, 3072), (128, 1024, 4096))
#: batch, height and width, channels in and out, window, stride
CONVOLUTIONS = ((8, 28, 128, 128, 3, 1), (8, 14, 256, 256, 3, 1), (8, 56, 64, 256, 1, 1))
SMALL = {"decode": ((1, 64, 48),), "layers": ((16, 64, 48),), "conv": ((2, 6, 64, 64, 3, 1),)}


def there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def close(name: str, got: Any, want: Array, most: float) -> None:
    """An error of the norm beyond `most` stops the run."""
    error = np.linalg.norm(np.asarray(got) - want) / np.linalg.norm(want)
    assert error < most, f"{name}: {error:.2%} from float32"


# ------------------------------------------------------------------------------------------ peers
def torch_runs(x: Array, w: Array, bias: Array | None, relu: bool, threads: int) -> Runs:
    """PyTorch in float32, and its dynamic int8."""
    import torch

    torch.set_num_threads(threads)
    linear = torch.nn.Linear(*w.shape, bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(w.T)))
        if bias is not None:
            linear.bias.copy_(torch.from_numpy(bias))
    model = torch.nn.Sequential(linear, *([torch.nn.ReLU()] if relu else [])).eval()
    given = torch.from_numpy(x)
    runs: Runs = {"torch f32": lambda: model(given)}
    dynamic: Any = getattr(torch.ao.quantization, "quantize_dynamic", None)
    if dynamic is not None:
        small = dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        runs["torch int8"] = lambda: small(given)

    def without_gradients(run: Callable[[], object]) -> Callable[[], object]:
        def call() -> object:
            with torch.inference_mode():
                return run()

        return call

    return {name: without_gradients(run) for name, run in runs.items()}


def session(
    nodes: list[Any], weights: dict[str, Array], x: Array, threads: int
) -> Callable[[], Any]:
    """An onnxruntime session of nodes from "x" to "y"."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    rank = [None] * x.ndim
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, rank)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, rank)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: made.run(None, {"x": x})[0]


def blocks_of(w: Array, bits: int) -> dict[str, Array]:
    """Weights and scales of MatMulNBits, in blocks of 32."""
    k, n = w.shape
    parts = np.ascontiguousarray(w.T).reshape(n, k // 32, 32)
    most = 2 ** (bits - 1) - 1
    scale = np.abs(parts).max(2) / np.float32(most)
    q = np.rint(parts / scale[..., None]).astype(np.int16) + most + 1
    held = q.astype(np.uint8)
    if bits == 4:
        held = held[..., ::2] | held[..., 1::2] << 4
    return {"w": held, "s": scale.reshape(-1).astype(np.float32)}


def ort_blocks(x: Array, w: Array, bits: int, threads: int) -> Callable[[], Any]:
    from onnx import helper

    k, n = w.shape
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=k, N=n, bits=bits,
        block_size=32,
    )  # fmt: skip
    return session([node], blocks_of(w, bits), x, threads)


def ort_dynamic(x: Array, w: Array, bias: Array, threads: int) -> Callable[[], Any]:
    from onnx import helper

    scale = np.float32(np.abs(w).max() / 127)
    weights = {"w": np.rint(w / scale).astype(np.int8), "ws": np.array(scale), "b": bias}
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("MatMulInteger", ["q", "w", "z"], ["t"]),
        node("Cast", ["t"], ["f"], to=1),
        node("Mul", ["s", "ws"], ["by"]),
        node("Mul", ["f", "by"], ["m"]),
        node("Add", ["m", "b"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    return session(nodes, weights, x, threads)


# ------------------------------------------------------------------------------------------- weft
def decode(size: tuple[int, ...], bits: int, rounds: int, threads: int) -> Comparison:
    m, k, n = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k), dtype=np.float32)
    w = rng.standard_normal((k, n), dtype=np.float32)
    held = Q.quantize_weights(w, bits=bits)
    columns = np.ascontiguousarray(w.T)
    product = wf.compile(Q.matmul, threads=threads)
    rows = wf.compile(lambda x, w: x @ w, threads=threads)
    turned = wf.compile(lambda x, w: wf.matmul(x, w, transpose_b=True), threads=threads)
    given, source = wf.asarray(x), np.empty(held.nbytes // 4, np.float32)
    target = np.empty_like(source)
    runs: Runs = {
        "weft": lambda: product(given, held),
        "f32 by rows": lambda: rows(given, w),
        "f32 by columns": lambda: turned(given, columns),
        "copy": lambda: np.copyto(target, source),
    }
    close("weft", product(given, held).numpy(), x @ w, 0.02 if bits == 8 else 0.2)
    if there("torch") and bits == 8:
        runs |= torch_runs(x, w, None, False, threads)
    if there("onnxruntime"):
        run = ort_blocks(x, w, bits, threads)
        close("onnxruntime", run(), x @ w, 0.02 if bits == 8 else 0.2)
        runs[f"ort int{bits}"] = run
    return compare(f"{m} x {k} by {k} x {n}, int{bits}", runs, rounds=rounds)


def layer(size: tuple[int, ...], rounds: int, threads: int) -> Comparison:
    m, k, n = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k), dtype=np.float32)
    w = rng.standard_normal((k, n), dtype=np.float32) / np.float32(k**0.5)
    bias = rng.standard_normal(n, dtype=np.float32)

    def f(x: Any) -> Any:
        return wf.nn.relu(x @ weights + held)

    weights, held = wf.Variable(w), wf.Variable(bias)
    kind = wf.TensorType(wf.float32, (m, k))
    plain = wf.compile(f, threads=threads)
    dynamic, static = (
        wf.compile(q.function, threads=threads)
        for q in (Q.quantize(f, kind, activations="dynamic"),
                  Q.quantize(f, kind, activations="static", calibration=[x]))
    )  # fmt: skip
    given = wf.asarray(x)
    runs: Runs = {
        "weft": lambda: static(given), "f32": lambda: plain(given),
        "weft dynamic": lambda: dynamic(given),
    }  # fmt: skip
    want = np.maximum(x @ w + bias, 0)
    for name in ("weft", "weft dynamic"):
        close(name, runs[name](), want, 0.03)
    if there("torch"):
        runs |= torch_runs(x, w, bias, True, threads)
    if there("onnxruntime"):
        runs["ort dynamic"] = ort_dynamic(x, w, bias, threads)
        close("onnxruntime", runs["ort dynamic"](), want, 0.05)
    return compare(f"relu({m} x {k} by {k} x {n} + b)", runs, rounds=rounds)


def convolution(size: tuple[int, ...], rounds: int, threads: int) -> Comparison:
    batch, side, inside, outside, window, stride = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, side, side, inside), dtype=np.float32)
    w = rng.standard_normal((window, window, inside, outside), dtype=np.float32)
    kernel = wf.Variable(w / np.float32((window * window * inside) ** 0.5))

    def f(x: Any) -> Any:
        return wf.nn.relu(wf.nn.conv2d(x, kernel, strides=stride, padding="SAME"))

    kind = wf.TensorType(wf.float32, x.shape)
    plain = wf.compile(f, threads=threads)
    small = Q.quantize(f, kind, activations="static", calibration=[x])
    static, given = wf.compile(small.function, threads=threads), wf.asarray(x)
    close("weft", static(given), np.asarray(plain(given)), 0.03)
    runs: Runs = {"weft": lambda: static(given), "f32": lambda: plain(given)}
    name = f"conv {window}x{window}/{stride} {inside} to {outside}, {batch} x {side}^2"
    return compare(name, runs, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("decode", "layers", "conv"))
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args()
    sizes: dict[str, Any] = {"decode": DECODE, "layers": LAYERS, "conv": CONVOLUTIONS}
    sizes = dict(SMALL) if args.small else sizes
    how = args.rounds, args.threads
    makers: dict[str, Callable[[], list[Comparison]]] = {
        "decode": lambda: [decode(s, bits, *how) for s in sizes["decode"] for bits in (8, 4)],
        "layers": lambda: [layer(s, *how) for s in sizes["layers"]],
        "conv": lambda: [convolution(s, *how) for s in sizes["conv"]],
    }
    chosen = [args.only] if args.only else list(makers)
    rows = [row for name in chosen for row in makers[name]()]
    report(f"Quantised products, {args.threads} threads", rows, args.json)


if __name__ == "__main__":
    main()
