"""The reference models, so that every machine trains the same ones, with or without torchvision.

ResNet-18 and ResNet-50: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition",
2015, table 1.  The stride of a bottleneck is in its 3 x 3 convolution, which is called v1.5, as in
torchvision, whose numbers of parameters these have too: 11,689,512 and 25,557,032 for 1000
classes.

ViT-S/16, a vision transformer of the size that is trained most: Dosovitskiy and others, "An Image
is Worth 16x16 Words", 2021; the width, depth and heads of its small model are those of Touvron and
others, "Training data-efficient image transformers", 2021, table 1.  With 224 x 224 images and
1000 classes it has their 22,050,664 parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["LEAST_SIDES", "MODELS", "ResNet", "ViT", "resnet18", "resnet50", "vit_s"]

PATCH = 16
"""Pixels a side."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, and the normalisation after it."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """A residual block: `body`, and a short cut that is projected where the shape changes."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        result: torch.Tensor = self.relu(self.body(x) + self.shortcut(x))
        return result


def basic(inputs: int, width: int, stride: int) -> Block:
    """Return a block of two 3 x 3 convolutions."""
    body = nn.Sequential(
        convolution(inputs, width, 3, stride), nn.ReLU(inplace=True), convolution(width, width, 3)
    )
    return Block(body, inputs, width, stride)


def bottleneck(inputs: int, width: int, stride: int) -> Block:
    """Return a block of 1 x 1, 3 x 3 and 1 x 1 convolutions, four times as wide at its end."""
    body = nn.Sequential(
        convolution(inputs, width, 1),
        nn.ReLU(inplace=True),
        convolution(width, width, 3, stride),
        nn.ReLU(inplace=True),
        convolution(width, 4 * width, 1),
    )
    return Block(body, inputs, 4 * width, stride)


class ResNet(nn.Module):
    """A residual network for images of any size from 32 up.

    `block` makes a block from its inputs, its width and its stride; `depths` are the blocks of
    each of the four stages, `expansion` the outputs of a block over its width.
    """

    def __init__(
        self,
        block: Callable[[int, int, int], Block],
        depths: tuple[int, int, int, int],
        expansion: int,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)
        )
        stages: list[nn.Module] = []
        inputs = 64
        for number, depth in enumerate(depths):
            width = 64 << number
            for place in range(depth):
                stages.append(block(inputs, width, 2 if number and not place else 1))
                inputs = expansion * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape [N, classes]."""
        logits: torch.Tensor = self.head(self.stages(self.stem(x)))
        return logits


def resnet18(classes: int = 1000) -> ResNet:
    """Return a ResNet-18."""
    return ResNet(basic, (2, 2, 2, 2), 1, classes)


def resnet50(classes: int = 1000) -> ResNet:
    """Return a ResNet-50."""
    return ResNet(bottleneck, (3, 4, 6, 3), 4, classes)


class ViT(nn.Module):
    """A vision transformer for images of one size.

    Sides are 16 pixels or more; what is over a multiple of 16 is not looked at.  `dim` is the
    width of a token, `depth` the number of blocks, `heads` those of attention.
    """

    def __init__(
        self, height: int, width: int, dim: int, depth: int, heads: int, classes: int = 1000
    ) -> None:
        super().__init__()
        patches = (height // PATCH) * (width // PATCH)
        self.patches = nn.Conv2d(3, dim, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.places = nn.Parameter(torch.empty(1, patches + 1, dim))
        nn.init.trunc_normal_(self.places, std=0.02)
        block = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False
        )
        self.head = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape [N, classes], of images [N, 3, height, width]."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        logits: torch.Tensor = self.head(self.blocks(tokens)[:, 0])
        return logits


def vit_s(height: int = 224, width: int = 224, classes: int = 1000) -> ViT:
    """Return a ViT-S/16."""
    return ViT(height, width, 384, 12, 6, classes)


MODELS: dict[str, tuple[str, Callable[[int, int], nn.Module]]] = {
    "resnet18": ("ResNet-18", lambda height, width: resnet18()),
    "resnet50": ("ResNet-50", lambda height, width: resnet50()),
    "vit_s": ("ViT-S/16", lambda height, width: vit_s(height, width)),
}
"""What a model is called, and what makes it for images of a height and width."""

LEAST_SIDES: dict[str, int] = {"resnet18": 32, "resnet50": 32, "vit_s": PATCH}
"""The smallest side of an image that a model takes."""
