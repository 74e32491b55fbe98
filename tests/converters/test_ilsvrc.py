"""ImageNet, against a plain loop over its files."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_ilsvrc import ORDER, SYNSETS, devkit, ilsvrc, put
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField

TRUTH = "ILSVRC2012_validation_ground_truth.txt"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(12)


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


def by_image(data: Any, field: str = "label") -> dict[bytes, Any]:
    (shard,) = data.shards
    return {bytes(shard.blob("image", k)): getattr(data[k], field) for k in range(len(data))}


@pytest.mark.parametrize("place", ["", "ILSVRC", "ILSVRC/Data/CLS-LOC"])
def test_imagenet_has_sorted_synsets_and_the_labels_of_its_list(
    tmp_path: Path, pictures: list[Picture], place: str
) -> None:
    ilsvrc(tmp_path / "in", pictures)
    report, data = pack(tmp_path / "in" / place, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (12, 0)
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=SYNSETS),
        "split": ScalarField(classes=("train", "val")),
    }
    assert by_image(data) == {p.data: p.label for p in pictures}
    assert by_image(data, "split") == {p.data: int(k >= 6) for k, p in enumerate(pictures)}


def test_imagenet_by_split(tmp_path: Path, pictures: list[Picture]) -> None:
    ilsvrc(tmp_path, pictures)
    source = find_source(tmp_path, options={"split": "val"})
    assert source.schema["label"] == ScalarField(classes=SYNSETS)
    assert source.num_samples == 6
    assert "split" not in source.schema
    assert any(note.startswith("test left out") for note in source.notes)
    with pytest.raises(OptionError, match="split=dev: expected train or val"):
        find_source(tmp_path, options={"split": "dev"})


def test_imagenet_images_that_the_list_lacks_are_rejected(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    ilsvrc(tmp_path / "in", pictures)
    put(tmp_path / "in/ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000099.JPEG", pictures[0])
    report, _ = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert [reject.reason for reject in report.rejects] == ["LOC_val_solution.csv does not list it"]
    (tmp_path / "in/LOC_val_solution.csv").unlink()
    with pytest.raises(SourceError, match=r"val is flat, and neither .*split=train"):
        find_source(tmp_path / "in")
    assert find_source(tmp_path / "in", options={"split": "train"}).num_samples == 6


@pytest.mark.parametrize("place", ["", "ILSVRC2012_devkit_t12/data", "apart"])
def test_the_development_kit_says_which_synsets_the_numbers_are(
    tmp_path: Path, pictures: list[Picture], place: str
) -> None:
    root = devkit(tmp_path / "in", pictures)
    kit = root / "ILSVRC2012_devkit_t12/data"
    if place == "":  # all in one folder
        for path in list(kit.iterdir()):
            path.rename(root / path.name)
    elif place == "apart":  # the numbers not where their order is
        (kit / TRUTH).rename(root / TRUTH)
    report, data = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0
    assert data.schema["label"] == ScalarField(classes=SYNSETS)
    assert by_image(data) == {p.data: p.label for p in pictures}
    meta = (kit if place else root) / "meta.mat"
    assert f"numbers in {TRUTH} are synsets of {meta}" in find_source(root).notes


def test_only_classes_of_the_development_kit_have_numbers(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = devkit(tmp_path, pictures)
    truth = root / "ILSVRC2012_devkit_t12/data" / TRUTH
    truth.write_text("4\n" + truth.read_text()[2:])  # the number of 'fish', which has children
    with pytest.raises(SourceError, match="line 1: expected a number from 1 to 3, found '4'"):
        find_source(root)


@pytest.mark.parametrize(
    "rows",
    [
        [(1, "n01440764", 0), (3, "n01443537", 0)],
        [(1, "n01440764", 0), (2, "n01440764", 0)],
        [(1, "n01440764", 2)],
        [(1, "n01440764", 0), (1, "n01443537", 0)],
        [(1, "tench", 0)],
        [(1.5, "n01440764", 0)],
        [(np.nan, "n01440764", 0)],
        [],
        None,
    ],
)
def test_a_development_kit_that_cannot_be_is_refused(
    tmp_path: Path, pictures: list[Picture], rows: list[tuple[float, str, float]] | None
) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    root = devkit(tmp_path, pictures)
    fields = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "num_children")]
    content = np.ones((1, 1)) if rows is None else np.array(rows, fields)[:, None]
    meta = root / "ILSVRC2012_devkit_t12/data/meta.mat"
    scipy_io.savemat(meta, {"synsets": content})
    with pytest.raises(SourceError, match=r"meta\.mat: (expected|its classes)"):
        find_source(root)


@pytest.mark.parametrize("damage", ["cut", "another", "without", "inflates without end"])
def test_a_damaged_development_kit_is_refused(
    tmp_path: Path, pictures: list[Picture], damage: str
) -> None:
    root = devkit(tmp_path, pictures)
    meta = root / "ILSVRC2012_devkit_t12/data/meta.mat"
    data = meta.read_bytes()
    packed = zlib.compress(bytes(1 << 28))
    changed = {
        "cut": data[:-60],
        "another": b"no MATLAB",
        "without": data[:128],
        "inflates without end": data[:128] + struct.pack("<II", 15, len(packed)) + packed,
    }
    meta.write_bytes(changed[damage])
    with pytest.raises(SourceError, match=r"meta\.mat: expected the development kit's"):
        find_source(root)


def test_a_development_kit_that_claims_a_billion_synsets_takes_no_memory(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = devkit(tmp_path, pictures)
    meta = root / "ILSVRC2012_devkit_t12/data/meta.mat"
    meta.write_bytes(meta_of([], claimed=1 << 30))
    tracemalloc.start()
    with pytest.raises(SourceError, match="its classes are not"):
        find_source(root)
    assert tracemalloc.get_traced_memory()[1] < 1 << 25
    tracemalloc.stop()


def test_numbers_that_matlab_stores_in_two_bytes_are_read(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = devkit(tmp_path / "in", pictures)
    meta = root / "ILSVRC2012_devkit_t12/data/meta.mat"
    meta.write_bytes(meta_of(list(ORDER)))
    _, data = pack(root, tmp_path / "x.lmdb")
    assert by_image(data) == {p.data: p.label for p in pictures}


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def array_of(kind: int, count: int, content: bytes, name: str = "") -> bytes:
    head = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack("<2i", 1, count))
    return element(14, head + element(1, name.encode()) + content)


def meta_of(synsets: list[str], claimed: int | None = None) -> bytes:
    """Return a meta.mat as MATLAB writes it: whole doubles as uint16, small data in its tag."""
    names = ("ILSVRC2012_ID", "WNID", "num_children")
    content = struct.pack("<HHi", 5, 4, 32)
    content += element(1, b"".join(name.encode().ljust(32, b"\0") for name in names))
    for number, synset in enumerate(synsets, 1):
        content += array_of(6, 1, struct.pack("<HHHxx", 4, 2, number))
        content += array_of(4, len(synset), element(4, synset.encode("utf-16-le")))
        content += array_of(6, 1, struct.pack("<HHHxx", 4, 2, 0))
    other = array_of(6, 1, element(9, struct.pack("<d", 7)), "version")
    return bytes(128) + other + array_of(2, claimed or len(synsets), content, "synsets")


def test_the_ground_truth_of_the_development_kit_needs_its_order_of_synsets(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = devkit(tmp_path, pictures)
    (root / "ILSVRC2012_devkit_t12/data/meta.mat").unlink()
    with pytest.raises(SourceError, match=r"not of sorted synsets. Put meta.mat into its folder"):
        find_source(root)


def test_imagenet_with_validation_in_class_folders_is_class_folders(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for split in ("train", "val"):
        for synset in SYNSETS:
            put(tmp_path / f"{split}/{synset}/0.JPEG", pictures[0])
    source = find_source(tmp_path)
    assert (source.name, source.schema["label"]) == ("folder", ScalarField(classes=SYNSETS))
