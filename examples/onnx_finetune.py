"""A real ONNX model, loaded, trained on for a new class, and written as ONNX again.

Magika (Fratantonio et al., "Magika: AI-powered content-type detection", 2024) tells from 2048 bytes
of a file which of 214 types it has. It does not know the text of weft's graphs. Here it learns them
in place of a type that is given up, while other files keep what it said of them:

    wf.onnx.load -> gradients of its last layer -> wf.onnx.save -> onnxruntime says the same

The texts are of random programs, other files are those of this Python. Of both, a part is held out.

    pip install -e ".[onnx]" magika onnxruntime
    python examples/onnx_finetune.py [--steps 40] [--out tuned.onnx] [--model FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sysconfig
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

Rows = NDArray[np.int32]
HALF, BLOCK, NO_BYTE = 1024, 4096, 256  # as Magika reads a file: its config.min.json
GIVEN_UP = "snap"  # the type whose place the new one takes
RATE, BATCH = 0.003, 32
SUFFIXES = (
    ".py",
    ".pyi",
    ".h",
    ".c",
    ".json",
    ".txt",
    ".md",
    ".toml",
    ".html",
    ".css",
    ".pyc",
    ".so",
)


@dataclass(frozen=True)
class Data:
    """Rows of bytes, and which type each is to have."""

    rows: Rows
    types: NDArray[np.int32]

    def parted(self, seed: int) -> tuple[Data, Data]:
        """Three quarters, and a quarter that is held out."""
        order = np.random.default_rng(seed).permutation(len(self.rows))
        first, rest = np.split(order, [len(order) * 3 // 4])
        return Data(self.rows[first], self.types[first]), Data(self.rows[rest], self.types[rest])


def row_of(content: bytes) -> list[int]:
    """The beginning and the end of a file, without what is blank there."""
    begin, end = content[:BLOCK].lstrip()[:HALF], content[-BLOCK:].rstrip()[-HALF:]
    return [
        *begin, *[NO_BYTE] * (HALF - len(begin)), *[NO_BYTE] * (HALF - len(end)), *end
    ]  # fmt: skip


def graph_texts(count: int, seed: int = 0) -> list[bytes]:
    """Texts of graphs: programs of random ops on arrays of random sizes."""
    rng = np.random.default_rng(seed)
    each: list[Any] = [
        wf.exp,
        wf.tanh,
        wf.nn.relu,
        wf.sqrt,
        wf.abs,
        wf.nn.softmax,
        lambda x: x @ x.mT @ x,
    ]
    both: list[Any] = [
        wf.add,
        wf.multiply,
        wf.maximum,
        lambda x, y: wf.concat([x, y])[: x.shape[0]],
    ]
    texts = []
    for _ in range(count):
        steps, m, n = rng.integers(2, 25), *rng.integers(1, 99, 2)

        def program(x: Any, y: Any, steps: int = int(steps)) -> Any:
            for _ in range(steps):
                if rng.random() < 0.7:
                    x = each[rng.integers(len(each))](x)
                else:
                    x = both[rng.integers(len(both))](x, y)
            return wf.mean(x, axis=int(rng.integers(2)))

        kind = wf.TensorType(wf.float32, (int(m), int(n)))
        texts.append(str(wf.compile(program).trace(kind, kind)).encode())
    return texts


def other_files(count: int, seed: int = 0) -> list[bytes]:
    """Files of this Python, of several suffixes."""
    rng = np.random.default_rng(seed)
    folders = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib", "include")]
    found: list[bytes] = []
    for suffix in SUFFIXES:
        paths = sorted({p for folder in folders for p in folder.glob(f"**/*{suffix}")})
        paths = [p for p in paths if p.stat().st_size > 64]
        chosen = rng.permutation(len(paths))[: count // len(SUFFIXES)]
        found += [paths[k].read_bytes() for k in chosen]
    return found


def kinds_of(model: wf.onnx.Model, rows: Rows) -> NDArray[np.float32]:
    """The probability of each type; a few rows at a time."""
    parts = [model(rows[k : k + BATCH])["target_label"] for k in range(0, len(rows), BATCH)]
    return np.concatenate([np.asarray(p) for p in parts])


def tuned(model: wf.onnx.Model, data: Data, steps: int, seed: int = 0) -> dict[str, Any]:
    """Parameters of the last layer, trained; the others stay."""
    types = model.parameters
    last = [n for n, p in types.items() if p.ndim == 2 and p.shape[-1] == 214]
    variables = {n: wf.Variable(types[n], name=f"p{k}") for k, n in enumerate(last)}
    optimizer, rng = wf.train.Adam(RATE), np.random.default_rng(seed)

    @wf.compile
    def step(rows: Any, wanted: Any) -> Any:
        found = model.apply(variables, rows)["target_label"]
        chosen = wf.take_along_axis(found, wanted[:, None], axis=1)
        loss = -wf.mean(wf.log(chosen + 1e-7))
        optimizer.minimize(loss, list(variables.values()))
        return loss

    for k in range(steps):
        batch = rng.integers(0, len(data.rows), BATCH)
        loss = float(step(data.rows[batch], data.types[batch]))
        if k % 10 == 0 or k == steps - 1:
            print(f"step {k:3}: loss {loss:.3f}")
    return {n: v.read() for n, v in variables.items()}


def run(folder: Path, steps: int, out: Path, count: int = 240) -> tuple[float, float]:
    """The whole story. The share of held-out texts of graphs that are told, and that of other files
    that are still told as before."""
    model = wf.onnx.load(folder / "model.onnx")
    labels = json.loads((folder / "config.min.json").read_text())["target_labels_space"]
    new = labels.index(GIVEN_UP)
    print(f"{model}\nof {len(labels)} types '{GIVEN_UP}' becomes the text of weft's graphs")

    texts = np.array([row_of(t) for t in graph_texts(count)], np.int32)
    files = np.array([row_of(f) for f in other_files(count)], np.int32)
    before = np.argmax(kinds_of(model, texts), axis=1)
    said = sorted({labels[k] for k in before})
    print(f"it took {len(texts)} texts of graphs for: {', '.join(said)}")
    graphs = Data(texts, np.full(len(texts), new, np.int32)).parted(1)
    others = Data(files, np.argmax(kinds_of(model, files), axis=1).astype(np.int32)).parted(2)
    train = Data(
        *(np.concatenate(pair) for pair in zip(_both(graphs[0]), _both(others[0]), strict=True))
    )

    parameters = tuned(model, train, steps)
    wf.onnx.save(
        lambda content: model.apply(parameters, content), out,
        example=wf.TensorType(wf.int32, (None, 2 * HALF)),
    )  # fmt: skip
    again = wf.onnx.load(out)
    told, kept = (
        float(np.mean(np.argmax(kinds_of(again, part.rows), axis=1) == part.types))
        for part in (graphs[1], others[1])
    )
    print(f"{out}: {told:.1%} of held-out texts of graphs are told, {kept:.1%} of others as before")
    print(f"onnxruntime differs by {difference(out, again, graphs[1].rows[:8]):.1e}")
    return told, kept


def _both(data: Data) -> tuple[NDArray[Any], NDArray[Any]]:
    return data.rows, data.types


def difference(path: Path, model: wf.onnx.Model, rows: Rows) -> float:
    """The largest difference between onnxruntime's probabilities and weft's."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {session.get_inputs()[0].name: rows})
    return float(np.max(np.abs(theirs - kinds_of(model, rows))))


def magika_folder() -> Path:
    """Where the installed package has its model. RuntimeError where it is not installed."""
    spec = find_spec("magika")
    if spec is None or spec.origin is None:
        raise RuntimeError("the model comes with a package: pip install magika")
    return Path(spec.origin).parent / "models" / "standard_v3_3"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("tuned.onnx"))
    parser.add_argument("--model", type=Path, help="the folder of Magika's model")
    args = parser.parse_args()
    run(args.model or magika_folder(), args.steps, args.out)


if __name__ == "__main__":
    main()
