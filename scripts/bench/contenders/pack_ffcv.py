"""Pack a folder with FFCV's `DatasetWriter`, once, and report; run by `pack.py` and `load.py`.

As FFCV's own ImageNet script does it, with a dataset that opens files with
PIL.  FFCV has no short-side resize: it limits the longer side, by cv2's
INTER_AREA.  `max_resolution=341` makes a 4:3 photograph 256 pixels high; null
takes images as they are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from ffcv.fields import IntField, RGBImageField
from ffcv.writer import DatasetWriter
from PIL import Image


class PilFolder:
    """Images of class folders, as torchvision's `ImageFolder` lists and opens them."""

    def __init__(self, root: str) -> None:
        self.samples: list[tuple[str, int]] = []
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        for label, name in enumerate(names):
            for folder, _, files in sorted(os.walk(os.path.join(root, name))):
                self.samples += [(os.path.join(folder, file), label) for file in sorted(files)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB"), label


def main() -> None:
    """Pack as the JSON in the first argument says."""
    options = json.loads(sys.argv[1])
    destination = Path(options["destination"])
    started = time.perf_counter()
    dataset = PilFolder(options["images"])
    image = RGBImageField(
        write_mode=options["write_mode"],
        max_resolution=options["max_resolution"],
        jpeg_quality=options["quality"],
    )
    writer = DatasetWriter(
        os.fspath(destination),
        {"image": image, "label": IntField()},
        num_workers=options["workers"],
    )
    writer.from_indexed_dataset(dataset, chunksize=options["chunk"])
    seconds = time.perf_counter() - started
    packages = ("ffcv", "torch", "opencv-python-headless", "pillow", "numba", "numpy")
    report = {
        "images": len(dataset),
        "seconds": seconds,
        "bytes_out": destination.stat().st_size,
        "versions": {
            "python": sys.version.split()[0],
            **{name: version(name) for name in packages},
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
