"""A script that ends, in whatever way, ends without a word of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import encode, photo, write_shard
from selecting import mark_except
from warm_python import WarmPython

from fastdata.formats.writer import Record

SCRIPT = """
import sys
import fastdata
from fastdata import transforms as T

loader = fastdata.loader(
    sys.argv[1], batch_size=8, shuffle=True, num_workers=2, worker_method=sys.argv[2],
    transform=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()],
)
"""

ENDS = {
    "after an epoch": "for images, labels in loader: pass",
    "in an epoch": "for images, labels in loader: break",
    "with an iterator that is kept": "it = iter(loader); next(it)",
    "before the first batch": "it = iter(loader)",
    "in a cycle": "class Kept: pass\nkept = Kept(); kept.kept = kept; kept.it = iter(loader)",
    "in another module": "sys.modules['torch'].kept = loader; next(iter(loader))",
}


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty small photographs."""
    records = [Record(str(n), (encode(photo(24, 32, seed=n), "jpeg"), n % 3)) for n in range(40)]
    return write_shard(tmp_path_factory.mktemp("exit") / "train.lmdb", records)


@pytest.mark.parametrize(
    ("method", "end"),
    mark_except(
        [("thread", "in an epoch"), ("process", "in a cycle")],
        pytest.mark.soak,
        [
            *(("thread", end) for end in ENDS),
            *(("process", end) for end in ("after an epoch", "in a cycle")),
        ],
    ),
)
def test_a_script_without_main_ends_in_silence(
    shard: Path, warm_python: WarmPython, method: str, end: str
) -> None:
    """D1: threads were ended by `__del__`, when modules were gone (from Python 3.12 on)."""
    done = warm_python.run(SCRIPT + ENDS[end] + "\n", shard, method)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
