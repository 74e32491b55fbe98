"""Epochs of an SPDL pipeline of threads over JPEG files; run by `load.py`.

FFmpeg decodes, cuts and resizes each image by a filter of its own.  Each epoch builds a pipeline.
"""

from __future__ import annotations

import random
from typing import Any

import spdl.io
from epochs import options, print_report, time_epochs
from random_crop import random_box
from spdl.pipeline import PipelineBuilder
from stored_epochs import labelled


def filter_of(transform: str, width: int, height: int) -> str:
    """Return FFmpeg's filters for an image of this size."""
    if transform == "centre 224":
        scale = 256 / min(width, height)
        resized = f"scale={round(width * scale)}:{round(height * scale)}:flags=bilinear,"
        return f"{resized if scale != 1 else ''}crop=224:224,format=pix_fmts=rgb24"
    top, left, h, w = random_box(height, width)
    flip = ",hflip" if random.random() < 0.5 else ""
    crop = f"crop={w}:{h}:{left}:{top}:exact=1"
    return f"{crop},scale=224:224:flags=bilinear{flip},format=pix_fmts=rgb24"


def main() -> None:
    """Time epochs."""
    given = options()
    samples = labelled(given["data"])

    def load(sample: tuple[str, int]) -> tuple[Any, int]:
        packets = spdl.io.demux_image(sample[0])
        wanted = filter_of(given["transform"], packets.width, packets.height)
        return spdl.io.decode_packets(packets, filter_desc=wanted), sample[1]

    def batch_of(loaded: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
        frames, labels = zip(*loaded, strict=True)
        return spdl.io.to_numpy(spdl.io.convert_frames(list(frames))), list(labels)

    def epoch() -> Any:
        if given["shuffle"]:
            random.shuffle(samples)
        pipeline = (
            PipelineBuilder()
            .add_source(samples)
            .pipe(load, concurrency=given["workers"])
            .aggregate(given["batch_size"], drop_last=True)
            .pipe(batch_of)
            .add_sink(3)
            .build(num_threads=given["workers"])
        )
        with pipeline.auto_stop():
            yield from pipeline

    report = time_epochs(epoch, lambda batch: batch[0], epochs=given["epochs"])
    print_report(report, "spdl", "numpy")


if __name__ == "__main__":
    main()
