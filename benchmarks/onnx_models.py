"""ONNX models: a call of `wf.onnx.load(model)` beside onnxruntime's, float32, two threads each.

python benchmarks/onnx_models.py [--json benchmarks/onnx_models.json] [--rounds 30] [--only NAME]

Models: those of the package `onnx` (AlexNet, DenseNet-121, Inception v1 and v2, ResNet-50,
ShuffleNet, SqueezeNet, VGG-19, ZFNet-512; batch 1, 224 x 224) with weights drawn at random, as
theirs are all alike; and real ones where their packages are installed: magika, silero-vad,
rapidocr-onnxruntime. Calls by turns; the time to load and that of the first call, with kernels from
disk where there are some, apart. `python on_isa.py x86-64-v3 onnx_models.py` hides AVX-512 from
both; WEFT_TARGET=x86-64-v3 only from weft's kernels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from harness import compare, report

import weft as wf

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import onnx_cases

THREADS = 2
#: Before each turn: onnxruntime's idle threads look for work for longer than OpenMP's.
PAUSE_SECONDS = 0.15


def folder(package: str) -> Path | None:
    found = find_spec(package)
    return None if found is None or found.origin is None else Path(found.origin).parent


def models() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Names, models, inputs."""
    rng = np.random.default_rng(1)
    for path in onnx_cases.LIGHT:
        model = onnx_cases.with_other_weights(path)
        held = {t.name for t in model.graph.initializer}
        (kind,) = [i for i in model.graph.input if i.name not in held]
        shape = [d.dim_value for d in kind.type.tensor_type.shape.dim]
        yield path.stem.removeprefix("light_"), model, {kind.name: rng.random(shape, np.float32)}
    if (at := folder("magika")) is not None:
        text = rng.integers(0, 256, (1, 2048)).astype(np.int32)
        yield "magika", next(at.glob("models/*/model.onnx")), {"bytes": text}
    if (at := folder("rapidocr_onnxruntime")) is not None:
        for name, shape in (("cls", (1, 3, 48, 192)), ("det", (1, 3, 320, 320)),
                            ("rec", (1, 3, 48, 320))):  # fmt: skip
            path = next((at / "models").glob(f"*_{name}_*.onnx"))
            yield f"rapidocr {name}", path, {"x": rng.random(shape, np.float32)}
    if (at := folder("silero_vad")) is not None:
        sound = rng.standard_normal((1, 576)).astype(np.float32) * np.float32(0.1)
        state = np.zeros((2, 1, 128), np.float32)
        given = {"input": sound, "state": state, "sr": np.array(16000, np.int64)}
        for name in ("silero_vad_16k_op15", "silero_vad"):
            yield name, at / "data" / f"{name}.onnx", given


def checked(name: str, source: Any, given: dict[str, Any], session: Any) -> wf.onnx.Model:
    """The model, loaded, whose results are those of onnxruntime; prints how long that took."""
    begin = time.perf_counter()
    model = wf.onnx.load(source)
    loaded = time.perf_counter()
    made = model(**given)
    first = time.perf_counter()
    want = session.run(list(model.outputs), given)
    error = max(
        float(np.abs(made[n].numpy() - w).max() / max(np.abs(w).max(), 0.01))
        for n, w in zip(model.outputs, want, strict=True)
    )
    assert error < 1e-4, (name, error)
    took = f"load {loaded - begin:5.2f} s, first call {first - loaded:5.2f} s"
    print(f"{name:22} {took}, error {error:.1e}", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", default="", help="models with this in their names")
    args = parser.parse_args()
    wf.set_num_threads(THREADS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = THREADS, 3
    comparisons = []
    for name, source, given in models():
        if args.only not in name:
            continue
        data = source.read_bytes() if isinstance(source, Path) else source.SerializeToString()
        session = onnxruntime.InferenceSession(data, options)
        model = checked(name, data, given, session)
        ways: dict[str, Callable[[], Any]] = {
            "weft": partial(model, **given), "onnxruntime": partial(session.run, None, given),
        }  # fmt: skip
        comparisons.append(compare(name, ways, rounds=args.rounds, pause=PAUSE_SECONDS))
    report("A call of a model, two threads", comparisons, args.json)


if __name__ == "__main__":
    main()
