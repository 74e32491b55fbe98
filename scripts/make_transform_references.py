"""Make tests/references/transforms.npz: what torchvision makes of small images.

    python scripts/make_transform_references.py tests/references/transforms.npz

Needs torchvision, which the tests do not.  Images are seeded, parameters given: no random
number of torchvision's is used.  Every array of the result is named ``operation/...``;
`tests/test_batch_transforms.py` says what is what.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
import torchvision
from torchvision.transforms.v2 import CutMix, MixUp, functional
from torchvision.transforms.v2 import RandAugment as TheirRandAugment
from torchvision.transforms.v2 import TrivialAugmentWide as TheirTrivialAugmentWide

FACTORS = (0.0, 0.35, 0.8, 1.0, 1.7)
TURNS = (-0.5, -0.12, 0.0, 0.2, 0.5)
SIGMAS = (0.1, 0.5, 1.1, 2.0, 3.5)
CROP = (2, 3, 11, 17)
"""Top, left, height and width."""

HEIGHT, WIDTH = 15, 21

MAGNITUDES: dict[str, tuple[float, ...]] = {
    "Identity": (0.0,),
    "ShearX": (0.27, -0.09, 0.99),
    "ShearY": (0.27, -0.09, 0.99),
    "TranslateX": (4.35, -11.9),
    "TranslateY": (4.35, -8.0),
    "Rotate": (9.0, -30.0, 135.0),
    "Brightness": (0.27, -0.9),
    "Color": (0.27, -0.9),
    "Contrast": (0.27, -0.9),
    "Sharpness": (0.27, -0.9),
    "Posterize": (4.0, 7.0, 2.0),
    "Solarize": (0.7, 0.1, 1.0),
    "AutoContrast": (0.0,),
    "Equalize": (0.0,),
}


def images(count: int = 5, channels: int = 3) -> torch.Tensor:
    """Smooth colours with some noise; one grey image, one of two values."""
    generator = torch.Generator().manual_seed(channels)
    coarse = torch.rand(count, channels, 4, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic")
    noise = torch.randn(smooth.shape, generator=generator) * 0.03
    pixels = ((smooth + noise).clamp(0, 1) * 255).round().to(torch.uint8)
    pixels[1] = pixels[1, :1]
    pixels[2] = (pixels[2] > 90) * torch.tensor(200, dtype=torch.uint8)
    return pixels


def each(function: Any, pixels: torch.Tensor, numbers: tuple[float, ...]) -> np.ndarray:
    """Apply a function to image by image, with a number each."""
    made = [function(image, number) for image, number in zip(pixels, numbers, strict=True)]
    return torch.stack(made).numpy()


def main(path: str) -> None:
    """Write the references to `path`."""
    pixels = images()
    floats = pixels / 255
    found: dict[str, Any] = {
        "version": np.array(torchvision.__version__),
        "images": pixels.numpy(),
        "factors": np.array(FACTORS),
        "turns": np.array(TURNS),
        "sigmas": np.array(SIGMAS),
    }
    for kind, source in (("uint8", pixels), ("float32", floats)):
        for name, numbers in (
            ("brightness", FACTORS),
            ("contrast", FACTORS),
            ("saturation", FACTORS),
            ("hue", TURNS),
        ):
            function = getattr(functional, f"adjust_{name}")
            found[f"{name}/{kind}"] = each(function, source, numbers)
        found[f"grayscale/{kind}"] = functional.rgb_to_grayscale(source, 3).numpy()
        found[f"blur/{kind}"] = each(
            lambda image, sigma: functional.gaussian_blur(image, [7, 5], [sigma, sigma]),
            source,
            SIGMAS,
        )
    found["erase"] = functional.erase(
        floats, 3, 5, 9, 14, torch.tensor([0.1, 0.5, 0.9])[:, None, None]
    ).numpy()

    labels = torch.tensor([0, 3, 1, 1, 2])
    found["labels"] = labels.numpy()
    mix = MixUp(num_classes=4)
    parameters = {"lam": 0.3, "labels": labels, "batch_size": 5}
    found["mixup/images"] = mix.transform(floats, parameters).numpy()
    found["mixup/labels"] = mix.transform(labels, parameters).numpy()
    cut = CutMix(num_classes=4)
    box = (4, 2, 20, 15)
    share = 1 - (20 - 4) * (15 - 2) / (HEIGHT * WIDTH)
    parameters = {"box": box, "lam_adjusted": share, "labels": labels, "batch_size": 5}
    found["cutmix/images"] = cut.transform(floats, parameters).numpy()
    found["cutmix/labels"] = cut.transform(labels, parameters).numpy()

    theirs = TheirRandAugment()
    for operation, magnitudes in MAGNITUDES.items():
        found[f"magnitudes/{operation}"] = np.array(magnitudes)
        for interpolation in ("nearest", "bilinear"):
            for fill in (None, [10.0, 200.0, 60.0]):
                moves = operation[:5] in ("Shear", "Trans", "Rotat")
                if not moves and (interpolation == "bilinear" or fill):
                    continue
                if fill and operation != "Rotate":
                    continue
                made = [
                    theirs._apply_image_or_video_transform(
                        pixels,
                        operation,
                        magnitude,
                        interpolation=functional.InterpolationMode(interpolation),
                        fill={torch.Tensor: fill},
                    )
                    for magnitude in magnitudes
                ]
                name = f"augment/{operation}/{interpolation}/{'filled' if fill else 'empty'}"
                found[name] = torch.stack(made).numpy()
    for augment in (TheirRandAugment, TheirTrivialAugmentWide):
        for name, (range_of, signed) in augment._AUGMENTATION_SPACE.items():
            for bins in (31, 11):
                values = range_of(bins, 96, 224)
                if values is not None:
                    found[f"space/{augment.__name__}/{bins}/{name}"] = values.numpy()
            found[f"signed/{name}"] = np.array(signed)

    for shrink, size in (("enlarge", (18, 31)), ("shrink", (6, 5))):
        for mode in ("bilinear", "bicubic", "nearest-exact"):
            for antialias in (False, True):
                # As floats: of uint8 images, bicubic overshoots are cut off between the passes.
                made = functional.resized_crop(
                    pixels.float(), *CROP, list(size), functional.InterpolationMode(mode), antialias
                )
                made = made.round().clamp(0, 255).to(torch.uint8)
                found[f"resized/{shrink}/{mode}/{antialias}"] = made.numpy()
    found["centred"] = functional.center_crop(pixels, [10, 30]).numpy()
    padded = functional.pad(pixels, [4, 4, 4, 4])
    found["padded"] = functional.horizontal_flip(functional.crop(padded, 1, 6, 15, 21)).numpy()
    np.savez_compressed(path, **found)


if __name__ == "__main__":
    main(sys.argv[1])
