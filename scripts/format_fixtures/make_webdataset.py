"""Write tests/converters/fixtures/webdataset with the library webdataset itself.

    python -m venv /tmp/webdataset && /tmp/webdataset/bin/pip install webdataset==1.0.2 pillow
    /tmp/webdataset/bin/python scripts/format_fixtures/make_webdataset.py

``test_webdataset.py`` knows by the same formulas what is in them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import webdataset

FOLDER = Path(__file__).parents[2] / "tests" / "converters" / "fixtures" / "webdataset"


def pixels(index: int) -> np.ndarray:
    """Return picture number `index`."""
    rows, columns = np.indices((12, 16))
    return np.stack([rows * 20, columns * 15, rows + columns + 9 * index], axis=2).astype(np.uint8)


def sample(index: int) -> dict[str, object]:
    """Return a sample with members of many kinds."""
    return {
        "__key__": f"part{index % 2}/{index:05}",
        "png": pixels(index),
        "seg.png": (pixels(index)[:, :, 0] // 100),
        "cls": index % 3,
        "txt": f"picture {index} - ä",
        "json": {"id": index, "where": {"x": index / 4}, "tags": ["a"]},
        "emb.npy": np.arange(4, dtype=np.float32) + index,
        "pyd": {"pickled": index},
    }


def main() -> None:
    """Write two shards, and all samples once more into one that is gzip'd."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    with webdataset.ShardWriter(str(FOLDER / "train-%06d.tar"), maxcount=2, mtime=0) as writer:
        for index in range(4):
            writer.write(sample(index))
    with webdataset.TarWriter(str(FOLDER / "all.tar.gz"), mtime=0) as writer:
        for index in range(4):
            writer.write(sample(index))


if __name__ == "__main__":
    main()
