"""ImageNet, against a plain loop over its files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_ilsvrc import ORDER, SYNSETS, WORDS, devkit, ilsvrc, put
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import MissingExtraError, OptionError, SourceError
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


def test_imagenet_by_words_and_by_split(tmp_path: Path, pictures: list[Picture]) -> None:
    ilsvrc(tmp_path, pictures)
    source = find_source(tmp_path, options={"names": "words", "split": "val"})
    assert source.schema["label"] == ScalarField(classes=WORDS)
    assert source.num_samples == 6
    assert "split" not in source.schema
    test = find_source(tmp_path, options={"split": "test"})
    assert (test.num_samples, list(test.schema)) == (1, ["image"])
    with pytest.raises(OptionError, match="split=dev: expected train, val or test"):
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


def test_an_order_of_synsets_that_is_given_stands_over_the_development_kit(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = devkit(tmp_path / "in", pictures)
    other = [ORDER[1], ORDER[0], ORDER[2]]
    (tmp_path / "order.txt").write_text("\n".join(other))
    _, data = pack(root, tmp_path / "x.lmdb", synsets=str(tmp_path / "order.txt"))
    meant = {SYNSETS.index(old): SYNSETS.index(new) for old, new in zip(ORDER, other, strict=True)}
    assert by_image(data) == {p.data: meant[p.label] for p in pictures}


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


@pytest.mark.parametrize("damage", ["cut", "another", "large"])
def test_a_damaged_development_kit_is_refused(
    tmp_path: Path, pictures: list[Picture], damage: str
) -> None:
    pytest.importorskip("scipy.io")
    root = devkit(tmp_path, pictures)
    meta = root / "ILSVRC2012_devkit_t12/data/meta.mat"
    data = meta.read_bytes()
    changed = {"cut": data[:-60], "another": b"no MATLAB", "large": data + bytes(5 << 20)}
    meta.write_bytes(changed[damage])
    with pytest.raises(SourceError, match=r"meta\.mat: expected the development kit's"):
        find_source(root)


def test_the_development_kit_needs_scipy(
    tmp_path: Path, pictures: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = devkit(tmp_path, pictures)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[imagenet\]'"):
        find_source(root)


def test_the_ground_truth_of_the_development_kit_needs_its_order_of_synsets(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    order = list(ORDER)
    for number, p in enumerate(pictures, 1):
        put(tmp_path / f"in/val/ILSVRC2012_val_{number:08}.JPEG", p)
    truth = "".join(f"{order.index(SYNSETS[p.label]) + 1}\n" for p in pictures)
    (tmp_path / "in/ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    with pytest.raises(OptionError, match=r"not of sorted.*meta.mat into its folder.*synsets=FILE"):
        find_source(tmp_path / "in")
    (tmp_path / "sorted.txt").write_text("\n".join(SYNSETS))
    with pytest.raises(OptionError, match="sorted ones are not in it"):
        find_source(tmp_path / "in", options={"synsets": str(tmp_path / "sorted.txt")})
    (tmp_path / "order.txt").write_text("\n".join(order))
    _, data = pack(tmp_path / "in", tmp_path / "x.lmdb", synsets=str(tmp_path / "order.txt"))
    assert data.schema["label"].classes == SYNSETS
    assert by_image(data) == {p.data: p.label for p in pictures}
    (tmp_path / "in/ILSVRC2012_validation_ground_truth.txt").write_text("4\n" + truth[2:])
    with pytest.raises(SourceError, match="line 1: expected a number from 1 to 3, found '4'"):
        find_source(tmp_path / "in", options={"synsets": str(tmp_path / "order.txt")})


def test_imagenet_with_validation_in_class_folders_is_class_folders(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for split in ("train", "val"):
        for synset in SYNSETS:
            put(tmp_path / f"{split}/{synset}/0.JPEG", pictures[0])
    source = find_source(tmp_path)
    assert (source.name, source.schema["label"]) == ("folder", ScalarField(classes=SYNSETS))
