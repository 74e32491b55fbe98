"""The crops of the workloads as torchvision's documentation writes them, for images of PIL."""

from __future__ import annotations

from torchvision import transforms as T  # noqa: N812

CROPS = {
    "crop 224": [T.RandomResizedCrop(224, antialias=True), T.RandomHorizontalFlip()],
    "centre 224": [T.Resize(256), T.CenterCrop(224)],  # most have it already
    "crop 32": [T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()],
}


def transform(name: str) -> T.Compose:
    """Return a transform from an image of PIL to a tensor of uint8."""
    return T.Compose([*CROPS[name], T.PILToTensor()])
