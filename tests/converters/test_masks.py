"""What is special to folders of images and masks: what belongs together, and what pixels mean."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_masks import COLOURS, mask_of, save, write_camvid, write_cityscapes, write_masks
from cases import Picture, make_pictures
from PIL import Image

import fastdata
from fastdata.converters.finding import find_source, format_of
from fastdata.converters.reading.annotations.masks import read_table
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def pack(location: Any, path: Path, **options: Any) -> Any:
    chosen = {"codec": "png", "resize": "none", "num_workers": 0, "progress": False}
    return fastdata.pack(location, path, **{**chosen, **options})


def packed(location: Any, path: Path, **source_options: Any) -> Any:
    report = pack(location, path, source_options=source_options)
    assert report.num_rejected == 0, report.rejects
    return fastdata.open(path)


def check(data: Any, expected: list[Any]) -> None:
    assert len(data) == len(expected)
    for sample, mask in zip(data, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), mask)


def lay_out(root: Path, pictures: list[Picture], image: str, mask: str) -> None:
    """Write images and masks under these names; {} is the picture's, {s} the split's."""
    for k, p in enumerate(pictures):
        split = ("train", "val")[2 * k >= len(pictures)]
        path = root / image.format(p.name, s=split)
        if path.suffix == ".jpg":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(p.data)
        else:
            save(path, p.pixels)
        save(root / mask.format(p.name, s=split), mask_of(p))


@pytest.mark.parametrize(
    ("image", "mask", "splits"),
    [
        ("images/{}.jpg", "masks/{}.png", None),
        ("JPEGImages/{}.jpg", "SegmentationClass/{}.png", None),
        ("images/{}.jpg", "annotations/trimaps/{}.png", None),
        ("images/ADE/{s}/{}.jpg", "labels/ADE/{s}/{}.bmp", None),
        ("images/{s}/{}.jpg", "annotations/{s}/{}.png", ("train", "val")),
        ("{s}/images/{}.jpg", "{s}/gt/{}.png", ("train", "val")),
        ("{s}/{}.jpg", "{s}annot/{}.png", ("train", "val")),
        ("{s}_images/{}.jpg", "{s}_masks/{}.tif", ("train", "val")),
        ("{s}/{}.jpg", "{s}/{}_mask.png", ("train", "val")),
        ("{}_sat.jpg", "{}_mask.png", None),
        ("img_dir/{s}/{}.jpg", "ann_dir/{s}/{}.png", ("train", "val")),  # mmseg
        ("{s}/Rural/images_png/{}.png", "{s}/Rural/masks_png/{}.png", ("train", "val")),  # LoveDA
        ("PNGImages/{}.png", "PedMasks/{}_mask.png", None),  # Penn-Fudan
        ("Original/{}.tif", "Ground Truth/{}.tif", None),  # CVC-ClinicDB
        ("DUTS-TR-Image/{}.jpg", "DUTS-TR-Mask/{}.png", None),
        ("{s}-Image/{}.jpg", "{s}-Mask/{}.png", ("train", "val")),
        ("Imgs/{}.jpg", "Imgs/{}.png", None),  # MSRA10K
        ("{}.jpg", "{}.png", None),
    ],
)
def test_layouts(
    tmp_path: Path, pictures: list[Picture], image: str, mask: str, splits: Any
) -> None:
    root = tmp_path / "root"
    lay_out(root, pictures, image, mask)
    assert find_source(root).name == "masks"
    data = packed(root, tmp_path / "x.lmdb")
    check(data, [mask_of(p) for p in pictures])
    assert data.schema["mask"] == ImageField(1, mask=True)
    assert data.schema.get("split") == (ScalarField(classes=splits) if splits else None)
    if splits:
        assert [s.split for s in data] == [0, 0, 0, 1, 1, 1]
        only = packed(root, tmp_path / "val.lmdb", split="val")
        check(only, [mask_of(p) for p in pictures[3:]])


@pytest.mark.parametrize("ending", ["annot", "_labels"])
def test_splits_are_in_the_usual_order(
    tmp_path: Path, pictures: list[Picture], ending: str
) -> None:
    root = tmp_path / "root"
    lay_out(root, pictures, "{s}/{}.jpg", "{s}" + ending + "/{}.png")
    for name in ("", ending):
        (root / f"val{name}").rename(root / f"test{name}")
    data = packed(root, tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "test"))
    check(data, [mask_of(p) for p in pictures])


def rectangle(picture: Picture, top: int = 3) -> np.ndarray[Any, Any]:
    """Return a mask of one rectangle, as masks by hand are: 0 and 255."""
    mask = np.zeros(picture.pixels.shape[:2], np.uint8)
    mask[top : top + 9, 5:21] = 255
    return mask


def round_view(picture: Picture) -> np.ndarray[Any, Any]:
    mask = np.full(picture.pixels.shape[:2], 255, np.uint8)
    mask[:2] = 0
    return mask


@pytest.mark.parametrize(
    ("image", "by_hand", "others"),
    [
        (
            "training/images/{}_training.tif",
            "training/1st_manual/{}_manual1.gif",
            ["training/mask/{}_training_mask.gif", "training/2nd_manual/{}_manual2.gif"],
        ),
        ("images/{}_dr.png", "manual1/{}_dr.tif", ["mask/{}_dr_mask.tif"]),
        ("{}.jpg", "{}_1stHO.png", ["{}_2ndHO.png"]),
        ("training/image_2/{}.png", "training/semantic/{}.png", ["training/semantic_rgb/{}.png"]),
    ],
    ids=["DRIVE", "HRF", "CHASE_DB1", "KITTI"],
)
def test_masks_by_hand_are_taken_and_not_what_lies_beside(
    tmp_path: Path, pictures: list[Picture], image: str, by_hand: str, others: list[str]
) -> None:
    root = tmp_path / "root"
    lay_out(root, pictures, image, by_hand)
    for p in pictures:
        save(root / by_hand.format(p.name), rectangle(p))
        for other in others:
            save(root / other.format(p.name), round_view(p))
    if image.startswith("training"):  # whose masks are withheld; the view is not
        lay_out(root, pictures, "test/images/{}_test.png", "test/mask/{}_test_mask.png")
        if "image_2" in image:
            (root / "test/images").rename(root / "test/image_2")
            (root / "test/mask").rename(root / "test/oxts")
    assert find_source(root).name == "masks"
    report = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    for sample, p in zip(fastdata.open(tmp_path / "x.lmdb"), pictures, strict=True):
        # PIL gives a GIF of two colours a palette of these.
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze() > 0, rectangle(p) > 0)
    assert any("left out" in note for note in report.notes), report.notes


def test_folders_of_images_with_their_masks_are_classes(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root, names = tmp_path / "root", ("benign", "malignant", "normal")
    expected = []
    for p in pictures:
        start = root / names[p.label] / f"{names[p.label]} ({int(p.name)})"
        save(Path(f"{start}.png"), p.pixels)
        save(Path(f"{start}_mask.png"), rectangle(p))
        expected.append(rectangle(p))
        if p.label == 1:  # of two objects
            save(Path(f"{start}_mask_1.png"), rectangle(p, 20))
            expected[-1] = np.maximum(rectangle(p), rectangle(p, 20))
    data = packed(root, tmp_path / "x.lmdb")
    assert data.schema["label"] == ScalarField(classes=names)
    order = sorted(range(len(pictures)), key=lambda k: (pictures[k].label, k))
    check(data, [expected[k] for k in order])
    assert [s.label for s in data] == [pictures[k].label for k in order]
    for name in names:  # patients are no classes
        (root / name).rename(root / f"patient{name[0]}1")
    assert "label" not in packed(root, tmp_path / "y.lmdb").schema


def test_a_colour_has_one_number_in_each_split(tmp_path: Path, pictures: list[Picture]) -> None:
    root = tmp_path / "root"
    red, green, blue = np.eye(3, dtype=np.uint8) * 200
    for k, p in enumerate(pictures):
        split, colours = ("train", (green, red)) if k < 3 else ("val", (blue, red))
        save(root / f"images/{split}/{p.name}.png", p.pixels)
        mask = np.broadcast_to(colours[0], (*p.pixels.shape[:2], 3)).copy()
        mask[3:12, 5:21] = colours[1]
        save(root / f"masks/{split}/{p.name}.png", mask)
    for split, ground in (("train", 1), ("val", 0)):
        data = packed(root, tmp_path / f"{split}.lmdb", split=split)
        assert data.classes == ["#0000c8", "#00c800", "#c80000"]
        check(data, [np.where(rectangle(p) > 0, 2, ground) for p in pictures[:3]])
        # The same in the folder of one split.
        for folder in ("images", "masks"):
            (root / split).mkdir(exist_ok=True)
            shutil.copytree(root / folder / split, root / split / folder)
    for split, ground in (("train", 1), ("val", 0)):
        data = packed(root / split, tmp_path / f"{split}-alone.lmdb")
        assert data.classes == ["#0000c8", "#00c800", "#c80000"]
        check(data, [np.where(rectangle(p) > 0, 2, ground) for p in pictures[:3]])


def test_tables_of_splits_are_compared(tmp_path: Path, pictures: list[Picture]) -> None:
    lay_out(tmp_path / "root", pictures, "{s}/{}.jpg", "{s}/{}_mask.png")
    for split, names in (("train", "abcd"), ("val", "abcd")):
        lines = [f"{k}, {name}\n" for k, name in enumerate(names)]
        (tmp_path / f"root/{split}/_classes.csv").write_text(
            "Pixel Value, Class\n" + "".join(lines)
        )
    assert packed(tmp_path / "root", tmp_path / "x.lmdb").classes == ["a", "b", "c", "d"]
    path = tmp_path / "root/val/_classes.csv"
    path.write_text(path.read_text().replace("2, c", "2, x"))
    for options in ({}, {"split": "train"}):
        with pytest.raises(SourceError, match=r"val/_classes.csv: its classes are not those of"):
            pack(tmp_path / "root", tmp_path / "y.lmdb", source_options=options)
    path.write_text(path.read_text().replace("2, x", "2, a"))
    (tmp_path / "root/train/_classes.csv").write_text(path.read_text())
    with pytest.raises(SourceError, match=r"classes 0 and 2 are both called 'a'"):
        pack(tmp_path / "root", tmp_path / "y.lmdb")


def test_accents_of_images_and_masks_may_differ_in_form(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = tmp_path / "root"
    lay_out(root, pictures, "images/be\u0301{}.jpg", "masks/b\u00e9{}.png")
    check(packed(root, tmp_path / "x.lmdb"), [mask_of(p) for p in pictures])


def test_the_class_of_a_colour_is_that_of_the_table(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = write_camvid(tmp_path / "camvid", pictures)
    data = packed(root, tmp_path / "x.lmdb")
    check(data, [mask_of(p) for p in pictures])
    assert data.schema["mask"].classes == ("Void", "Road", "Traffic Light", "Car")
    assert data.classes == ["Void", "Road", "Traffic Light", "Car"]
    assert "4 classes" in repr(data)
    strange = COLOURS[mask_of(pictures[0])]
    strange[:2, :3] = (1, 2, 3)
    save(root / f"train_labels/{pictures[0].name}_L.png", strange)
    report = pack(root, tmp_path / "y.lmdb")
    (reject,) = report.rejects
    assert "has the colour 1, 2, 3 (6 pixels), which is that of no class" in reject.reason


def test_colours_without_a_table_are_numbered(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_camvid(tmp_path / "camvid", pictures)
    (root / "class_dict.csv").unlink()
    data = packed(root, tmp_path / "x.lmdb")
    order = np.argsort([r << 16 | g << 8 | b for r, g, b in COLOURS.tolist()])
    number = np.argsort(order).astype(np.uint8)
    check(data, [number[mask_of(p)] for p in pictures])
    assert data.classes == ["#000000", "#0000c0", "#0ac81e", "#804080"]


def test_grey_values_saved_as_colours_are_numbers(tmp_path: Path, pictures: list[Picture]) -> None:
    for p in pictures:
        save(tmp_path / f"root/images/{p.name}.png", p.pixels)
        save(tmp_path / f"root/masks/{p.name}.png", np.repeat(mask_of(p)[:, :, None] * 5, 3, 2))
    data = packed(tmp_path / "root", tmp_path / "x.lmdb")
    check(data, [mask_of(p) * 5 for p in pictures])
    assert data.schema["mask"].classes is None


@pytest.mark.parametrize("orientation", [1, 3])
@pytest.mark.parametrize("table", [False, True])
def test_palettes(tmp_path: Path, pictures: list[Picture], table: bool, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    root = write_masks(tmp_path / "root", pictures)
    turned = COLOURS[[0, 3, 1, 2]]  # the palette, in another order than the table
    for p in pictures:
        mask = mask_of(p)
        mask[0, 0] = 255
        image = Image.fromarray(mask, "L")
        image.putpalette(turned.tobytes() + bytes(750) + b"\1\2\3")
        image.save(root / f"masks/{p.name}_mask.png", exif=exif)
    expected = []
    for p in pictures:
        mask = np.array([0, 3, 1, 2], np.uint8)[mask_of(p)] if table else mask_of(p)
        mask[0, 0] = 255
        expected.append(mask if orientation == 1 else mask[::-1, ::-1])
    if table:
        lines = [f"class {k}:{r},{g},{b}::\n" for k, (r, g, b) in enumerate(COLOURS.tolist())]
        (root / "labelmap.txt").write_text("# label:color_rgb:parts:actions\n" + "".join(lines))
    check(packed(root, tmp_path / "x.lmdb"), expected)
    notes = find_source(root).notes
    wanted = "labelmap.txt, by colours" if table else "are the indices, not the colours"
    assert any(wanted in note for note in notes), notes


def test_palettes_that_differ_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    root, swapped = write_masks(tmp_path / "root", pictures), np.array([1, 0, 2, 3], np.uint8)
    for k, p in enumerate(pictures):
        image = Image.fromarray(swapped[mask_of(p)] if k else mask_of(p), "L")
        image.putpalette((COLOURS[swapped] if k else COLOURS).tobytes())
        image.save(root / f"masks/{p.name}_mask.png")
    with pytest.raises(SourceError, match=r"palettes of different colours.*--option classes=TABLE"):
        pack(root, tmp_path / "x.lmdb")
    lines = [f"class {k},{r},{g},{b}\n" for k, (r, g, b) in enumerate(COLOURS.tolist())]
    (root / "class_dict.csv").write_text("name,r,g,b\n" + "".join(lines))
    check(packed(root, tmp_path / "x.lmdb"), [mask_of(p) for p in pictures])


def test_cityscapes_has_names_and_kinds_of_masks(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_cityscapes(tmp_path / "city", pictures)
    data = packed(root, tmp_path / "x.lmdb")
    check(data, [mask_of(p) + 7 for p in pictures])
    classes = data.schema["mask"].classes
    assert (len(classes), classes[7], classes[26], classes[33]) == (34, "road", "car", "bicycle")
    assert data.keys[0] == "leftImg8bit/train/bonn/bonn_000000_leftImg8bit.jpg"
    trained = packed(root, tmp_path / "y.lmdb", ending="_gtFine_labelTrainIds")
    check(trained, [mask_of(p) for p in pictures])
    assert len(trained.schema["mask"].classes) == 19


def test_numbers_of_instances_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    for p in pictures:
        save(tmp_path / f"root/images/{p.name}.png", p.pixels)
        save(tmp_path / f"root/masks/{p.name}.png", mask_of(p).astype(np.uint16) * 1000)
    with pytest.raises(SourceError, match="do not fit 8 bits"):
        pack(tmp_path / "root", tmp_path / "z.lmdb")


def test_what_has_no_partner_is_said(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_masks(tmp_path / "root", pictures)
    (root / f"masks/{pictures[0].name}_mask.png").unlink()
    (root / f"imgs/{pictures[1].name}.jpg").unlink()
    (root / "masks/.DS_Store").write_bytes(b"")
    report = pack(root, tmp_path / "x.lmdb")
    assert [(r.key, r.reason) for r in report.rejects] == [
        ("imgs/000000.jpg", "it has no mask in masks")
    ]
    assert any("1 other pictures in masks left out" in note for note in report.notes)
    check(fastdata.open(tmp_path / "x.lmdb"), [mask_of(p) for p in pictures[2:]])


def test_names_of_classes_hold_numbers_to_them(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_masks(tmp_path / "root", pictures)
    (root / "codes.txt").write_text("sky\nroad\ncar\n")
    report = pack(root, tmp_path / "x.lmdb")
    assert report.num_samples == 0 + sum(mask_of(p).max() < 3 for p in pictures)
    assert {r.reason.partition(": ")[2] for r in report.rejects} == {
        "has the class 3, and there are 3 names"
    }


def test_masks_with_loss_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    for p in pictures:
        save(tmp_path / f"root/images/{p.name}.png", p.pixels)
        save(tmp_path / f"root/masks/{p.name}.jpg", mask_of(p))
    with pytest.raises(SourceError, match=r"000000\.jpg: a mask as JPEG, with areas of"):
        find_source(tmp_path / "root", format="masks")


def test_folders_can_be_named(tmp_path: Path, pictures: list[Picture]) -> None:
    lay_out(tmp_path / "root", pictures, "left/{}.jpg", "right/{}-classes.png")
    options = {"images": "left", "masks": "right", "ending": "-classes"}
    source = find_source(tmp_path / "root", format="masks", options=options)
    assert source.num_samples == len(pictures)
    with pytest.raises(SourceError, match="--option ending="):
        find_source(tmp_path / "root", format="masks", options={"images": "left", "masks": "right"})
    with pytest.raises(OptionError, match="name both images= and masks="):
        find_source(tmp_path / "root", format="masks", options={"images": "left"})
    with pytest.raises(OptionError, match="split=test: not there; there are no splits"):
        find_source(tmp_path / "root", format="masks", options={**options, "split": "test"})


def test_of_several_folders_of_masks_one_is_named(tmp_path: Path, pictures: list[Picture]) -> None:
    lay_out(tmp_path / "root", pictures, "images/{}.jpg", "masks/{}.png")
    lay_out(tmp_path / "root", pictures, "images/{}.jpg", "labels/{}.png")
    with pytest.raises(SourceError, match=r"may be in labels, masks\. Say in which: --option i"):
        find_source(tmp_path / "root", format="masks")


def photographs(path: Path, picture: Picture) -> None:
    path.write_bytes(picture.data)


def flat(path: Path, picture: Picture) -> None:
    Image.new("RGB", (8, 8), (picture.label, 0, 0)).save(path)


@pytest.mark.parametrize("write", [photographs, flat])
def test_class_folders_are_not_taken_for_it(
    tmp_path: Path, pictures: list[Picture], write: Callable[[Path, Picture], None]
) -> None:
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
        for p in pictures:
            write(tmp_path / name / f"{p.name}.png", p)
    assert format_of(tmp_path).name == "folder"


@pytest.mark.parametrize(
    ("name", "text", "names", "colours"),
    [
        ("label_colors.txt", "64 128 64\tAnimal\n0 0 1\t\tTruck Bus\n", "Animal/Truck Bus", "4"),
        ("labelmap.txt", "# x\nbackground:0,0,0::\na b:0,0,4:x:\n", "background/a b", "0"),
        ("class_dict.csv", "name,r,g,b\nAnimal, 64, 128, 64\n", "Animal", "4"),
        (
            "_classes.csv",
            "Pixel Value, Class\n0, background\n2, cat\n",
            "background/class 1/cat",
            "",
        ),
        ("class_names.txt", "__ignore__\n_background_\ncat\n", "_background_/cat", ""),
    ],
)
def test_tables(tmp_path: Path, name: str, text: str, names: str, colours: str) -> None:
    (tmp_path / name).write_text(text)
    table = read_table(tmp_path / name)
    assert table.names == tuple(names.split("/"))
    first = {"4": 64 << 16 | 128 << 8 | 64, "0": 0}
    assert table.colours[:1] == ((first[colours],) if colours else ())


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "name,colour\nroad,red\n", "expected lines as name,r,g,b"),
        ("a.txt", "1 1 1 a\n1 1 1 b\n", r"two classes have the colour \(1, 1, 1\)"),
        ("a.txt", "1 1 300 a\n", "beyond 255"),
        ("a.txt", "", "0 lines"),
    ],
)
def test_tables_that_make_no_sense(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=message):
        read_table(tmp_path / name)


def test_a_note_says_that_masks_show_one_shape(tmp_path: Path) -> None:
    """As those of DRIVE's test set do, which are the field of view."""
    for number, picture in enumerate(make_pictures(4)):
        field = np.zeros(picture.pixels.shape[:2], np.uint8)
        field[4:-4, 5:-5] = 255
        save(tmp_path / f"one/images/{number}_test.png", picture.pixels)
        save(tmp_path / f"one/mask/{number}_test_mask.png", field)
        save(tmp_path / f"some/images/{number}.png", picture.pixels)
        save(tmp_path / f"some/masks/{number}.png", np.roll(field, 4 * (number == 2), 1))
    said = "the masks show one shape"
    assert any(said in note for note in find_source(tmp_path / "one").notes)
    assert not any(said in note for note in find_source(tmp_path / "some").notes)
