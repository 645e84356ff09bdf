"""FastAPI with PyTorch as a server, for benchmarks/serve.py: `serve_peer.py MODEL PORT`, with MODEL
"mlp" or "conv". A request's body is the float32 bytes of a batch, as is its answer's: no JSON."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response


def mlp() -> tuple[Any, tuple[int, ...]]:
    """The MLP of benchmarks/bundle.py."""
    layers: list[Any] = []
    for i, o in ((64, 512), (512, 512), (512, 10)):
        layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1], torch.nn.Softmax(-1)), (64,)


class Block(torch.nn.Module):
    """x + two 3 x 3 convolutions of 32 channels, each of relu, with normalisation."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for _ in range(2):
            convolution = torch.nn.Conv2d(32, 32, 3, padding=1, bias=False)
            layers += [torch.nn.ReLU(), convolution, torch.nn.BatchNorm2d(32)]
        self.inner = torch.nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.inner(x)


def conv() -> tuple[Any, tuple[int, ...]]:
    """The residual net of benchmarks/bundle.py."""
    body = [Block() for _ in range(5)]
    first = torch.nn.Conv2d(3, 32, 3, padding=1, bias=False)
    tail = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10)]
    return torch.nn.Sequential(first, torch.nn.ReLU(), *body, *tail), (3, 32, 32)


def main() -> None:
    made, shape = {"mlp": mlp, "conv": conv}[sys.argv[1]]()
    model = made.eval()
    app = FastAPI()

    @app.post("/predict")
    async def predict(request: Request) -> Response:
        x = np.frombuffer(await request.body(), np.float32).reshape(-1, *shape)
        with torch.inference_mode():
            y = model(torch.from_numpy(x.copy()))
        return Response(y.numpy().tobytes(), media_type="application/octet-stream")

    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
