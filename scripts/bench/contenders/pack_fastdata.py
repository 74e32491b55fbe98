"""Pack with fastdata, once, and report; run by `bench/pack.py` and `bench/converters.py`.

As ``fastdata pack`` does: what is imported only when it is used is in the time.
"""

from __future__ import annotations

import time
from pathlib import Path

from epochs import options, print_report

import fastdata
from fastdata.installing import DISTRIBUTION


def main() -> None:
    """Pack as the JSON in the first argument says."""
    given = options()
    destination = Path(given["destination"])
    pack = fastdata.pack  # which imports it, as FFCV is imported before its clock starts
    started = time.perf_counter()
    packed = pack(
        given["images"],
        destination,
        **{"codec": "jpeg", **given.get("pack", {})},
        quality=given["quality"],
        overwrite=True,
        progress=False,
        num_workers=given["workers"],
    )
    seconds = time.perf_counter() - started
    report = {
        "images": packed.num_samples,
        "seconds": seconds,
        "bytes_out": packed.file_bytes,
    }
    packages = (DISTRIBUTION, "torch", "opencv-python-headless", "simplejpeg", "lmdb", "h5py")
    print_report(report, *packages)


if __name__ == "__main__":
    main()
