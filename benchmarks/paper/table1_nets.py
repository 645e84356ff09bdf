"""Convolutional nets of the paper's Table 1, as data: AlexNet, Overfeat, OxfordNet and GoogLeNet.

Layers are those of convnet-benchmarks (github.com/soumith/convnet-benchmarks, 2016), whose programs
the paper ran: AlexNet is that of "One weird trick" (Krizhevsky 2014), Overfeat its fast model,
OxfordNet model A of Simonyan and Zisserman, GoogLeNet (Szegedy et al. 2014) without its auxiliary
classifiers. Dropout is left out there, and so is local response normalisation ("not added for
now"): `net(name, lrn=True)` has it where the nets' papers do.

A vocabulary (`table1_steps.py`) gives the words: conv, max_pool, average, lrn, dense, concat, flat.
Nets with batch normalisation or means over windows (`inception.py`) need conv_norm and mean_pool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.frontend.nn.windows import same_padding

Array = np.ndarray[Any, Any]
CLASSES = 1000


@dataclass(frozen=True)
class Conv:
    """A window (height and width if it is not square), a bias and ReLU; pad: zeros on each side,
    "SAME" or "VALID". norm: batch normalisation before the bias (`inception.py`)."""

    channels: int
    window: int | tuple[int, int]
    stride: int = 1
    pad: int | str = "SAME"
    norm: bool = False

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the window."""
        return self.window if isinstance(self.window, tuple) else (self.window, self.window)


@dataclass(frozen=True)
class MaxPool:
    """The maximum of a square window; pad: "VALID" or "SAME" (TensorFlow's)."""

    window: int
    stride: int
    pad: str = "VALID"


@dataclass(frozen=True)
class MeanPool:
    """The mean over what a square window has of the image; SAME."""

    window: int
    stride: int = 1
    pad: str = "SAME"


@dataclass(frozen=True)
class Average:
    """The mean over all places of an image."""


@dataclass(frozen=True)
class Lrn:
    """Local response normalisation with the constants of Krizhevsky et al. (2012), section 3.3,
    as TensorFlow has them: radius 2, bias 2, alpha 1e-4 for the sum, beta 0.75."""

    radius: int = 2
    bias: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75


@dataclass(frozen=True)
class Dense:
    """A product with a matrix, a bias, and ReLU unless it is the last."""

    width: int
    last: bool = False


@dataclass(frozen=True)
class Branches:
    """Chains of layers on the same input, their results side by side as channels."""

    chains: tuple[tuple[Layer, ...], ...]


Layer = Conv | MaxPool | MeanPool | Average | Lrn | Dense | Branches


def inception(one: int, three: tuple[int, int], five: tuple[int, int], pool: int) -> Branches:
    """GoogLeNet's module: windows of 1, 3 and 5 behind 1x1 reductions, and a maximum."""
    return Branches((
        (Conv(one, 1),),
        (Conv(three[0], 1), Conv(three[1], 3)),
        (Conv(five[0], 1), Conv(five[1], 5)),
        (MaxPool(3, 1, "SAME"), Conv(pool, 1)),
    ))  # fmt: skip


HEAD = (Dense(4096), Dense(4096), Dense(CLASSES, last=True))
ALEXNET: tuple[Layer, ...] = (
    Conv(64, 11, 4, 2), Lrn(), MaxPool(3, 2),
    Conv(192, 5), Lrn(), MaxPool(3, 2),
    Conv(384, 3), Conv(256, 3), Conv(256, 3), MaxPool(3, 2),
    *HEAD,
)  # fmt: skip
OVERFEAT: tuple[Layer, ...] = (
    Conv(96, 11, 4, 0), MaxPool(2, 2),
    Conv(256, 5, 1, 0), MaxPool(2, 2),
    Conv(512, 3), Conv(1024, 3), Conv(1024, 3), MaxPool(2, 2),
    Dense(3072), Dense(4096), Dense(CLASSES, last=True),
)  # fmt: skip
OXFORDNET: tuple[Layer, ...] = (
    Conv(64, 3), MaxPool(2, 2),
    Conv(128, 3), MaxPool(2, 2),
    Conv(256, 3), Conv(256, 3), MaxPool(2, 2),
    Conv(512, 3), Conv(512, 3), MaxPool(2, 2),
    Conv(512, 3), Conv(512, 3), MaxPool(2, 2),
    *HEAD,
)  # fmt: skip
GOOGLENET: tuple[Layer, ...] = (
    Conv(64, 7, 2, 3), MaxPool(3, 2, "SAME"), Lrn(),
    Conv(64, 1), Conv(192, 3), Lrn(), MaxPool(3, 2, "SAME"),
    inception(64, (96, 128), (16, 32), 32),
    inception(128, (128, 192), (32, 96), 64),
    MaxPool(3, 2, "SAME"),
    inception(192, (96, 208), (16, 48), 64),
    inception(160, (112, 224), (24, 64), 64),
    inception(128, (128, 256), (24, 64), 64),
    inception(112, (144, 288), (32, 64), 64),
    inception(256, (160, 320), (32, 128), 128),
    MaxPool(3, 2, "SAME"),
    inception(256, (160, 320), (32, 128), 128),
    inception(384, (192, 384), (48, 128), 128),
    Average(), Dense(CLASSES, last=True),
)  # fmt: skip


@dataclass(frozen=True)
class Net:
    """Layers, and the batch and image that the paper took."""

    name: str
    layers: tuple[Layer, ...]
    batch: int
    image: int


NETS = {
    n.name: n
    for n in (
        Net("AlexNet", ALEXNET, 128, 224),
        Net("Overfeat", OVERFEAT, 128, 231),
        Net("OxfordNet", OXFORDNET, 64, 224),
        Net("GoogLeNet", GOOGLENET, 128, 224),
    )
}


