"""The reference models, by name: so that every machine trains the same ones."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fastdata.steps.resnet import resnet18, resnet50
from fastdata.steps.vit import PATCH, vit_s

__all__ = ["LEAST_SIDES", "MODELS"]

MODELS: dict[str, tuple[str, Callable[[int, int], nn.Module]]] = {
    "resnet18": ("ResNet-18", lambda height, width: resnet18()),
    "resnet50": ("ResNet-50", lambda height, width: resnet50()),
    "vit_s": ("ViT-S/16", lambda height, width: vit_s(height, width)),
}
"""What a model is called, and what makes it for images of a height and width."""

LEAST_SIDES: dict[str, int] = {"resnet18": 32, "resnet50": 32, "vit_s": PATCH}
"""The smallest side of an image that a model takes."""
