"""A classifier of digits: trained, exported, served, and replaced by a better one under load.

    train a little -> wf.export -> weft serve -> requests ... train on -> wf.export -> requests ...

The server looks for new versions in the model's folder (`digits/1`, `digits/2`); a folder appears
in one rename, so a version is there whole or not at all. Clients send requests all the time, by the
Open Inference Protocol with bytes for the images; each answer says which version gave it. Printed
are how many requests each version answered, how often it was right, and that none was lost.

    pip install -e ".[examples,serve]"
    python examples/serve_digits.py [--clients 4] [--steps 1000] [--folder DIR]
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import weft as wf

Floats = NDArray[np.float32]
CLASSES, RATE, BATCH = 10, 0.003, 64
ANSWERS = 400  # of each version at least: of 50, how many are right would be chance


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 8x8 digits, rows of 64 floats in 0..1, and which digit each is."""

    train_x: Floats
    train_y: NDArray[np.int32]
    test_x: Floats
    test_y: NDArray[np.int32]


def load_digits() -> Digits:
    """A fifth is held out: what clients ask about."""
    from sklearn.datasets import load_digits as bundled
    from sklearn.model_selection import train_test_split

    images, labels = bundled(return_X_y=True)
    x, y = (images / 16).astype(np.float32), labels.astype(np.int32)
    split = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    return Digits(split[0], split[2], split[1], split[3])


class Model:
    """Two layers and their optimizer."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.w1 = wf.Variable(rng.uniform(-0.2, 0.2, (64, 64)).astype(np.float32), name="w1")
        self.b1 = wf.Variable(np.zeros(64, np.float32), name="b1")
        self.w2 = wf.Variable(rng.uniform(-0.2, 0.2, (64, CLASSES)).astype(np.float32), name="w2")
        self.optimizer = wf.train.Adam(RATE)
        self.step = wf.compile(self._step)

    def logits(self, x: Any) -> Any:
        """x: (rows, 64)."""
        return wf.matmul(wf.nn.relu(wf.matmul(x, self.w1) + self.b1), self.w2)

    def _step(self, x: Any, y: Any) -> Any:
        losses = wf.nn.sparse_softmax_cross_entropy_with_logits(logits=self.logits(x), labels=y)
        loss = wf.mean(losses)
        self.optimizer.minimize(loss, [self.w1, self.b1, self.w2])
        return loss

    def train(self, data: Digits, steps: int, seed: int) -> None:
        """Steps on random batches."""
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            rows = rng.integers(0, len(data.train_x), BATCH)
            self.step(data.train_x[rows], data.train_y[rows])

    def export(self, path: Path) -> None:
        """The model as a bundle, which holds the variables' values of now. It gives probabilities,
        and the digit."""

        def classify(images: Any) -> dict[str, Any]:
            found = wf.nn.softmax(self.logits(images))
            return {"probabilities": found, "digit": wf.argmax(found, axis=1)}

        wf.export(classify, path, example=wf.TensorType(wf.float32, (None, 64)))


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """`weft serve` of a folder of versions, as a process of its own: its port. At the end it
    answers what it was asked, and stops."""
    command = [sys.executable, "-m", "weft", "serve", f"digits={folder}", "--port", "0"]
    with subprocess.Popen(
        [*command, "--poll-s", "0.2"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("serving on "):
                    break
            else:
                raise RuntimeError("weft serve did not start; what it said is above")
            yield int(line.rpartition(":")[2])
        finally:
            process.terminate()


@dataclass
class Clients:
    """Threads that send requests until they are told to stop.

    answered, right: requests by the version that answered; lost: those without an answer."""

    port: int
    data: Digits
    answered: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, count: int) -> None:
        """So many threads, with a connection each."""
        self._threads = [threading.Thread(target=self._ask, args=(k,)) for k in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        rng, connection = np.random.default_rng(seed), None
        while not self._stop.is_set():
            row = int(rng.integers(len(self.data.test_x)))
            try:
                if connection is None:
                    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
                version, digits = ask(connection, self.data.test_x[row : row + 1])
            except (OSError, http.client.HTTPException, RuntimeError) as error:
                connection = None
                with self._lock:
                    self.lost.append(repr(error))
                continue
            with self._lock:
                self.answered[version] += 1
                self.right[version] += int(digits[0] == self.data.test_y[row])


def ask(connection: http.client.HTTPConnection, images: Floats) -> tuple[str, NDArray[np.int64]]:
    """A request for a batch: which version answered, and the digits. RuntimeError for an error."""
    told = {
        "inputs": [{
            "name": "images", "datatype": "FP32", "shape": list(images.shape),
            "parameters": {"binary_data_size": images.nbytes},
        }],
        "outputs": [{"name": "digit", "parameters": {"binary_data": True}}],
    }  # fmt: skip
    head = json.dumps(told).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    connection.request("POST", "/v2/models/digits/infer", head + images.tobytes(), headers)
    reply = connection.getresponse()
    body = reply.read()
    if reply.status != 200:
        raise RuntimeError(f"{reply.status}: {body.decode()}")
    start = int(reply.headers["Inference-Header-Content-Length"])
    entry = json.loads(body[:start])
    return entry["model_version"], np.frombuffer(body[start:], np.int64)


def wait_for(clients: Clients, version: str, count: int, seconds: float = 60.0) -> None:
    """Until a version has answered so many requests. TimeoutError if it does not."""
    until = time.monotonic() + seconds
    while clients.answered[version] < count:
        if time.monotonic() > until:
            raise TimeoutError(f"version {version} did not answer; lost: {clients.lost[:3]}")
        time.sleep(0.01)


def run(folder: Path, clients: int, steps: int) -> Clients:
    """The whole story; what the clients saw."""
    data, model = load_digits(), Model()
    model.train(data, steps // 20, seed=1)
    model.export(folder / "1")
    print(f"version 1: after {steps // 20} steps, in {folder}/1")
    with served(folder) as port:
        told = Clients(port, data)
        told.start(clients)
        try:
            wait_for(told, "1", ANSWERS)
            model.train(data, steps, seed=2)
            model.export(folder / "2")
            print(f"version 2: after {steps} more, exported while {clients} clients ask")
            wait_for(told, "2", ANSWERS)
        finally:
            told.stop()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the versions go (default: a new folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as held:
        told = run(args.folder or Path(held), args.clients, args.steps)
    for version in sorted(told.answered):
        count = told.answered[version]
        print(
            f"version {version} answered {count} requests, {told.right[version] / count:.1%} right"
        )
    print(f"lost: {len(told.lost)}")


if __name__ == "__main__":
    main()
