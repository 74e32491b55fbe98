"""Masks with loss, in every kind of source: two values are found again, the rest is refused."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, features
from test_masks import pack

import fastdata
from fastdata.codecs.lossy_masks import (
    THRESHOLD_NOTE,
    ClassNumbersLostError,
    thresholded,
    without_loss,
)
from fastdata.errors import FileCorruptError, ImageError, SourceError

COUNT, SIDE = 6, 96
Pairs = list[tuple[bytes, bytes]]


def shapes(seed: int, value: int = 255, ground: int = 0) -> np.ndarray[Any, Any]:
    """Return a mask with three ellipses of one value."""
    rng = np.random.default_rng(seed)
    image = Image.new("L", (SIDE, SIDE + 5), ground)
    for x, y, r in rng.integers(8, SIDE, (3, 3)).tolist():
        box = (x - r // 4, y - r // 5, x + r // 4, y + r // 5)
        ImageDraw.Draw(image).ellipse(box, fill=value)
    return np.asarray(image)


def classes(seed: int, most: int = 20) -> np.ndarray[Any, Any]:
    """Return a mask of class numbers, 0 to `most`, whose objects have a border of 255."""
    rng = np.random.default_rng(seed)
    image = Image.new("L", (SIDE, SIDE + 5))
    for number, (x, y, r) in enumerate(rng.integers(16, SIDE, (6, 3)).tolist()):
        box = (x - r // 2, y - r // 2, x + r // 2, y + r // 2)
        fill = 1 + (seed + 5 * number) % most
        ImageDraw.Draw(image).ellipse(box, fill=fill, outline=255, width=3)
    return np.asarray(image)


def coded(
    pixels: np.ndarray[Any, Any], kind: str = "JPEG", mode: str = "L", **options: Any
) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def pairs(make: Callable[[int], np.ndarray[Any, Any]], **options: Any) -> Pairs:
    """Return image files with masks as JPEG."""
    noise = np.random.default_rng(0).integers(0, 256, (COUNT, SIDE + 5, SIDE, 3), np.uint8)
    return [(coded(pixels), coded(make(k), **options)) for k, pixels in enumerate(noise)]


# -- every source that has masks as files ------------------------------------------------


def files(root: Path, rows: Pairs) -> list[dict[str, str]]:
    """Write the files, and return their names."""
    names = []
    for k, row in enumerate(rows):
        names.append({"image": f"{k}.jpg", "mask": f"{k}_mask.jpg"})
        for name, data in zip(names[-1].values(), row, strict=True):
            root.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    return names


def folders(root: Path, rows: Pairs) -> Path:
    for k, row in enumerate(rows):
        for folder, data in zip(("images", "masks"), row, strict=True):
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / f"{k}.jpg").write_bytes(data)
    return root


def table(root: Path, rows: Pairs, name: str) -> Path:
    names = files(root, rows)
    with open(root / name, "w", newline="") as file:
        writer = csv.DictWriter(file, ["image", "mask"])
        writer.writeheader()
        writer.writerows(names)
    return root / name


def lines(root: Path, rows: Pairs) -> Path:
    names = files(root, rows)
    (root / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in names))
    return root / "all.jsonl"


def hugging_face(root: Path, rows: Pairs) -> Path:
    names = files(root, rows)
    text = "".join(
        json.dumps({"file_name": row["image"], "mask_file_name": row["mask"]}) + "\n"
        for row in names
    )
    (root / "metadata.jsonl").write_text(text)
    return root


def webdataset(root: Path, rows: Pairs) -> Path:
    root.mkdir()
    with tarfile.open(root / "000000.tar", "w") as tar:
        for k, (image, mask) in enumerate(rows):
            for name, data in ((f"{k:06}.jpg", image), (f"{k:06}.mask.jpg", mask)):
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return root / "000000.tar"


def parquet(root: Path, rows: Pairs) -> Path:
    arrow, table = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    root.mkdir()
    image, mask = ([row[k] for row in rows] for k in (0, 1))
    table.write_table(arrow.table({"image": image, "mask": mask}), root / "a.parquet")
    return root / "a.parquet"


def rows_of_bytes(root: Path, rows: Pairs) -> Iterable[Any]:
    return [{"image": image, "mask": mask} for image, mask in rows]


def rows_of_paths(root: Path, rows: Pairs) -> Iterable[Any]:
    return [{key: str(root / name) for key, name in row.items()} for row in files(root, rows)]


def rows_of_pictures(root: Path, rows: Pairs) -> Iterable[Any]:
    return [
        {"image": Image.open(io.BytesIO(image)), "mask": Image.open(io.BytesIO(mask))}
        for image, mask in rows
    ]


SOURCES: dict[str, Callable[[Path, Pairs], Any]] = {
    "masks": folders,
    "csv": lambda root, rows: table(root, rows, "all.csv"),
    "jsonl": lines,
    "hf_folder": hugging_face,
    "webdataset": webdataset,
    "parquet": parquet,
    "bytes": rows_of_bytes,
    "paths": rows_of_paths,
    "pil": rows_of_pictures,
}


def options_of(source: str) -> dict[str, Any]:
    """Return the options that say what the masks are."""
    return {"format": "masks"} if source == "masks" else {"fields": {"mask": "mask"}}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_two_values_are_found_again(tmp_path: Path, source: str, mode: str) -> None:
    location = SOURCES[source](tmp_path / "in", pairs(shapes, mode=mode, quality=80))
    report = pack(location, tmp_path / "a.lmdb", **options_of(source))
    assert report.num_rejected == 0, report.rejects
    assert [note for note in report.notes if note.startswith(THRESHOLD_NOTE)] == [
        f"{THRESHOLD_NOTE}: {COUNT} images, the first {fastdata.open(tmp_path / 'a.lmdb').keys[0]}"
    ]
    for k, sample in enumerate(fastdata.open(tmp_path / "a.lmdb")):
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), shapes(k))


@pytest.mark.parametrize("source", SOURCES)
def test_class_numbers_are_refused(tmp_path: Path, source: str) -> None:
    location = SOURCES[source](tmp_path / "in", pairs(classes))
    with pytest.raises(SourceError, match=r"a mask as JPEG, with areas of .*Save the masks as PNG"):
        pack(location, tmp_path / "a.lmdb", **options_of(source))
    assert not (tmp_path / "a.lmdb").exists()


def test_workers_send_the_note_and_the_refusal(tmp_path: Path) -> None:
    report = pack(rows_of_bytes(tmp_path, pairs(shapes)), tmp_path / "a.lmdb", num_workers=2)
    assert f"{THRESHOLD_NOTE}: {COUNT} images, the first 00000000" in report.notes
    rows = [*pairs(shapes), *pairs(classes)]
    with pytest.raises(
        SourceError,
        match=r"00000006: a mask as JPEG, with areas of .*Then start again with overwrite=True",
    ):
        pack(rows_of_bytes(tmp_path, rows), tmp_path / "b.lmdb", num_workers=2)


def test_lossless_masks_stay_and_get_no_note(tmp_path: Path) -> None:
    rows = [(image, coded(classes(k), "PNG")) for k, (image, _) in enumerate(pairs(classes))]
    report = pack(rows_of_bytes(tmp_path, rows), tmp_path / "a.lmdb")
    assert THRESHOLD_NOTE not in str(report)
    for k, sample in enumerate(fastdata.open(tmp_path / "a.lmdb")):
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), classes(k))


def test_a_folder_that_is_not_recognised_names_the_format(tmp_path: Path) -> None:
    root = folders(tmp_path / "kvasir", pairs(shapes, mode="RGB"))
    with pytest.raises(
        SourceError, match=r"kvasir\.lmdb --format masks  # images with their masks"
    ):
        pack(root, tmp_path / "a.lmdb")


def test_a_threshold_comes_before_a_copy_of_the_file(tmp_path: Path) -> None:
    rows = rows_of_bytes(tmp_path, pairs(shapes))
    pack(rows, tmp_path / "a.lmdb", codec="keep")
    for k, sample in enumerate(fastdata.open(tmp_path / "a.lmdb")):
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), shapes(k))


def test_files_as_they_lie_are_read_alike(tmp_path: Path) -> None:
    data = fastdata.open(table(tmp_path / "a", pairs(shapes), "all.csv"), fields={"mask": "mask"})
    for k, sample in enumerate(data):
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), shapes(k))
    lost = fastdata.open(table(tmp_path / "b", pairs(classes), "all.csv"), fields={"mask": "mask"})
    with pytest.raises(FileCorruptError, match="a mask as JPEG, with areas of"):
        lost[0]


def test_a_doubtful_mask_is_rejected_alone(tmp_path: Path) -> None:
    """Grey from 0 to 255: no areas of class numbers, and not two values either."""
    slope = np.tile(np.linspace(0, 255, SIDE).astype(np.uint8), (SIDE + 5, 1))
    rows = pairs(shapes)
    rows[2] = rows[2][0], coded(slope)
    report = pack(rows_of_bytes(tmp_path, rows), tmp_path / "a.lmdb")
    (reject,) = report.rejects
    assert (reject.key, report.num_samples) == ("00000002", COUNT - 1)
    assert "not clearly one of two values" in reject.reason


def test_masks_of_a_folder_have_the_classes_of_their_table(tmp_path: Path) -> None:
    root = folders(tmp_path / "in", pairs(shapes, mode="RGB"))
    (root / "class_dict.csv").write_text("name,r,g,b\nground,0,0,0\npolyp,255,255,255\n")
    report = pack(root, tmp_path / "a.lmdb", format="masks")
    assert report.num_rejected == 0
    assert fastdata.open(tmp_path / "a.lmdb").classes == ["ground", "polyp"]


# -- one file ----------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [30, 50, 60, 75, 85, 95, 100])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_two_values_at_every_quality(quality: int, mode: str) -> None:
    for seed in range(4):
        file = without_loss(coded(shapes(seed), mode=mode, quality=quality))
        found = np.asarray(Image.open(io.BytesIO(file)))
        wrong = (found != shapes(seed)).mean()
        assert wrong < (0.01 if quality < 75 else 1e-9)
        assert set(np.unique(found)) == {0, 255}


@pytest.mark.parametrize("quality", [30, 50, 60, 70, 75, 90, 95, 100])
@pytest.mark.parametrize(
    "make",
    [
        lambda seed: classes(seed),
        lambda seed: classes(seed, most=2),
        lambda seed: shapes(seed, 1),
        lambda seed: shapes(seed, 11),
        lambda seed: shapes(seed, 128),
        lambda seed: shapes(seed, 255, ground=3),
        lambda seed: np.maximum(shapes(seed), shapes(seed + 9, 7)),
    ],
    ids=["voc", "2 and void", "0 and 1", "0 and 11", "0 and 128", "3 and 255", "7 and 255"],
)
def test_class_numbers_never_pass_as_two_values(make: Any, quality: int) -> None:
    for seed in range(4):
        with pytest.raises(ImageError, match="a mask as JPEG"):
            without_loss(coded(make(seed), quality=quality))


@pytest.mark.parametrize(("value", "passes"), [(0, True), (255, True), (1, False), (200, False)])
def test_a_mask_of_one_value(value: int, passes: bool) -> None:
    data = coded(np.full((40, 50), value, np.uint8), quality=75)
    if passes:
        assert (np.asarray(Image.open(io.BytesIO(without_loss(data)))) == value).all()
    else:
        with pytest.raises(ImageError, match="a mask as JPEG"):
            without_loss(data)


def test_black_is_refused_where_it_cannot_be_told_from_class_1() -> None:
    ones, zeros = (coded(np.full((40, 50), k, np.uint8), quality=50) for k in (1, 0))
    assert (np.asarray(Image.open(io.BytesIO(ones))) == 0).all()  # what the file has
    for data in (ones, zeros):
        with pytest.raises(ImageError, match="not clearly"):
            without_loss(data)


def test_the_threshold_is_128() -> None:
    pixels = np.zeros((64, 64), np.uint8)
    pixels[:, 20:] = 255
    pixels[::2, 20], pixels[1::2, 20] = 120, 136
    found = np.asarray(Image.open(io.BytesIO(without_loss(coded(pixels, quality=100)))))
    assert np.array_equal(found[:, 20], np.tile([0, 255], 32))


def test_colours_as_jpeg_are_refused() -> None:
    pixels = np.zeros((40, 50, 3), np.uint8)
    pixels[8:24, 8:24] = (200, 30, 30)
    with pytest.raises(ImageError, match="JPEG with colours"):
        without_loss(coded(pixels, mode="RGB", quality=95))


def test_a_turned_mask_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    found = Image.open(io.BytesIO(without_loss(coded(shapes(1), quality=90, exif=exif))))
    np.testing.assert_array_equal(np.asarray(found), np.rot90(shapes(1), -1))


LOSSY = {
    "lossy WebP": ("WEBP", {"mode": "RGB", "quality": 90}),
    "lossy WebP ": ("WEBP", {"mode": "RGBA", "quality": 90}),
    "AVIF": ("AVIF", {"mode": "RGB"}),
    "JPEG 2000": ("JPEG2000", {"irreversible": True}),
    "JPEG in TIFF": ("TIFF", {"compression": "jpeg"}),
}


@pytest.mark.parametrize("name", LOSSY)
def test_other_files_with_loss_are_refused(tmp_path: Path, name: str) -> None:
    kind, options = LOSSY[name]
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("Pillow has no AVIF")
    data = coded(classes(0), kind, **options)
    with pytest.raises(ClassNumbersLostError, match=f"a mask as {name.strip()}, which changes"):
        without_loss(data)
    rows = [(coded(classes(k)), data) for k in range(2)]
    with pytest.raises(SourceError, match=f"a mask as {name.strip()}"):
        pack(rows_of_bytes(tmp_path, rows), tmp_path / "a.lmdb", fields={"mask": "mask"})
    if kind in ("AVIF", "JPEG2000", "TIFF"):
        with pytest.raises(ClassNumbersLostError):
            thresholded(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("brand", [b"avif", b"mif1", b"msf1"])
def test_avif_is_told_by_all_its_brands(brand: bytes) -> None:
    if not features.check("avif"):
        pytest.skip("Pillow has no AVIF")
    data = coded(classes(0), "AVIF", "RGB").replace(b"ftypavif", b"ftyp" + brand)
    with pytest.raises(ClassNumbersLostError, match="a mask as AVIF"):
        without_loss(data)


def test_lossy_webp_in_folders_is_refused(tmp_path: Path) -> None:
    for k in range(3):
        for folder, pixels, suffix in (
            ("images", classes(k), "png"),
            ("masks", classes(k), "webp"),
        ):
            (tmp_path / "in" / folder).mkdir(parents=True, exist_ok=True)
            data = coded(pixels, {"png": "PNG", "webp": "WEBP"}[suffix], "RGB", quality=90)
            (tmp_path / "in" / folder / f"{k}.{suffix}").write_bytes(data)
    with pytest.raises(SourceError, match="a mask as lossy WebP, which changes class numbers"):
        pack(tmp_path / "in", tmp_path / "a.lmdb", format="masks")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("PNG", {}),
        ("BMP", {}),
        ("GIF", {}),
        ("PPM", {}),
        ("TGA", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "tiff_adobe_deflate"}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"lossless": True, "mode": "RGBA"}),
    ],
)
def test_files_without_loss_are_not_touched(kind: str, options: dict[str, Any]) -> None:
    data = coded(classes(0), kind, **options)
    assert without_loss(data) is data
    assert thresholded(Image.open(io.BytesIO(data))) is None


def test_animations_are_looked_into(tmp_path: Path) -> None:
    frames = [Image.fromarray(classes(k)).convert("RGB") for k in range(2)]
    for lossless in (True, False):
        file = io.BytesIO()
        frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=lossless)
        if lossless:
            assert without_loss(file.getvalue()) == file.getvalue()
        else:
            with pytest.raises(ClassNumbersLostError):
                without_loss(file.getvalue())
