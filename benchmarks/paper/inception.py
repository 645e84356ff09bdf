"""Inception-v3, as data: the layers of Szegedy et al., "Rethinking the Inception architecture for
computer vision" (2015), as TensorFlow's slim has them, without the auxiliary classifier.

Each convolution is followed by batch normalisation with an offset and no scale, and ReLU: 94 of
them, and a last layer of 1000 classes, 23,817,352 parameters. There is no dropout; moving averages
of means and variances, which only evaluation needs (34,432 more numbers), are left out. `net(width,
classes)` divides the channels for what is to be trained on a small machine: the same 94
convolutions, 75 x 75 images at least.
"""

from __future__ import annotations

from table1_nets import Average, Branches, Conv, Dense, Layer, MaxPool, MeanPool, Net

IMAGE, LEAST_IMAGE, BATCH, CLASSES = 299, 75, 32, 1000
#: Batch normalisation over batches of this process; the channels that a narrow net has at least.
LEAST_CHANNELS = 8


def net(width: float = 1.0, classes: int = CLASSES) -> Net:
    """The net with `width` times the channels."""
    layers = (*_Width(width).layers(), Average(), Dense(classes, last=True))
    return Net("Inception-v3", layers, BATCH, IMAGE)


class _Width:
    """Makes layers whose channels are those of the paper times `width`."""

    def __init__(self, width: float) -> None:
        self.width = width

    def conv(
        self, channels: int, window: int | tuple[int, int], stride: int = 1, pad: str = "SAME"
    ) -> Conv:
        made = channels if self.width == 1 else max(LEAST_CHANNELS, int(channels * self.width))
        return Conv(made, window, stride, pad, norm=True)

    def layers(self) -> tuple[Layer, ...]:
        """All but the classifier: 299 x 299 x 3 to 8 x 8 x 2048."""
        conv = self.conv
        return (
            conv(32, 3, 2, "VALID"), conv(32, 3, 1, "VALID"), conv(64, 3), MaxPool(3, 2),
            conv(80, 1), conv(192, 3, 1, "VALID"), MaxPool(3, 2),
            self.wide(32), self.wide(64), self.wide(64),  # 35 x 35 x 256, 288, 288
            Branches((
                (conv(384, 3, 2, "VALID"),),
                (conv(64, 1), conv(96, 3), conv(96, 3, 2, "VALID")),
                (MaxPool(3, 2),),
            )),
            *(self.crossed(c) for c in (128, 160, 160, 192)),  # 17 x 17 x 768
            Branches((
                (conv(192, 1), conv(320, 3, 2, "VALID")),
                (conv(192, 1), conv(192, (1, 7)), conv(192, (7, 1)), conv(192, 3, 2, "VALID")),
                (MaxPool(3, 2),),
            )),
            self.spread(), self.spread(),  # 8 x 8 x 2048
        )  # fmt: skip

    def wide(self, pool: int) -> Branches:
        """Figure 5 of that paper: windows of 5, and two of 3 after each other."""
        conv = self.conv
        return Branches((
            (conv(64, 1),),
            (conv(48, 1), conv(64, 5)),
            (conv(64, 1), conv(96, 3), conv(96, 3)),
            (MeanPool(3), conv(pool, 1)),
        ))  # fmt: skip

    def crossed(self, c: int) -> Branches:
        """Figure 6: windows of 7 as a row and a column."""
        conv, row, column = self.conv, (1, 7), (7, 1)
        return Branches((
            (conv(192, 1),),
            (conv(c, 1), conv(c, row), conv(192, column)),
            (conv(c, 1), conv(c, column), conv(c, row), conv(c, column), conv(192, row)),
            (MeanPool(3), conv(192, 1)),
        ))  # fmt: skip

    def spread(self) -> Branches:
        """Figure 7: windows of 3 as a row beside a column."""
        conv = self.conv
        both = Branches(((conv(384, (1, 3)),), (conv(384, (3, 1)),)))
        return Branches((
            (conv(320, 1),),
            (conv(384, 1), both),
            (conv(448, 1), conv(384, 3), both),
            (MeanPool(3), conv(192, 1)),
        ))  # fmt: skip