def net(name: str, lrn: bool = False) -> Net:
    """A net of the table; without local response normalisation, as it was benchmarked."""
    found = NETS[name]
    if lrn:
        return Net(f"{name} + LRN", found.layers, found.batch, found.image)
    layers = tuple(layer for layer in found.layers if not isinstance(layer, Lrn))
    return Net(name, layers, found.batch, found.image)


# -------------------------------------------------------------------------- shapes and parameters
def padding(pad: int | str, size: int, window: int, stride: int) -> tuple[int, int]:
    """The zeros before and after an axis of `size`; SAME is TensorFlow's."""
    if pad == "SAME":
        return same_padding(size, window, stride)
    return (0, 0) if pad == "VALID" else (int(pad), int(pad))


def _windows(layer: Conv | MaxPool | MeanPool, size: int) -> int:
    sides = layer.sides if isinstance(layer, Conv) else (layer.window,)
    made = set()
    for side in sides:
        before, after = padding(layer.pad, size, side, layer.stride)
        made.add((size + before + after - side) // layer.stride + 1)
        if min(made) < 1:
            raise ValueError(f"an image of {size} is too small for a window of {side}")
    if len(made) > 1:
        raise ValueError(f"images of {size} would not be square after a window of {sides}")
    return made.pop()


@dataclass
class Shapes:
    """What a walk over the layers finds: the shape of an image there, those of the parameters, and
    of each layer that has some the multiplications and additions of one image, forward."""

    size: int
    channels: int
    weights: list[tuple[int, ...]] = field(default_factory=list)
    works: list[int] = field(default_factory=list)

    @property
    def work(self) -> int:
        """Of all layers."""
        return sum(self.works)

    def walk(self, layers: Sequence[Layer]) -> Shapes:
        for layer in layers:
            self._enter(layer)
        return self

    def _enter(self, layer: Layer) -> None:
        if isinstance(layer, Conv):
            self.size = _windows(layer, self.size)
            shape = (*layer.sides, self.channels, layer.channels)
            self._weigh(shape, self.size**2)
        elif isinstance(layer, (MaxPool, MeanPool)):
            self.size = _windows(layer, self.size)
        elif isinstance(layer, Dense):
            self._weigh((self.size**2 * self.channels, layer.width), 1)
            self.size = 1
        elif isinstance(layer, Average):
            self.size = 1
        elif isinstance(layer, Branches):
            ends = [Shapes(self.size, self.channels).walk(chain) for chain in layer.chains]
            self.size, self.channels = ends[0].size, sum(e.channels for e in ends)
            self.weights += [w for e in ends for w in e.weights]
            self.works += [w for e in ends for w in e.works]

    def _weigh(self, shape: tuple[int, ...], places: int) -> None:
        self.weights += [shape, shape[-1:]]
        self.works.append(2 * places * int(np.prod(shape)))
        self.channels = shape[-1]


@dataclass(frozen=True)
class Problem:
    """A net at a size, its first parameters and one batch of synthetic images.

    params: weights and biases in turn, in the order of the layers. flops: of a training step, where
    backward is taken for twice the products and convolutions of forward.
    """

    net: Net
    batch: int
    image: int
    params: list[Array]
    x: Array
    labels: Array
    flops: float

    @property
    def name(self) -> str:
        return f"{self.net.name}, batch {self.batch}, {self.image}^2"


def problem(found: Net, batch: int, image: int) -> Problem:
    """Weights as He et al. (2015) begin with, those of the last layer a tenth, so that the first
    loss is about log(CLASSES) and SGD goes down; biases of 0. Always the same ones."""
    rng = np.random.default_rng(0)
    shapes = Shapes(image, 3).walk(found.layers)
    params = []
    for shape in shapes.weights:
        scale = (2 / np.prod(shape[:-1])) ** 0.5 if len(shape) > 1 else 0.0
        params.append(rng.standard_normal(shape, np.float32) * np.float32(scale))
    params[-2] *= np.float32(0.1)
    x = rng.standard_normal((batch, image, image, 3), np.float32)
    labels = rng.integers(0, shapes.weights[-1][0], batch)
    return Problem(found, batch, image, params, x, labels, 3.0 * batch * shapes.work)


# ------------------------------------------------------------------------------------- the function
def logits(m: Any, layers: Sequence[Layer], params: Iterator[Any], x: Any) -> Any:
    """The net in the words of the vocabulary m; takes weights and biases from `params`."""
    for layer in layers:
        if isinstance(layer, Conv):
            w, b = next(params), next(params)
            conv = m.conv_norm if layer.norm else m.conv
            x = m.relu(conv(x, w, b, layer.window, layer.stride, layer.pad))
        elif isinstance(layer, MaxPool):
            x = m.max_pool(x, layer.window, layer.stride, layer.pad)
        elif isinstance(layer, MeanPool):
            x = m.mean_pool(x, layer.window, layer.stride, layer.pad)
        elif isinstance(layer, Average):
            x = m.average(x)
        elif isinstance(layer, Lrn):
            x = m.lrn(x, layer)
        elif isinstance(layer, Dense):
            w, b = next(params), next(params)
            x = m.dense(m.flat(x), w, b)
            x = x if layer.last else m.relu(x)
        else:
            x = m.concat([logits(m, chain, params, x) for chain in layer.chains])
    return x


def loss_of(m: Any, found: Net) -> Callable[[Sequence[Any], Any, Any], Any]:
    """The mean softmax cross entropy of a batch, of (parameters, images, labels)."""

    def loss(params: Sequence[Any], x: Any, labels: Any) -> Any:
        return m.cross_entropy(logits(m, found.layers, iter(params), x), labels)

    return loss
