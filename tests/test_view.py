"""The page about a dataset: what it counts, draws and shows, also in a real browser."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, browser_or_skip
from click.testing import CliRunner
from pack_helpers import image_folder
from PIL import Image
from samples import photo

import fastdata
from fastdata.cli import main
from fastdata.errors import DatasetNotFoundError, DestinationExistsError, OptionError
from fastdata.schema import ArrayField
from fastdata.viewing.page import histogram

XHTML = "{http://www.w3.org/1999/xhtml}"
EVIL = "<script>document.title='x'</script> & \"quoted\" \x07"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("view")


@pytest.fixture(scope="module")
def labelled(folder: Path) -> Path:
    """15 images of three classes, one of which has fewer; and a list of rejects."""
    images = image_folder(folder / "images", 15, classes=("ant", "bee", "cat"))
    for file in sorted((images / "cat").iterdir())[2:]:
        file.unlink()
    (images / "ant" / "broken.jpg").write_bytes(b"no image")
    path = folder / "labelled.lmdb"
    fastdata.pack(images, path, num_workers=0, progress=False)
    return path


@pytest.fixture(scope="module")
def annotated(folder: Path) -> Path:
    """Eight images with masks, boxes, numbers and text that a page must not believe."""
    rows = [
        {
            "image": photo(60, 90, seed=k),
            "mask": np.pad(np.full((20, 30), k + 1, np.uint8), ((20, 20), (30, 30))),
            "boxes": np.array([[9, 6, 45, 30]] * (k % 3), np.float32).reshape(-1, 4),
            "caption": EVIL,
            "score": k / 7,
        }
        for k in range(8)
    ]
    path = folder / "annotated.h5"
    fastdata.pack(rows, path, fields={"boxes": "boxes"}, size=60, num_workers=0, progress=False)
    return path


def read(page: Path) -> ElementTree.Element:
    """Parse a page as XML; its entities are those that XML has."""
    text = page.read_text(encoding="utf-8")
    return ElementTree.fromstring(re.sub(r"<!DOCTYPE[^>]*>", "", text, count=1))


def texts(root: ElementTree.Element, section: str) -> str:
    (found,) = (e for e in root.iter("section") if e.get("aria-labelledby") == section)
    return " ".join("".join(found.itertext()).split())


def pictures(root: ElementTree.Element) -> list[np.ndarray[Any, Any]]:
    """Return the pictures of a page as PIL reads them."""
    found = []
    for image in root.iter("img"):
        kind, _, data = str(image.get("src")).partition(",")
        assert kind == "data:image/jpeg;base64"
        found.append(np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")))
    return found


def test_classes_samples_and_rejects_are_those_of_the_dataset(
    labelled: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    shown = fastdata.view(labelled, page, per_class=4)
    assert shown == {
        "path": str(page),
        "page_bytes": page.stat().st_size,
        "num_samples": 12,
        "num_shown": 10,
        "num_classes": 3,
        "num_rejected": 1,
    }
    root = read(page)
    counts = Counter(sample.label for sample in fastdata.open(labelled))
    for number, name in enumerate(("ant", "bee", "cat")):
        assert f"{name} {counts[number]}" in texts(root, "classes")
    assert "10 of 12 samples, drawn at random (seed 0) from 3 of 3 classes" in texts(root, "sheet")
    assert "Packing rejected 1 sample." in texts(root, "rejects")
    assert "ant/broken.jpg" in texts(root, "rejects")
    assert "image" in texts(root, "schema")
    assert re.search(r"RGB; \d+ x \d+.*, height x width", texts(root, "schema"))
    assert f'fastdata.loader("{labelled}"' in texts(root, "load")
    assert fastdata.open(labelled).digest in "".join(root.itertext())


def test_the_classes_of_boxes_are_counted_by_samples(tmp_path: Path) -> None:
    rows = [
        {"image": photo(20, 30, seed=k), "labels": np.array(labels, np.int16)}
        for k, labels in enumerate(([0, 0, 1], [], [1], [1, -1]))
    ]
    names = ArrayField("int16", (None,), classes=("ant", "bee", "cat"))
    path = tmp_path / "boxes.lmdb"
    fastdata.pack(rows, path, fields={"labels": names}, num_workers=0, progress=False)
    shown = fastdata.view(path, tmp_path / "page.html")
    assert (shown["num_shown"], shown["num_classes"]) == (4, 4)
    root = read(tmp_path / "page.html")
    for line in ("ant 1", "bee 3", "cat 0", "(no class) 2"):
        assert line in texts(root, "classes")
    assert "int16, any, 3 classes" in texts(root, "schema")


def test_pictures_are_the_samples_made_small(labelled: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    fastdata.view(labelled, page, per_class=100, thumbnail=30)
    dataset = fastdata.open(labelled)
    root = read(page)
    found = {
        str(image.get("alt")): picture
        for image, picture in zip(root.iter("img"), pictures(root), strict=True)
    }
    assert len(found) == len(dataset)
    for index in range(len(dataset)):
        whole = dataset[index].image.permute(1, 2, 0).numpy()
        picture = found[f"sample {index}"]
        assert max(picture.shape[:2]) == 30
        small = Image.fromarray(whole).resize(picture.shape[1::-1], Image.Resampling.BOX)
        difference = np.abs(np.asarray(small, np.float64) - picture)
        assert difference.mean() < 9  # another sample would be 30 or more away


def test_masks_lie_over_their_image_and_boxes_where_they_belong(
    annotated: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    fastdata.view(annotated, page, thumbnail=90)
    dataset = fastdata.open(annotated)
    root = read(page)
    for index, picture in enumerate(pictures(root)):
        image = dataset[index].image.permute(1, 2, 0).numpy().astype(np.float64)
        outside = dataset[index].mask[0].numpy() == 0
        assert np.abs(picture - image)[outside].mean() < 8
        assert np.abs(picture - image)[~outside].mean() > 15
    drawn = [svg for svg in root.iter("svg") if svg.get("aria-hidden") == "true"]
    assert [len(list(svg)) for svg in drawn] == [1, 2, 1, 2, 1]  # k % 3, without the empty
    rect = drawn[0][0]
    assert (rect.get("x"), rect.get("width")) == ("10.00%", "40.00%")
    assert (rect.get("y"), rect.get("height")) == ("10.00%", "40.00%")


def test_what_the_data_says_stays_text(annotated: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    fastdata.view(annotated, page)
    root = read(page)
    assert not list(root.iter("script"))
    assert "<script>document.title='x'</script> & \"quoted\" \\x07" in texts(root, "sheet")
    assert "http" not in page.read_text().replace("http-equiv", "")


def test_a_damaged_image_is_shown_as_such(labelled: Path, tmp_path: Path) -> None:
    path = tmp_path / "damaged.lmdb"
    data = bytearray(labelled.read_bytes())
    shard = next(iter(fastdata.open(labelled).shards))
    data[data.index(bytes(shard.blob("image", 4))) + 30] ^= 0xFF
    path.write_bytes(data)
    fastdata.view(path, tmp_path / "page.html", per_class=100)
    root = read(tmp_path / "page.html")
    assert len(pictures(root)) == 11
    assert "checksum" in texts(root, "sheet")


def test_many_classes_are_sampled(tmp_path: Path) -> None:
    rows = [{"image": np.full((8, 8, 3), k, np.uint8), "label": k} for k in range(40)]
    fastdata.pack(rows, tmp_path / "a.lmdb", num_workers=0, progress=False)
    shown = fastdata.view(tmp_path / "a.lmdb", tmp_path / "a.html", per_class=2, max_samples=10)
    assert (shown["num_shown"], shown["num_classes"]) == (10, 40)
    again = fastdata.view(tmp_path / "a.lmdb", tmp_path / "b.html", per_class=2, max_samples=10)
    assert (tmp_path / "a.html").read_text() == (tmp_path / "b.html").read_text()
    fastdata.view(tmp_path / "a.lmdb", tmp_path / "b.html", per_class=2, max_samples=10, seed=1)
    assert (tmp_path / "a.html").read_text() != (tmp_path / "b.html").read_text()
    assert again == {**shown, "path": again["path"]}


def test_bars_are_counts() -> None:
    values = np.array([1, 1, 1, 1, 2, 2, 3, 9])
    found = histogram("x", values, lambda value: f"{value:g}")
    assert found is not None
    assert (found.low, found.middle, found.high) == ("1", "1", "9")
    numbers = [int(text.rpartition(": ")[2]) for _, text in found.bars]
    assert sum(numbers) == len(values)
    assert [top for top, _ in found.bars] == [number / max(numbers) for number in numbers]
    assert histogram("x", np.array([]), str) is None
    same = histogram("x", np.array([5, 5]), lambda value: f"{value:g}")
    assert same is not None
    assert same.bars == [(1.0, "5: 2")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_class": 0}, "per_class=0 is not an integer from 1"),
        ({"max_samples": 10**9}, "max_samples=1000000000 is not an integer from 1 to 10,000"),
        ({"thumbnail": 5000}, "thumbnail=5000"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    labelled: Path, tmp_path: Path, options: dict[str, int], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.view(labelled, tmp_path / "page.html", **options)
    assert os.listdir(tmp_path) == []


def test_a_page_that_cannot_be_is_refused_first(labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is a folder"):
        fastdata.view(labelled, tmp_path)
    with pytest.raises(OptionError, match=r"nowhere does not exist: make it .mkdir -p"):
        fastdata.view(labelled, tmp_path / "nowhere" / "page.html")
    with pytest.raises(DatasetNotFoundError, match="no such file"):
        fastdata.view(tmp_path / "nothing.lmdb", tmp_path / "page.html")


def test_the_command_writes_the_page(labelled: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["view", str(labelled), "--html", str(page)])
    assert done.exit_code == 0
    assert "12 of 12 samples" in done.output
    words = ["view", str(labelled), "--html", str(page), "--per-class", "1", "--json"]
    assert json.loads(CliRunner().invoke(main, words).stdout)["num_shown"] == 3


@pytest.mark.parametrize(
    ("given", "page"),
    [
        ("train.lmdb", "train.html"),
        ("below/train.lmdb", "train.html"),
        ("below/../shards", "shards.html"),
        ("v1.2/", "v1.2.html"),
        ("train*.lmdb", "train.html"),
    ],
)
def test_without_a_name_the_page_has_that_of_the_dataset(
    labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    for name in ("train.lmdb", "below/train.lmdb"):
        shutil.copy(labelled, name)
    for name in ("shards", "v1.2"):
        fastdata.subset(labelled, name, indices=range(12), shard_size=6, progress=False)
    before = set(os.listdir())
    result = CliRunner().invoke(main, ["view", given])
    assert result.exit_code == 0, result.output
    assert set(os.listdir()) - before == {page}
    assert result.output == (
        f"{page}: a page with 12 of 12 samples, {os.stat(page).st_size / 1e3:,.1f} kB. "
        "Open it in a browser.\n"
    )


def test_the_page_begins_with_the_pictures(labelled: Path, tmp_path: Path) -> None:
    fastdata.view(labelled, tmp_path / "page.html")
    root = read(tmp_path / "page.html")
    sections = [element.get("aria-labelledby") for element in root.iter("section")]
    assert sections == ["sheet", "figures", "load", "schema", "classes", "sizes", "rejects"]
    linked = {str(a.get("href")).removeprefix("#") for a in root.iter("a")}
    assert linked == {"figures", "load"}
    assert linked <= {element.get("id") for element in root.iter()}


@pytest.mark.parametrize("content", ["<!DOCTYPE html><html><p>mine</p></html>", "my notes", ""])
def test_only_a_page_of_fastdata_is_replaced(
    labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(labelled, "a.lmdb")
    mine = tmp_path / "a.html"
    mine.write_text(content)
    result = CliRunner().invoke(main, ["view", "a.lmdb"])
    assert result.exit_code == 4
    assert "a.html is not a page of fastdata, so it is not replaced" in result.output
    assert mine.read_text() == content
    with pytest.raises(DestinationExistsError, match="is not a page of fastdata"):
        fastdata.view("a.lmdb", "a.lmdb")
    assert fastdata.open("a.lmdb").digest == fastdata.open(labelled).digest
    mine.unlink()
    for _ in range(2):
        fastdata.view("a.lmdb", mine)


# -- in a browser ---------------------------------------------------------------------


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return browser_or_skip(tmp_path)


def test_in_a_browser_all_pictures_appear_and_nothing_sticks_out(
    browser: Browser, labelled: Path, annotated: Path, tmp_path: Path
) -> None:
    long = tmp_path / f"{'long' * 40}.lmdb"
    shutil.copy(labelled, long)
    pages = []
    for path in (long, annotated):
        fastdata.view(path, tmp_path / "page.html")
        content = (tmp_path / "page.html").read_text(encoding="utf-8")
        pages += [(content, 1280), (content, 400)]
    for number, found in enumerate(browser.measure(*pages)):
        assert found["scroll"] <= found["inner"]
        assert found["sticking_out"] == []
        assert found["clipped"] == []
        assert len(found["images"]) == (12 if number < 2 else 8)
        assert all(natural > 0 and shown > 0 for natural, _, shown in found["images"])
        assert len(found["marks"]) == (0 if number < 2 else 7)
        for left, share in found["marks"]:
            assert left == pytest.approx(0.1, abs=0.02)
            assert share == pytest.approx(0.4, abs=0.02)
        for column in found["columns"]:
            assert max(column) == pytest.approx(96, abs=2)


def test_a_browser_has_nothing_to_say_and_makes_a_picture(
    browser: Browser, annotated: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    fastdata.view(annotated, page)
    picture = tmp_path / "page.png"
    _, console = browser(page, f"--screenshot={picture}")
    assert console == []
    seen = np.asarray(Image.open(picture).convert("RGB"))
    # The yellow of boxes is nowhere but on the sheet.
    assert (np.abs(seen.astype(int) - [255, 221, 0]).sum(axis=2) < 40).sum() > 100
