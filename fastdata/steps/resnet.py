"""ResNet-18 and ResNet-50, so that every machine trains the same one, with or without torchvision.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", 2015, table 1.  The
stride of a bottleneck is in its 3 x 3 convolution, which is called v1.5, as in torchvision,
whose numbers of parameters these have too: 11,689,512 and 25,557,032 for 1000 classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

__all__ = ["ResNet", "resnet18", "resnet50"]


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

    Parameters
    ----------
    block : callable
        Makes one from its inputs, its width and its stride.
    depths : sequence of int
        Blocks of each of the four stages.
    expansion : int
        Outputs of a block over its width.
    classes : int
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
