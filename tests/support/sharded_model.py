"""A model whose variables are in two files of a checkpoint, and the steps that a folder holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import weft as wf

HERE, ANY = "/job:localhost/task:0", "/job:localhost"


class Model:
    """Three variables in two files, and a step that counts all of them up."""

    def __init__(self, **rules: object) -> None:
        self.graph = wf.Graph()
        with self.graph.as_default():
            with wf.device(HERE):
                self.a = wf.Variable(np.zeros(3, np.float32), name="a")
                self.step = wf.train.get_or_create_global_step()
            with wf.device(ANY):
                self.b = wf.Variable(np.zeros(2), name="b")
            self.up = [v.assign(v + 1) for v in (self.a, self.b, self.step)]
            self.saver = wf.train.ShardedSaver(**rules)  # type: ignore[arg-type]
            self.init = wf.global_variables_initializer()
        self.session = wf.Session(graph=self.graph)
        self.session.run(self.init)

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.session.run(self.up)

    def values(self) -> list[float]:
        a, b, step = self.session.run([self.a, self.b, self.step])
        return [*a.tolist(), *b.tolist(), int(step)]


def steps_in(folder: Path) -> list[int]:
    """The steps whose manifest is there; no file is there that none names."""
    found = sorted(folder.glob("*.manifest.json"))
    assert len(list(folder.glob("*.safetensors"))) == 2 * len(found)
    return sorted(int(p.name.split(".")[0].rpartition("-")[2]) for p in found)
