"""Epochs of a DALI pipeline on the CPU (`device_id=None`); run by `load.py`.

An epoch is as many batches as fit into the dataset; the reader goes on over its
end, so no batch is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from epochs import options, print_report, time_epochs
from nvidia.dali import fn, pipeline_def, types


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def centres(folder: str, shuffle: bool) -> Any:
    """Files to their centres: 224 of 256 of the short side, resized unless that is 224 pixels."""
    data, labels = fn.readers.file(file_root=folder, random_shuffle=shuffle, name="files")
    size = fn.peek_image_shape(data)[:2]
    side = fn.reductions.min(size) * 224 // 256
    images = fn.decoders.image_slice(
        data,
        device="cpu",
        output_type=types.RGB,
        start=fn.cast((size - side) // 2, dtype=types.INT32),
        shape=fn.cast(fn.stack(side, side), dtype=types.INT32),
        axis_names="HW",
    )
    if side != 224:
        images = fn.resize(images, size=[224, 224])
    return images, labels


@pipeline_def  # type: ignore[untyped-decorator]
def crops(folder: str, shuffle: bool) -> Any:
    """Files to crops, uint8 [224, 224, 3], and labels."""
    data, labels = fn.readers.file(file_root=folder, random_shuffle=shuffle, name="files")
    images = fn.decoders.image_random_crop(
        data,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        num_attempts=10,
    )
    images = fn.resize(
        images, size=[224, 224], interp_type=types.DALIInterpType.INTERP_LINEAR, antialias=True
    )
    images = fn.flip(images, horizontal=fn.random.coin_flip())
    return images, labels


def main() -> None:
    """Time epochs."""
    given = options()
    size = given["batch_size"]
    make = centres if given["transform"] == "centre 224" else crops
    how = {"batch_size": size, "num_threads": given["workers"], "device_id": None}
    pipe = make(given["data"], given["shuffle"], **how)
    pipe.build()
    batches = pipe.epoch_size("files") // size

    def epoch() -> Iterator[Any]:
        for _ in range(batches):
            images, labels = pipe.run()
            yield images.as_tensor(), labels.as_tensor()

    report = time_epochs(epoch, lambda batch: np.asarray(batch[0]), epochs=given["epochs"])
    print_report(report, "nvidia-dali-cuda120", "numpy")


if __name__ == "__main__":
    main()
