"""Drives that lack locks, fsync or memory maps: an error names the folder, what lacks, the remedy.

A preloaded library has the calls fail, for files below one folder.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pack_helpers import QUICK, image_folder

import fastdata

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

PROGRAM = """
import os, sys
import fastdata
from fastdata.converters.exporting.export import export
from fastdata.errors import DriveError
from fastdata.tuned_settings import store
from fastdata.verifying import verify

DRIVE = os.environ["DRIVE_FOLDER"]

def pack(suffix, **options):
    fastdata.pack("images", f"{DRIVE}/new{suffix}", size=24, num_workers=0, **options)

def load(suffix):
    loader = fastdata.loader(f"{DRIVE}/old{suffix}", batch_size=4, num_workers=1)
    assert sum(len(batch.image) for batch in loader) == 6

def tune(suffix):
    tuned = store.TunedSettings(store.Settings(1), 4, "", False)
    assert store.save(store.Key({}, {}), tuned) is not None

DEEDS = {
    "pack": pack,
    "pack shards": lambda suffix: pack("", shards=2, container=suffix[1:].replace("h5", "hdf5")),
    "pack in parts": lambda suffix: pack("", part="plan", shards=2),
    "repack": lambda suffix: fastdata.pack(f"{DRIVE}/old{suffix}", f"again{suffix}", size=24),
    "append": lambda suffix: fastdata.append(f"{DRIVE}/old{suffix}", "images", num_workers=0),
    "export": lambda suffix: export(f"old{suffix}", f"{DRIVE}/out", format="folder"),
    "open": lambda suffix: fastdata.open(f"{DRIVE}/old{suffix}")[0],
    "load": load,
    "verify": lambda suffix: verify(f"{DRIVE}/old{suffix}"),
    "tune": tune,
}
for line in sys.stdin:
    deed, suffix = line.strip().split("|")
    try:
        DEEDS[deed](suffix)
        print("done")
    except DriveError as error:
        print(f"DriveError: {error}")
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""

LOCKS, SYNC, MAPS = "lacks file locks", "lacks fsync", "lacks memory maps"
SHARED = "lacks shared memory maps"
PACK = "Pack on a local disk and copy"
COPY = "Copy the dataset to a local disk"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc")
    if not compiler or sys.platform != "linux":
        pytest.skip("there is no C compiler, or no preloading")
    target = tmp_path_factory.mktemp("drive") / "drive_without.so"
    source = Path(__file__).with_name("drive_without.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", target, source, "-ldl"], check=True)
    return target


@pytest.fixture
def done(tmp_path: Path, library: Path) -> Callable[..., list[str]]:
    """Return a function that does things on a drive, and returns what came of each."""
    (tmp_path / "drive").mkdir()
    images = image_folder(tmp_path / "images", 6)
    for suffix in (".lmdb", ".h5"):
        fastdata.pack(images, tmp_path / "drive" / f"old{suffix}", **QUICK)
        shutil.copy(tmp_path / "drive" / f"old{suffix}", tmp_path)

    def run(lacks: str, number: int, *deeds: str) -> list[str]:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "DRIVE_FOLDER": str(tmp_path / "drive"),
            "DRIVE_CALL": lacks,
            "DRIVE_ERRNO": str(number),
            "FASTDATA_TUNED_DIR": str(tmp_path / "drive" / "tuned"),
        }
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input="\n".join(deeds),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        said = ended.stdout.splitlines()
        assert len(said) == len(deeds), ended.stderr
        return said

    return run


READING = [
    f"{deed}|{suffix}"
    for deed in ("open", "load", "verify", "repack")
    for suffix in (".lmdb", ".h5")
]
PACKING = ["pack|.lmdb", "pack|.h5", "pack shards|.h5", "append|.lmdb", "append|.h5"]


@pytest.mark.parametrize(
    ("lacks", "number", "writing", "reading"),
    [
        ("lock", errno.ENOLCK, LOCKS, None),
        ("lock", errno.ENOSYS, LOCKS, None),
        ("lock", errno.EOPNOTSUPP, LOCKS, None),
        ("sync", errno.EINVAL, SYNC, None),
        ("sync", errno.ENOTSUP, SYNC, None),
        ("map", errno.ENODEV, MAPS, MAPS),
    ],
)
def test_a_drive_that_lacks_a_call_is_named_with_the_remedy(
    tmp_path: Path,
    done: Callable[..., list[str]],
    lacks: str,
    number: int,
    writing: str,
    reading: str | None,
) -> None:
    packed = done(lacks, number, *PACKING, *(["pack in parts|"] if lacks == "sync" else []))
    for said in packed:
        assert said.startswith(f"DriveError: {tmp_path / 'drive'}"), said
        assert writing in said.replace("shared ", "")
        assert os.strerror(number) in said
        assert PACK in said or (lacks == "map" and COPY in said)
    for said in done(lacks, number, *READING):
        if reading is None:
            assert said == "done"
        else:
            assert said.startswith(f"DriveError: {tmp_path / 'drive'}: its drive {reading}"), said
            assert COPY in said
    export, tuned = done(lacks, number, "export|.lmdb", "tune|")
    assert (LOCKS in export) if lacks == "lock" else export == "done"
    assert tuned == "done"


@pytest.mark.smoke
def test_a_drive_without_locks_is_named(tmp_path: Path, done: Callable[..., list[str]]) -> None:
    (said,) = done("lock", errno.ENOLCK, "pack|.lmdb")
    drive = tmp_path / "drive"
    assert said.startswith(f"DriveError: {drive}: its drive {LOCKS} (No locks available). {PACK}")


def test_a_drive_without_shared_maps_is_read_and_takes_hdf5(
    done: Callable[..., list[str]],
) -> None:
    assert done("shared_map", errno.ENODEV, *READING, "pack|.h5", "append|.h5") == ["done"] * 10
    (said,) = done("shared_map", errno.EINVAL, "pack|.lmdb")
    assert said.startswith("DriveError")
    assert SHARED in said
