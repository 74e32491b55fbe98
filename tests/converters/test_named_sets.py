"""ImageNet, Tiny ImageNet, CUB, CelebA and WIDER FACE, against a plain loop over their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_mat import mat5, matrix, structs, text
from case_named_sets import ORDER, SYNSETS, WORDS, celeba, cub, devkit, ilsvrc, put, tiny, widerface
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

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


# -- ImageNet ----------------------------------------------------------------------------


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
    with pytest.raises(SourceError, match="line 1: '4' is no number from 1 to 3"):
        find_source(root)


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([(1, "n01440764", 0), (3, "n01443537", 0)], "do not count from 1"),
        ([(1, "n01440764", 0), (2, "n01440764", 0)], "do not count from 1"),
        ([(1, "n01440764", 2)], "do not count from 1"),
        ([(1, "n01440764", 0), (1, "n01443537", 0)], "1 is n01440764 and n01443537"),
        ([(1, "tench", 0)], "synset 1: expected a WNID"),
        ([(1.5, "n01440764", 0)], "ILSVRC2012_ID: expected a whole number"),
        ([(np.nan, "n01440764", 0)], "ILSVRC2012_ID: expected a whole number"),
        ([], "do not count from 1"),
        (None, "expected a struct array 'synsets'"),
    ],
)
def test_a_development_kit_that_cannot_be_is_refused(
    tmp_path: Path,
    pictures: list[Picture],
    rows: list[tuple[float, str, float]] | None,
    match: str,
) -> None:
    root = devkit(tmp_path, pictures)
    structs_of = [
        {
            "ILSVRC2012_ID": matrix("", np.array([[float(number)]])),
            "WNID": text(synset),
            "num_children": matrix("", np.array([[float(children)]])),
        }
        for number, synset, children in rows or []
    ]
    content = structs("synsets", structs_of) if structs_of else matrix("synsets", np.ones((1, 1)))
    if rows == []:
        content = structs("synsets", [], ["ILSVRC2012_ID", "WNID", "num_children"])
    mat5(root / "ILSVRC2012_devkit_t12/data/meta.mat", content)
    with pytest.raises(SourceError, match=match):
        find_source(root)


def test_the_ground_truth_of_the_development_kit_needs_its_order_of_synsets(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    order = list(ORDER)
    for number, p in enumerate(pictures, 1):
        put(tmp_path / f"in/val/ILSVRC2012_val_{number:08}.JPEG", p)
    truth = "".join(f"{order.index(SYNSETS[p.label]) + 1}\n" for p in pictures)
    (tmp_path / "in/ILSVRC2012_validation_ground_truth.txt").write_text(truth)
    with pytest.raises(OptionError, match=r"not of sorted.*meta.mat beside it.*synsets=FILE"):
        find_source(tmp_path / "in")
    (tmp_path / "sorted.txt").write_text("\n".join(SYNSETS))
    with pytest.raises(OptionError, match="sorted ones are not in it"):
        find_source(tmp_path / "in", options={"synsets": str(tmp_path / "sorted.txt")})
    (tmp_path / "order.txt").write_text("\n".join(order))
    _, data = pack(tmp_path / "in", tmp_path / "x.lmdb", synsets=str(tmp_path / "order.txt"))
    assert data.schema["label"].classes == SYNSETS
    assert by_image(data) == {p.data: p.label for p in pictures}
    (tmp_path / "in/ILSVRC2012_validation_ground_truth.txt").write_text("4\n" + truth[2:])
    with pytest.raises(SourceError, match="line 1: '4' is no number from 1 to 3"):
        find_source(tmp_path / "in", options={"synsets": str(tmp_path / "order.txt")})


def test_imagenet_with_validation_in_class_folders_is_class_folders(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for split in ("train", "val"):
        for synset in SYNSETS:
            put(tmp_path / f"{split}/{synset}/0.JPEG", pictures[0])
    source = find_source(tmp_path)
    assert (source.name, source.schema["label"]) == ("folder", ScalarField(classes=SYNSETS))


def test_tiny_imagenet(tmp_path: Path, pictures: list[Picture]) -> None:
    tiny(tmp_path / "in", pictures)
    report, data = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert report.num_samples == 12
    assert data.schema["label"].classes == SYNSETS
    assert by_image(data) == {p.data: p.label for p in pictures}
    assert by_image(data, "split") == {p.data: int(k >= 6) for k, p in enumerate(pictures)}
    source = find_source(tmp_path / "in", options={"names": "words", "split": "train"})
    assert source.schema["label"].classes == WORDS  # type: ignore[union-attr]
    (tmp_path / "in/words.txt").write_text("n00001740\tentity\n")
    with pytest.raises(OptionError, match="there are no words for n01440764"):
        find_source(tmp_path / "in", options={"names": "words"})


# -- CUB ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "CUB_200_2011"])
def test_cub_joins_its_tables(tmp_path: Path, pictures: list[Picture], place: str) -> None:
    cub(tmp_path / "in", pictures)
    report, data = pack(tmp_path / "in" / place, tmp_path / "x.lmdb")
    assert report.num_samples == 12
    names = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
    assert data.schema["label"] == ScalarField(classes=names)
    assert data.schema["split"] == ScalarField(classes=("train", "test"))
    for number, (p, sample) in enumerate(zip(pictures, data, strict=True), 1):
        assert sample.label == p.label
        assert sample.split == 1 - number % 2
        left = float(number % 7)
        assert sample.boxes.tolist() == [[left, 3, left + 20, 14.5]]
    train = find_source(tmp_path / "in", options={"split": "train"})
    assert train.num_samples == 6


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        (
            "bounding_boxes",
            lambda text: text.replace("\n3 3.0", "\n30 3.0", 1),
            "row 3: '30', where",
        ),
        ("image_class_labels", lambda text: text.rsplit("\n", 2)[0], "row 12: 'its end', where"),
        ("images", lambda text: "1\n" + text, "line 1: expected two columns"),
    ],
)
def test_cub_tables_that_do_not_go_together_are_refused(
    tmp_path: Path,
    pictures: list[Picture],
    table: str,
    change: Callable[[str], str],
    message: str,
) -> None:
    cub(tmp_path, pictures)
    path = tmp_path / f"CUB_200_2011/{table}.txt"
    path.write_text(change(path.read_text()))
    with pytest.raises(SourceError, match=message):
        find_source(tmp_path)


def test_cub_rows_that_do_not_fit_are_rejected(tmp_path: Path, pictures: list[Picture]) -> None:
    cub(tmp_path / "in", pictures)
    root = tmp_path / "in/CUB_200_2011"
    for table, old, new in (
        ("images", "001.Black_footed_Albatross/Bird_000000.jpg", "../../x.jpg"),
        ("image_class_labels", "2 2\n", "2 9\n"),
        ("bounding_boxes", "3 3.0 3.0 20.0 11.5", "3 3.0 3.0 20.0"),
        ("train_test_split", "4 0", "4 2"),
    ):
        path = root / f"{table}.txt"
        path.write_text(path.read_text().replace(old, new, 1))
    report, data = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert len(data) == 8
    assert data[0].boxes.tolist() == [[5, 3, 25, 14.5]], "boxes stay with their images"
    reasons = [reject.reason for reject in report.rejects]
    wanted = ["outside of its folder", "no class '9'", "not four numbers", "neither 0 nor 1"]
    for reason, part in zip(reasons, wanted, strict=True):
        assert part in reason


# -- CelebA and WIDER FACE -----------------------------------------------------------------


@pytest.mark.parametrize("kaggle", [False, True])
def test_celeba_joins_attributes_identity_and_split(
    tmp_path: Path, pictures: list[Picture], kaggle: bool
) -> None:
    root = celeba(tmp_path / "in", pictures)
    if kaggle:
        for name, head in (("list_attr_celeba", "image_id,5_o_Clock_Shadow,Young"),
                           ("list_eval_partition", "image_id,partition")):  # fmt: skip
            lines = (root / f"{name}.txt").read_text().splitlines()
            rows = [",".join(line.split()) for line in lines[2 if "attr" in name else 0 :]]
            (root / f"{name}.csv").write_text("\n".join([head, *rows]))
            (root / f"{name}.txt").unlink()
        (root / "img_align_celeba").rename(tmp_path / "images")
        (root / "img_align_celeba").mkdir()
        (tmp_path / "images").rename(root / "img_align_celeba/img_align_celeba")
    report, data = pack(root, tmp_path / "x.lmdb")
    assert report.num_samples == 12
    names = ("5_o_Clock_Shadow", "Young")
    assert data.schema["labels"] == ArrayField("int64", (None,), classes=names)
    assert data.schema["split"] == ScalarField(classes=("train", "valid", "test"))
    (shard,) = data.shards
    for number, (p, sample) in enumerate(zip(pictures, data, strict=True), 1):
        assert sample.labels.tolist() == [[], [1], [0, 1]][p.label]
        assert (sample.split, sample.identity) == (min(2, number // 4), 9000 + number)
        assert bytes(shard.blob("image", number - 1)) == p.data
    assert any("list_bbox_celeba" in note for note in find_source(root).notes)
    assert find_source(root, options={"split": "train"}).num_samples == 3


def test_celeba_tables_in_another_order_are_refused(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    celeba(tmp_path, pictures)
    path = tmp_path / "list_eval_partition.txt"
    path.write_text("".join(path.read_text().splitlines(True)[::-1]))
    with pytest.raises(SourceError, match=r"row 1: '000012.jpg', where list_attr_celeba.txt"):
        find_source(tmp_path)


def test_wider_face(tmp_path: Path, pictures: list[Picture]) -> None:
    path = widerface(tmp_path, pictures)
    _, data = pack(path, tmp_path / "x.lmdb")
    for p, sample in zip(pictures, data, strict=True):
        assert sample.boxes.tolist() == [[4, 3, 13, 11]][: p.label]
    assert any("4 faces that are marked invalid" in note for note in find_source(path).notes)
    _, data = pack(path, tmp_path / "y.lmdb", invalid=True)
    assert [len(s.boxes) for s in data] == [p.label for p in pictures]
    np.testing.assert_array_equal(data[2].boxes, [[4, 3, 13, 11], [5, 3, 14, 11]])
    text = path.read_text()
    path.write_text(text.replace("\n2\n", "\n3\n", 1))
    with pytest.raises(SourceError, match="expected 10 numbers of a face"):
        find_source(path)
    path.write_text(text)
    (tmp_path / "WIDER_train").rename(tmp_path / "photos")
    with pytest.raises(SourceError, match="images=FOLDER"):
        find_source(path)
    assert find_source(path, options={"images": "../photos/images"}).num_samples == 12
