"""Epochs of a grain pipeline over an ArrayRecord file, or writing that file; run by `load.py`.

One iterator goes on from epoch to epoch, as its documentation has it: an epoch is as many batches
as fit into the dataset.  A record is the label, eight bytes, and the image.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from cv2_crop import CROPS
from epochs import options, print_report, time_epochs
from stored_epochs import labelled

LABEL_BYTES = 8


def write(given: dict[str, Any]) -> None:
    """Write files into an ArrayRecord file, in their order."""
    writer = ArrayRecordWriter(given["destination"], "group_size:1")  # for random access
    for path, label in labelled(given["files"]):
        writer.write(label.to_bytes(LABEL_BYTES, "little") + Path(path).read_bytes())
    writer.close()


def main() -> None:
    """Write, or time epochs."""
    given = options()
    if "destination" in given:
        write(given)
        return
    crop = CROPS[given["transform"]]

    def cropped(record: bytes) -> tuple[Any, Any]:
        label = np.frombuffer(record, "<i8", 1)[0]
        return np.ascontiguousarray(crop(record[LABEL_BYTES:])), label

    source = grain.sources.ArrayRecordDataSource(given["data"])
    samples = grain.MapDataset.source(source)
    if given["shuffle"]:
        samples = samples.shuffle(seed=0)
    batches = samples.repeat().map(cropped).batch(given["batch_size"]).to_iter_dataset()
    running = iter(batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=given["workers"])))
    for _ in range(given["workers"]):  # until all of them, which take seconds to start, work
        next(running)
    report = time_epochs(
        lambda: islice(running, len(source) // given["batch_size"]),
        lambda batch: batch[0],
        epochs=given["epochs"],
    )
    print_report(report, "grain", "array-record", "opencv-python-headless", "numpy")


if __name__ == "__main__":
    main()
