"""The recipes of docs/recipes/datasets.md, each run on its dataset; packing that one names it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import make_pictures
from docs_blocks import REPOSITORY, blocks_of
from recipe_cases import RECIPES, Expected, Recipe

import fastdata
from fastdata.converters.known_sets import KNOWN_SETS, PAGE, recipe_for, recipe_in
from fastdata.errors import SourceError

TEXT = (REPOSITORY / PAGE).read_text(encoding="utf-8")
LINES = {title: TEXT.count("\n", 0, TEXT.index(f"\n## {title}\n")) for title, *_ in RECIPES}
by_title = pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.title for recipe in RECIPES])


def codes(recipe: Recipe) -> list[str]:
    """Return the blocks below a heading."""
    start = LINES[recipe.title]
    end = min((line for line in LINES.values() if line > start), default=10**6)
    return [block.text for block in blocks_of(REPOSITORY / PAGE) if start < block.line <= end]


def written(recipe: Recipe, folder: Path) -> list[Expected]:
    if recipe.needs:
        pytest.importorskip(recipe.needs)
    return recipe.write(folder, make_pictures(12))


def identity(value: Any) -> bytes:
    return value if isinstance(value, bytes) else value.tobytes()


def images_of(data: Any, index: int, sample: Any) -> dict[str, bytes]:
    """Return image files as they are stored, and pixels of arrays."""
    found = {}
    (shard,) = data.shards
    for name, field in data.schema.images.items():
        blob = bytes(shard.blob(name, index))
        pixels = np.asarray(getattr(sample, name))
        whole = shard.codec(name, index) == "file" or blob[:3] == b"\xff\xd8\xff"
        found[name] = blob if whole and not field.mask else pixels.transpose(1, 2, 0).tobytes()
    return found


def check(data: Any, expected: list[Expected]) -> None:
    main = next(iter(data.schema.images))
    wanted = {identity(row[main]): row for row in expected}
    assert len(data) == len(expected) == len(wanted)
    for index, sample in enumerate(data):
        images = images_of(data, index, sample)
        row = wanted.pop(images[main])
        assert row.keys() == data.schema.keys()
        for name, value in row.items():
            field, found = data.schema[name], getattr(sample, name)
            if name in images:
                assert images[name] == identity(value), name
            elif name == "boxes":
                assert name in data.schema.boxes
                np.testing.assert_allclose(found, np.reshape(value, (-1, 4)), rtol=1e-6)
            elif name == "labels":
                assert [field.classes[number] for number in found.tolist()] == value
            else:
                assert value == (field.classes[int(found)] if field.classes else int(found)), name


@by_title
def test_a_recipe_packs_its_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    expected = written(recipe, tmp_path)
    monkeypatch.chdir(tmp_path)
    kept = partial(fastdata.pack, codec="keep", num_workers=0, progress=False)
    monkeypatch.setattr(fastdata, "pack", kept)
    blocks = codes(recipe)
    assert len(blocks) == len(recipe.out)
    for code, name in zip(blocks, recipe.out, strict=True):
        assert 5 <= sum(bool(line.strip()) for line in code.splitlines()) <= 25
        exec(compile(code, f"{PAGE}, {recipe.title}", "exec"), {"__name__": "__main__"})
        assert not Path(f"{name}.rejects.csv").exists()
        check(fastdata.open(name), expected)


@by_title
def test_packing_a_known_dataset_names_its_recipe(tmp_path: Path, recipe: Recipe) -> None:
    (tmp_path / "in").mkdir()
    written(recipe, tmp_path / "in")
    for place in recipe.at:
        with pytest.raises(SourceError, match=rf"{PAGE}#{anchor_of(recipe.title)}$"):
            fastdata.pack(tmp_path / "in" / place, tmp_path / "x.lmdb", progress=False)
    assert not (tmp_path / "x.lmdb").exists()


def anchor_of(title: str) -> str:
    return re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))


def test_every_known_dataset_has_a_recipe() -> None:
    headings = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert headings == [recipe.title for recipe in RECIPES]
    assert [known.anchor for known in KNOWN_SETS] == list(map(anchor_of, headings))


VARIANTS = [
    ("celeba", {"list_attr_celeba.csv": b"image_id,Bald\n000001.jpg,1\n", "img/0.jpg": b""}),
    ("celeba", {"Anno/list_attr_celeba.txt": b"1\nBald\n000001.jpg 1\n", "img/0.jpg": b""}),
    ("stanford-cars", {"devkit/cars_train_annos.mat": b"", "cars_train/0.jpg": b""}),
    ("stanford-cars", {"cars_test_annos_withlabels.mat": b"", "cars_test/0.jpg": b""}),
    ("stanford-dogs", {"Images/n02085620-Chihuahua/0.jpg": b"",
                       "Annotation/n02085620-Chihuahua/0": b"<annotation/>"}),
    ("stanford-dogs", {"images/Images/n02085620-Chihuahua/0.jpg": b"",
                       "annotations/Annotation/n02085620-Chihuahua/0": b"<annotation/>"}),
    ("svhn", {"test_32x32.mat": b"MATLAB 5.0 MAT-file"}),
    ("mat-files", {"cat/0.jpg": b"", "dog/0.jpg": b"", "labels.mat": b"MATLAB 5.0 MAT-file"}),
    ("paired-lmdb", {"train_GT.lmdb/data.mdb": b"x", "train_LQ.lmdb/data.mdb": b"x"}),
    ("labelme", {"train/0.jpg": b"",
                 "train/0.json": b'\xef\xbb\xbf{"shapes": [{"points": [[1, 2]]}]}'}),
    ("cvat", {"images/0.jpg": b"", "train.xml": b"<?xml?><annotations>\n<version>1.1</version>"}),
    ("run-length-tables", {"train.csv": b"ImageId,EncodedPixels\na.jpg,1 2\n", "img/0.jpg": b""}),
    ("run-length-tables", {"train.csv": b'"id","rle_mask"\r\na,1 2\r\n', "img/0.png": b""}),
    ("visdrone", {"images/0.jpg": b"", "annotations/0.txt": b"684,8,273,116,0,0,0,0,\n"}),
    ("kitti", {"training/image_2/0.png": b"", "testing/image_2/0.png": b""}),
    ("dota", {"train/images/P0.png": b"", "train/labelTxt-v1.5/P0.txt": b"imagesource:x\n"}),
    ("bdd100k", {"labels/bdd100k_labels_images_val.json":
                 b'[\n{"name": "0.jpg", "labels": [{"category": "car"}]}]', "images/0.jpg": b""}),
]  # fmt: skip
"""Other names that these datasets have."""


@pytest.mark.parametrize(("anchor", "files"), VARIANTS)
def test_other_layouts_of_known_datasets_are_refused(
    tmp_path: Path, anchor: str, files: dict[str, bytes]
) -> None:
    for file, content in files.items():
        (tmp_path / "in" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / file).write_bytes(content)
    with pytest.raises(SourceError, match=rf"this looks like .*{PAGE}#{anchor}$"):
        fastdata.pack(tmp_path / "in", tmp_path / "x.lmdb", progress=False)


def test_names_alone_tell_a_known_dataset() -> None:
    names = ["CUB_200_2011/images.txt", "CUB_200_2011/image_class_labels.txt", "attributes.txt"]
    assert recipe_in(names, lambda name: b"").endswith("#cub-200-2011")
    assert recipe_in(names[1:], lambda name: b"") == ""
    assert recipe_in(["a.manifest"], lambda name: b'{"source-ref": 1}').endswith("#sagemaker")


OTHERS = {
    "class folders": {"cat/0.jpg": b"", "dog/1.jpg": b""},
    "COCO": {"annotations/a.json": b'{"images": [], "annotations": [], "categories": []}'},
    "VOC": {"Annotations/a.xml": b"<annotation><object/></annotation>", "JPEGImages/a.jpg": b""},
    "YOLO": {"images/train/a.jpg": b"", "labels/train/a.txt": b"0 0.5 0.5 0.1 0.1\n"},
    "quadrilaterals": {"images/a.jpg": b"", "gt/a.txt": b"1,2,3,4,5,6,7,8,text\n"},
    "a list": {"labels.csv": b"image,label\na.jpg,cat\n", "a.jpg": b""},
    "captions": {"a.json": b'[{"image": "a.jpg", "caption": "shapes"}]', "a.jpg": b""},
    "KITTI semantics": {"training/image_2/a.png": b"", "training/semantic/a.png": b""},
    "JSON lines": {"a.jsonl": b'{"image": "a.jpg", "label": 1}\n'},
    "two LMDBs of LSUN": {"bedroom_train_lmdb/data.mdb": b"", "bedroom_val_lmdb/data.mdb": b""},
    "an empty folder": {},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sources_have_no_recipe(tmp_path: Path, name: str) -> None:
    for file, content in OTHERS[name].items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    assert recipe_for(tmp_path) == ""
    assert all(recipe_for(tmp_path / file) == "" for file in OTHERS[name])


@pytest.mark.parametrize("location", [[], object(), "nothing.mat", 3])
def test_what_is_no_file_has_no_recipe(location: Any) -> None:
    assert recipe_for(location) == ""
