"""Speed of transforms: fastdata's beside torchvision's v2 on tensors and albumentations.

    python scripts/bench/transforms.py --images DIR --output transforms.jsonl
    python scripts/bench/transforms.py --images DIR --only RandomRotation --only GaussianBlur

All change the same crops of photographs, 224 x 224 pixels in memory, in batches of 64 on two
workers, and all images are changed (``p=1``) unless the transform decides for itself.  fastdata and
torchvision are given the same parameters; albumentations those that come nearest.  A library
changes several transforms in one process; these processes run in turns, and a figure is the median
of the rounds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench_data import Datasets, find_images
from harness import Contender, Results, command_line, run_rounds, say
from peers import contender
from results import Measured, spread
from transform_tables import LIBRARIES, name, transforms

BENCHMARK = "transforms"
SIDE, SAMPLES, BATCH_SIZE, WORKERS, IN_ONE_PROCESS = 224, 1000, 64, 2, 7

JITTER = "ColorJitter(0.4, 0.4, 0.4, 0.1)"
FACTORS = "(0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1)"
NORMALIZE = "ToDtype(float32, scale=True), Normalize(MEAN, STD)"

CASES = {
    "none": ("", ""),
    "RandomHorizontalFlip": ("RandomHorizontalFlip(1.0)", "HorizontalFlip(p=1)"),
    "RandomVerticalFlip": ("RandomVerticalFlip(1.0)", "VerticalFlip(p=1)"),
    "RandomResizedCrop": ("RandomResizedCrop(224)", "RandomResizedCrop((224, 224))"),
    "RandomCrop": ("RandomCrop(224, padding=16)", "Pad(16), RandomCrop(224, 224)"),
    "Pad": ("Pad(16)", "Pad(16)"),
    "RandomRotation": ("RandomRotation(30, interpolation=BILINEAR)", "Rotate(30, p=1)"),
    "RandomAffine": (
        "RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10, interpolation=BILINEAR)",
        "Affine(scale=(0.8, 1.2), translate_percent=(-0.1, 0.1), rotate=15, shear=10, p=1)",
    ),
    "RandomPerspective": ("RandomPerspective(0.5, 1.0)", "Perspective((0.05, 0.2), p=1)"),
    "ElasticTransform": ("ElasticTransform()", "ElasticTransform(alpha=50, sigma=5, p=1)"),
    "RandomZoomOut, Resize": ("RandomZoomOut(p=1.0), Resize((224, 224))", ""),
    "Grayscale": ("Grayscale(3)", "ToGray(p=1)"),
    "ColorJitter": (JITTER, f"ColorJitter({FACTORS}, p=1)"),
    "GaussianBlur": ("GaussianBlur(23)", "GaussianBlur(23, (0.1, 2.0), p=1)"),
    "RandomErasing": ("RandomErasing(1.0)", "Erasing(p=1)"),
    "RandomInvert": ("RandomInvert(1.0)", "InvertImg(p=1)"),
    "RandomPosterize": ("RandomPosterize(4, 1.0)", "Posterize((4, 4), p=1)"),
    "RandomSolarize": ("RandomSolarize(128, 1.0)", "Solarize((0.5, 0.5), p=1)"),
    "RandomAdjustSharpness": ("RandomAdjustSharpness(2.0, 1.0)", "Sharpen(p=1)"),
    "RandomAutocontrast": ("RandomAutocontrast(1.0)", "AutoContrast(p=1)"),
    "RandomEqualize": ("RandomEqualize(1.0)", "Equalize(p=1)"),
    "RandAugment": ("RandAugment()", ""),
    "TrivialAugmentWide": ("TrivialAugmentWide()", ""),
    "AutoAugment": ("AutoAugment()", ""),
    "AugMix": ("AugMix()", ""),
    "Normalize": (NORMALIZE, "Normalize(MEAN, STD)"),
    "Normalize, MixUp": (f"{NORMALIZE}, MixUp(num_classes=20)", ""),
    "Normalize, CutMix": (f"{NORMALIZE}, CutMix(num_classes=20)", ""),
    "RandomApply(ColorJitter)": (f"RandomApply([{JITTER}])", f"ColorJitter({FACTORS}, p=0.5)"),
    "RandomOrder(ColorJitter, RandomGrayscale)": (
        f"RandomOrder([{JITTER}, RandomGrayscale()])",
        "",
    ),
    "Normalize, RandomChoice(MixUp, CutMix)": (
        f"{NORMALIZE}, RandomChoice([MixUp(num_classes=20), CutMix(num_classes=20)])",
        "",
    ),
}
"""Steps of fastdata and torchvision, and of albumentations; none where it has no such transform."""


def contenders(pack: Path, pixels: Path, chosen: list[str], seconds: float) -> list[Contender]:
    """Return the processes: each library's, of some transforms each."""
    found = []
    for start in range(0, len(chosen), IN_ONE_PROCESS):
        some = chosen[start : start + IN_ONE_PROCESS]
        for library in LIBRARIES:
            texts = {one: CASES[one][library == "albumentations"] for one in some}
            data = {"pack": str(pack), "pixels": str(pixels), "samples": SAMPLES}
            found.append(
                contender(
                    f"{library}, {some[0]} and {len(some) - 1} more",
                    "transform_rates.py",
                    {
                        "library": library,
                        "transforms": {n: t for n, t in texts.items() if t or n == "none"},
                        **data,
                        "batch_size": BATCH_SIZE,
                        "workers": WORKERS,
                        "seconds": seconds,
                    },
                    peer="" if library == "fastdata" else library,
                    modules=["torch", library],
                )
            )
    return found


def rows(results: Results, chosen: list[str]) -> list[dict[str, Any]]:
    """Return the JSON lines of all rates."""
    lines = []
    for one in chosen:
        for library in LIBRARIES:
            rates = [
                run.report["rates"][one]
                for run in results.runs
                if run.counts and run.contender.startswith(library) and one in run.report["rates"]
            ]
            if rates:
                row = {"benchmark": BENCHMARK, "row": name(library, one)}
                lines.append(row | {"values": spread(rates) | {"unit": "images/s"}})
    return lines


def main() -> int:
    """Read the command line, measure, print."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--images", type=Path, help="class folders of JPEG files")
    parser.add_argument("--only", action="append", choices=list(CASES), help="may be repeated")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each transform")
    given = parser.parse_args()
    chosen = ["none", *(one for one in CASES if one in (given.only or CASES) and one != "none")]

    datasets = Datasets(find_images(given.images), given.work.resolve(), SAMPLES).distinct()
    pack, pixels = datasets.crops(SIDE)
    results = run_rounds(
        BENCHMARK,
        contenders(pack, pixels, chosen, given.seconds),
        rounds=given.rounds,
        settings={"samples": SAMPLES, "batch_size": BATCH_SIZE, "seconds": given.seconds},
        output=given.output,
    )
    lines = rows(results, chosen)
    for line in lines:
        print(json.dumps(line), file=given.output, flush=True)
    say("")
    print("\n".join(transforms(Measured.of(lines))))
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
