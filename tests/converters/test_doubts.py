"""Folders of folders that are no class folders are refused, unless the user insists."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run
from pack_helpers import pil_file

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import SourceError

IMAGE = pil_file(np.full((20, 30, 3), 7, np.uint8), "PNG")


def put(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = b"id,style\n17,red\n" if path.suffix == ".csv" else b"cat 0\ndog 1\n"
        path.write_bytes(IMAGE if path.suffix in (".png", ".jpg") else text)
    return root


CLASSES = ("cat/0.png", "cat/1.png", "dog/0.png")

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "images and masks": (("images/0.png", "masks/0.png"), "images, masks are named like images"),
    "images and labels": (("imgs/0.png", "gt/0.png"), "imgs, gt are named like images"),
    "camvid": (("train/0.png", "trainannot/0.png"), "train, trainannot are named like images"),
    "one folder": (("cat/0.png", "cat/1.png"), "only one folder, 'cat'"),
    "ilsvrc": (("train/n01/0.jpg", "val/0.jpg", "test/0.jpg"), "test, train, val are splits"),
    "a split as a class": ((*CLASSES, "dev/0.png"), "dev is a split by name"),
    "annotations in the classes": ((*CLASSES, "cat/0.xml"), r"cat/0.xml may describe"),
    "many of them": ((*CLASSES, *(f"cat/{k}.json" for k in range(7))), "7 files, the first cat/0"),
    "a table": ((*CLASSES, "styles.csv"), "styles.csv may describe"),
    "metadata in a split": (
        ("train/cat/0.png", "test/cat/0.png", "train/metadata.jsonl"),
        "train/metadata.jsonl may describe",
    ),
    "yaml": ((*CLASSES, "data.yaml"), "data.yaml may describe"),
    "images beside": ((*CLASSES, "0.png"), r"1 images \(0.png\) next to the folders"),
    "mixed within a class": ((*CLASSES, "cat/more/2.png"), "'cat' has images directly in it"),
    "domains": (
        ("Art/cup/0.png", "Clip/cup/0.png", "Art/pen/0.png", "Clip/pen/0.png"),
        "either may be",
    ),
    "masks in classes": (("a/images/0.png", "a/masks/0.png", "b/images/0.png"), "either may be"),
    "places": (("a/abbey/0.jpg", "a/attic/0.jpg", "b/bar/0.jpg"), "such as 'a/abbey', and either"),
    "mixed among classes": ((*CLASSES, "emu/more/2.png"), "at different depths"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_class_folder_is_refused(tmp_path: Path, name: str) -> None:
    names, reason = REFUSED[name]
    root = put(tmp_path / "in", *names)
    with pytest.raises(SourceError, match=rf"(?s){reason}.*\n  fastdata pack") as caught:
        fastdata.pack(root, tmp_path / "x.lmdb", num_workers=0)
    assert f"\n  {root.name}/" in str(caught.value)  # the tree as it was found
    assert not (tmp_path / "x.lmdb").exists()
    images = [name for name in names if name.endswith((".png", ".jpg")) and "/" in name]
    assert find_source(root, format="folder").num_samples == len(images)


@pytest.mark.parametrize(
    "beside",
    ["README.txt", "license.txt", "classes.txt", "Thumbs.db", ".hidden.json", "cat/readme.TXT"],
)
def test_prose_and_lists_of_the_classes_are_no_annotations(tmp_path: Path, beside: str) -> None:
    put(tmp_path, *CLASSES, beside)
    assert find_source(tmp_path).name == "folder"


def test_one_folder_in_each_class_is_no_doubt(tmp_path: Path) -> None:
    put(tmp_path, "cat/images/0.png", "dog/images/0.png")
    assert find_source(tmp_path).schema.classes == ("cat", "dog")


def test_a_class_without_images_is_one_where_that_is_said(tmp_path: Path) -> None:
    put(tmp_path, *CLASSES)
    (tmp_path / "emu").mkdir()
    with pytest.raises(SourceError, match=r"(?s)no image in emu.*empty_classes=true"):
        find_source(tmp_path)
    source = find_source(tmp_path, options={"empty_classes": "true"})
    assert source.schema.classes == ("cat", "dog", "emu")
    assert source.num_samples == 3


def test_what_was_understood_is_said_once_and_before_packing(tmp_path: Path) -> None:
    put(tmp_path / "in", *(f"class{k}/0.png" for k in range(7)), "class0/a.mp4")
    done = run("pack", str(tmp_path / "in"), str(tmp_path / "x.lmdb"))
    understood = (
        "read as folder: 7 samples, 7 classes (class0, class1, class2, class3, class4 ...), "
        "fields image, label"
    )
    left_out = "1 files without an image suffix left out: 1 .mp4"
    for line in (understood, left_out):
        assert (done.stderr + done.stdout).count(line) == done.stderr.count(line) == 1
    report = fastdata.pack(tmp_path / "in", tmp_path / "y.lmdb", num_workers=0)
    assert report.read_as == report.to_json()["read_as"] == understood
    quiet = run("pack", "--quiet", str(tmp_path / "in"), str(tmp_path / "z.lmdb"))
    assert "read as" not in quiet.stderr


def test_other_formats_are_explained_only_where_that_is_asked_for(tmp_path: Path) -> None:
    put(tmp_path / "in", "JPEGImages/0.jpg", "notes/a.txt", "b.json")
    source, dest = str(tmp_path / "in"), str(tmp_path / "x.lmdb")
    brief = run("pack", source, dest)
    assert brief.exit_code == 1
    assert "misses" not in brief.stderr
    full = run("pack", source, dest, "--explain")
    lines = full.stderr.splitlines()
    assert any(re.match(r"  \w+ \(.*\): (misses|has) ", line) for line in lines), lines


def test_a_pointer_of_git_lfs_is_called_so(tmp_path: Path) -> None:
    put(tmp_path / "in", *CLASSES)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    (tmp_path / "in/cat/0.png").write_bytes(pointer)
    report = fastdata.pack(tmp_path / "in", tmp_path / "x.lmdb", num_workers=0)
    (reject,) = report.rejects
    assert "Git LFS pointer" in reject.reason
    assert "git lfs pull" in reject.reason
