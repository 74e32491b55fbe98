"""Pack with fastdata, once, and report; run by `bench/pack.py` and `bench/converters.py`."""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import fastdata

pack = (
    fastdata.pack
)  # names of fastdata are imported when first used: here, not in the measured time


def main() -> None:
    """Pack as the JSON in the first argument says."""
    options = json.loads(sys.argv[1])
    destination = Path(options["destination"])
    started = time.perf_counter()
    pack(
        options["images"],
        destination,
        **{"codec": "jpeg", **options.get("pack", {})},
        quality=options["quality"],
        num_workers=options["workers"],
        overwrite=True,
        progress=False,
    )
    seconds = time.perf_counter() - started
    packages = ("fastdata", "torch", "opencv-python-headless", "simplejpeg", "lmdb", "h5py")
    report = {
        "images": len(fastdata.open(destination)),
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
