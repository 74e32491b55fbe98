"""Pack a folder with FFCV's `DatasetWriter`, once, and report; run by `pack.py` and `load.py`.

As FFCV's own ImageNet script does it, with a dataset that opens files with
PIL.  FFCV has no short-side resize: it limits the longer side, by cv2's
INTER_AREA.  `max_resolution=341` makes a 4:3 photograph 256 pixels high; null
takes images as they are.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from epochs import options, print_report
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
        if path.endswith(".rgb"):  # pixels of 32 x 32
            return Image.frombytes("RGB", (32, 32), Path(path).read_bytes()), label
        with open(path, "rb") as file:
            return Image.open(file).convert("RGB"), label


def main() -> None:
    """Pack as the JSON in the first argument says."""
    given = options()
    destination = Path(given["destination"])
    started = time.perf_counter()
    dataset = PilFolder(given["images"])
    image = RGBImageField(
        write_mode=given["write_mode"],
        max_resolution=given["max_resolution"],
        jpeg_quality=given["quality"],
    )
    writer = DatasetWriter(
        os.fspath(destination),
        {"image": image, "label": IntField()},
        num_workers=given["workers"],
    )
    writer.from_indexed_dataset(dataset, chunksize=given["chunk"])
    seconds = time.perf_counter() - started
    report = {
        "images": len(dataset),
        "seconds": seconds,
        "bytes_out": destination.stat().st_size,
    }
    print_report(report, "ffcv", "torch", "opencv-python-headless", "pillow", "numba", "numpy")


if __name__ == "__main__":
    main()
