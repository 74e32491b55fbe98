"""Pack with fastdata, once, and report; run by `bench/pack.py` and `bench/converters.py`."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import fastdata
from fastdata.installing import DISTRIBUTION


def main() -> None:
    """Pack as the JSON in the first argument says."""
    options = json.loads(sys.argv[1])
    destination = Path(options["destination"])
    pack = partial(
        fastdata.pack,
        options["images"],
        destination,
        **{"codec": "jpeg", **options.get("pack", {})},
        quality=options["quality"],
        overwrite=True,
        progress=False,
    )
    # What is imported when first used is imported here, not in the measured time.
    pack(num_workers=0, limit=1)
    started = time.perf_counter()
    pack(num_workers=options["workers"])
    seconds = time.perf_counter() - started
    packages = (DISTRIBUTION, "torch", "opencv-python-headless", "simplejpeg", "lmdb", "h5py")
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
