"""Datasets that recipes pack, with the real file names and formats, and what must come out."""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import lmdb
import numpy as np
from cases import Picture, make_pictures

__all__ = ["RECIPES", "Recipe"]

Expected = dict[str, Any]
"""What a sample has, by field: classes by name, boxes as lists, masks as arrays; and ``image``."""
DIGITS = tuple("0123456789")
SPECIES = ("ant", "bee", "cat")


class Recipe(NamedTuple):
    """A heading of the page, and the dataset that its code packs.

    write: takes the current folder and pictures; returns what each sample must be.
    at: locations that must be refused, with the name of the recipe.
    out: the names of the packed files, one for each block.
    """

    title: str
    write: Callable[[Path, Sequence[Picture]], list[Expected]]
    at: tuple[str, ...]
    out: tuple[str, ...]
    needs: str = ""


def put(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def savemat(path: Path, **values: Any) -> None:
    from scipy.io import savemat as save

    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, values, do_compression=True)


def boxes_of(picture: Picture) -> list[list[float]]:
    """Return 0 to 2 boxes, as left, top, right and bottom."""
    return [[4.0 + k, 3.0, 20.0, 15.5 + k] for k in range(picture.label)]


def sized(box: Sequence[float]) -> list[float]:
    """Return a box as left, top, width and height."""
    return [box[0], box[1], box[2] - box[0], box[3] - box[1]]


def names_of(picture: Picture) -> list[str]:
    """Return the class of each box."""
    return [SPECIES[(picture.label + k) % 3] for k in range(picture.label)]


def objects_of(picture: Picture) -> Expected:
    return {"image": picture.data, "boxes": boxes_of(picture), "labels": names_of(picture)}


def write_cub(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root = folder / "CUB_200_2011"
    names = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross")
    tables: dict[str, list[str]] = {}
    expected = []
    for number, p in enumerate(pictures, 1):
        path = f"{names[p.label]}/Black_Footed_Albatross_{p.name}.jpg"
        put(root / "images" / path, p.data)
        box = [float(number), 3.0, number + 20.0, 14.5]
        for name, text in (
            ("images", path), ("image_class_labels", p.label + 1), ("train_test_split", number % 2),
            ("bounding_boxes", " ".join(map(str, sized(box)))),
        ):  # fmt: skip
            tables.setdefault(name, []).append(f"{number} {text}\n")
        split = ("test", "train")[number % 2]
        expected.append({"image": p.data, "label": names[p.label], "boxes": [box], "split": split})
    tables["classes"] = [f"{k} {name}\n" for k, name in enumerate(names, 1)]
    for name, lines in tables.items():
        put(root / f"{name}.txt", "".join(lines))
    return expected


def write_celeba(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root = folder / "celeba"
    attributes = [f"{len(pictures)}\n", "5_o_Clock_Shadow Bald Young \n"]
    partition, expected = [], []
    for number, p in enumerate(pictures, 1):
        name = f"{number:06}.jpg"
        put(root / "img_align_celeba" / name, p.data)
        flags = [("-1", "-1", "-1"), ("-1", " 1", " 1"), (" 1", "-1", " 1")][p.label]
        attributes.append(f"{name} {' '.join(flags)}\n")
        partition.append(f"{name} {number % 3}\n")
        labels = [[], ["Bald", "Young"], ["5_o_Clock_Shadow", "Young"]][p.label]
        split = ("train", "val", "test")[number % 3]
        expected.append({"image": p.data, "labels": labels, "split": split})
    put(root / "list_attr_celeba.txt", "".join(attributes))
    put(root / "list_eval_partition.txt", "".join(partition))
    put(root / "identity_CelebA.txt", "000001.jpg 2880\n")
    return expected


def write_widerface(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write 0 to 2 faces, and one that is marked invalid in images that have any."""
    lines, expected = [], []
    for p in pictures:
        name = f"0--Parade/0_Parade_marchingband_1_{int(p.name)}.jpg"
        put(folder / "WIDER_train/images" / name, p.data)
        faces = [[int(n) for n in sized([*box[:3], 15])] for box in boxes_of(p)]
        rows = [f"{' '.join(map(str, face))} 0 0 0 0 0 0 \n" for face in faces]
        rows += ["9 9 4 4 2 0 0 1 2 0 \n"] if faces else []
        lines += [f"{name}\n{len(rows)}\n", *(rows or ["0 0 0 0 0 0 0 0 0 0 \n"])]
        expected.append({"image": p.data, "boxes": [[*box[:3], 15] for box in boxes_of(p)]})
    put(folder / "wider_face_split/wider_face_train_bbx_gt.txt", "".join(lines))
    return expected


def write_flowers(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root = folder / "flowers-102"
    for number, p in enumerate(pictures, 1):
        put(root / f"jpg/image_{number:05}.jpg", p.data)
    savemat(root / "imagelabels.mat", labels=np.array([[p.label + 1 for p in pictures]], np.uint8))
    ids = np.arange(1, len(pictures) + 1, dtype=np.uint16)
    sets = {"tstid": ids[0::3][::-1], "trnid": ids[1::3], "valid": ids[2::3]}
    savemat(root / "setid.mat", **{name: found[None] for name, found in sets.items()})
    return [
        {"image": p.data, "label": p.label, "split": ("test", "train", "val")[k % 3]}
        for k, p in enumerate(pictures)
    ]


def write_cars(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root, names = folder / "stanford_cars", ("Acura RL Sedan 2012", "Audi S4", "BMW M3")
    sides = [(f"bbox_{side}", object) for side in ("x1", "y1", "x2", "y2")]
    kinds = [("relative_im_path", object), *sides, ("class", object), ("test", object)]
    rows, expected = [], []
    for k, p in enumerate(pictures):
        name = f"car_ims/{k + 1:06}.jpg"
        put(root / name, p.data)
        rows.append((name, 1 + p.label, 2, 300, 200, p.label + 1, int(k % 3 == 2)))
        split = ("train", "test")[k % 3 == 2]
        box = [float(p.label), 1.0, 300.0, 200.0]
        expected.append({"image": p.data, "label": names[p.label], "boxes": [box], "split": split})
    annotations = np.array(rows, kinds)[None]
    savemat(
        root / "cars_annos.mat", annotations=annotations, class_names=np.array(names, object)[None]
    )
    return expected


def write_dogs(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root, names = folder / "stanford_dogs", ("Chihuahua", "Japanese_spaniel", "wire-haired_terrier")
    files: tuple[list[str], list[str]] = [], []
    labels: tuple[list[float], list[float]] = [], []
    expected = []
    for k, p in enumerate(pictures):
        split = k % 2
        name = f"n0208562{p.label}-{names[p.label]}/n0208562{p.label}_{k}"
        put(root / "Images" / f"{name}.jpg", p.data)
        boxes = [[4.0, 3.0, 20.0, 15.0 + each] for each in range(p.label + 1)]
        objects = "".join(
            f"<object><name>{names[p.label]}</name><pose>Unspecified</pose><bndbox><xmin>4</xmin>"
            f"<ymin>3</ymin><xmax>20</xmax><ymax>{box[3]:.0f}</ymax></bndbox></object>"
            for box in boxes
        )
        put(root / "Annotation" / name, f"<annotation><folder>0</folder>{objects}</annotation>\n")
        files[split].append(f"{name}.jpg")
        labels[split].append(p.label + 1.0)
        expected.append(
            {"image": p.data, "label": names[p.label], "boxes": boxes}
            | {"split": ("train", "test")[split]}
        )
    for split, name in enumerate(("train_list.mat", "test_list.mat")):
        listed = np.array(files[split], object)[:, None]
        savemat(root / name, file_list=listed, labels=np.array(labels[split])[:, None])
    return expected


def digits_of(picture: Picture) -> list[tuple[float, float, float, float, float]]:
    """Return left, top, width, height and label of one to three digits: 10, 1, 2."""
    return [(9 * k - 1, 3, 8, 20 + k, k or 10) for k in range(picture.label + 1)]


def write_svhn(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write the list as MATLAB 7.3 lays a struct array out: references to numbers and texts."""
    root = folder / "svhn/train"
    root.mkdir(parents=True)
    expected = []
    with h5py.File(root / "digitStruct.mat", "w", userblock_size=512) as file:
        refs = file.create_group("#refs#")
        names, boxes = [], []

        def stored(array: np.ndarray[Any, Any]) -> Any:
            return refs.create_dataset(f"r{len(refs)}", data=array).ref

        for number, p in enumerate(pictures, 1):
            put(root / f"{number}.png", p.data)
            names.append(stored(np.array([[ord(letter)] for letter in f"{number}.png"], np.uint16)))
            group = refs.create_group(f"g{number}")
            digits = digits_of(p)
            for at, field in enumerate(("left", "top", "width", "height", "label")):
                cells = [np.array([[float(digit[at])]]) for digit in digits]
                if len(cells) == 1:  # MATLAB has the number itself
                    group.create_dataset(field, data=cells[0])
                else:
                    rows = [[stored(cell)] for cell in cells]
                    group.create_dataset(field, data=np.array(rows, h5py.ref_dtype))
            boxes.append(group.ref)
            wanted = [[float(x), float(y), x + w, y + h] for x, y, w, h, _ in digits]
            labels = [DIGITS[int(digit[4]) % 10] for digit in digits]
            expected.append({"image": p.data, "boxes": wanted, "labels": labels})
        for field, found in (("name", names), ("bbox", boxes)):
            data = np.array([[each] for each in found], h5py.ref_dtype)
            file.create_dataset(f"digitStruct/{field}", data=data)
    stamp(root / "digitStruct.mat")
    return expected


def stamp(path: Path) -> None:
    """Write MATLAB's head into the 512 bytes before HDF5's."""
    with open(path, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def write_cifar(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root = folder / "cifar-10-batches-bin"
    small = make_pictures(len(pictures), 32, 32)
    put(root / "batches.meta.txt", "\n".join((*SPECIES, "")))
    for number in range(1, 3):
        records = (
            bytes([p.label]) + p.pixels.transpose(2, 0, 1).tobytes() for p in small[number - 1 :: 2]
        )
        put(root / f"data_batch_{number}.bin", b"".join(records))
    name = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(name, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        archive.add(root, root.name)
    return [{"image": p.pixels, "label": SPECIES[p.label]} for p in small]


def write_tiny(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root, synsets = folder / "tiny-imagenet-200", ("n01443537", "n01629819", "n01641577")
    lines, expected = [], []
    for k, p in enumerate(pictures):
        synset = synsets[p.label]
        if k % 2:
            put(root / f"val/images/val_{k}.JPEG", p.data)
            lines.append(f"val_{k}.JPEG\t{synset}\t0\t32\t44\t62\n")
        else:
            put(root / f"train/{synset}/images/{synset}_{k}.JPEG", p.data)
            put(root / f"train/{synset}/{synset}_boxes.txt", f"{synset}_{k}.JPEG\t0\t10\t63\t58\n")
        expected.append({"image": p.data, "label": synset, "split": ("train", "val")[k % 2]})
    put(root / "test/images/test_0.JPEG", pictures[0].data)
    put(root / "val/val_annotations.txt", "".join(lines))
    put(root / "wnids.txt", "".join(f"{synset}\n" for synset in synsets[::-1]))
    put(root / "words.txt", "n00001740\tentity\n")
    return expected


def write_mat(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write SVHN's digits, 10 for a zero, and the same as a file of MATLAB 7.3."""
    pixels = np.stack([p.pixels for p in pictures], axis=-1)
    labels = np.array([[p.label or 10] for p in pictures], np.uint8)
    savemat(folder / "train_32x32.mat", X=pixels, y=labels)
    with h5py.File(folder / "images.mat", "w", userblock_size=512) as file:
        file["images"], file["labels"] = pixels.T, labels.T % 10
    stamp(folder / "images.mat")
    (folder / "mat").mkdir()
    (folder / "mat/images.mat").symlink_to(folder / "images.mat")
    return [{"image": p.pixels, "label": p.label} for p in pictures]


def varint(value: int) -> bytes:
    low = bytes([value & 127 | (128 if value > 127 else 0)])
    return low + (varint(value >> 7) if value > 127 else b"")


def message(**fields: int | bytes) -> bytes:
    """Return a Datum of Caffe's, by the wire format of protobuf."""
    numbers = {"channels": 1, "height": 2, "width": 3, "data": 4, "label": 5, "encoded": 7}
    parts = []
    for name, value in fields.items():
        if isinstance(value, bytes):
            parts.append(varint(numbers[name] << 3 | 2) + varint(len(value)) + value)
        else:
            parts.append(varint(numbers[name] << 3) + varint(value))
    return b"".join(parts)


def write_lmdb(path: Path, pairs: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=1 << 26) as file, file.begin(write=True) as transaction:
        for key, value in pairs:
            transaction.put(key.encode(), value)


def write_caffe(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write encoded and raw images, as ``convert_imageset`` does."""
    pairs, expected = [], []
    for k, p in enumerate(pictures):
        label = p.label + 300 * k
        if k % 2:
            datum = message(data=p.data, label=label, encoded=1)
        else:
            planes = p.pixels[:, :, ::-1].transpose(2, 0, 1)
            height, width, _ = p.pixels.shape
            size = {"channels": 3, "height": height, "width": width}
            datum = message(**size, data=planes.tobytes(), label=label, encoded=0)
        pairs.append((f"{k:08}_{p.name}.jpg", datum))
        expected.append({"image": p.data if k % 2 else p.pixels, "label": label})
    write_lmdb(folder / "train_lmdb", pairs)
    write_lmdb(folder / "encoded_lmdb", pairs[1::2])
    return expected


def write_pairs(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    half = len(pictures) // 2
    good = [(p.name, p.data) for p in pictures[:half]]
    degraded = [(p.name, q.data) for p, q in zip(pictures, pictures[half:], strict=False)]
    for root in (folder, folder / "DIV2K"):
        write_lmdb(root / "DIV2K_train_HR_sub.lmdb", good)
        write_lmdb(root / "DIV2K_train_LR_bicubic_X4_sub.lmdb", degraded)
        put(root / "DIV2K_train_HR_sub.lmdb/meta_info.txt", "000000.png (40,48,3) 1\n")
    return [{"gt": a, "lq": b} for (_, a), (_, b) in zip(good, degraded, strict=True)]


def write_labelme(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write a rectangle, and in every second picture a triangle with right angles over it."""
    expected = []
    for k, p in enumerate(pictures):
        height, width = p.pixels.shape[:2]
        shapes = [("ant", "rectangle", [[4.0, 4.0], [20.0, 12.0]])]
        mask = np.zeros((height, width), np.uint8)
        mask[4:13, 4:21] = 1
        if k % 2:
            shapes.append(
                ("bee", "polygon", [[24.0, 2.0], [24.0, 30.0], [40.0, 30.0], [40.0, 2.0]])
            )
            mask[2:31, 24:41] = 2
        entries = [
            {"label": label, "points": points, "group_id": None, "shape_type": kind, "flags": {}}
            for label, kind, points in shapes
        ]
        content = {
            "version": "5.4.1", "flags": {}, "shapes": entries, "imagePath": f"{p.name}.jpg",
            "imageData": None, "imageHeight": height, "imageWidth": width,
        }  # fmt: skip
        put(folder / f"labelme/{p.name}.jpg", p.data)
        put(folder / f"labelme/{p.name}.json", json.dumps(content, indent=2))
        boxes = [[4.0, 4.0, 20.0, 12.0], [24.0, 2.0, 40.0, 30.0]][: len(shapes)]
        labels = [label for label, *_ in shapes]
        expected.append({"image": p.data, "boxes": boxes, "labels": labels, "mask": mask})
    return expected


def write_cvat(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write boxes, and of every second object its outline."""
    images = []
    for k, p in enumerate(pictures):
        put(folder / f"cvat/images/{p.name}.jpg", p.data)
        objects = ""
        for number, (label, box) in enumerate(zip(names_of(p), boxes_of(p), strict=True)):
            left, top, right, bottom = box
            given = f'label="{label}" source="manual" occluded="0" z_order="0"'
            corners = f"{left},{top};{right},{top};{right},{bottom};{left},{bottom}"
            objects += (
                f'<polygon {given} points="{corners}"></polygon>'
                if number
                else f'<box {given} xtl="{left}" ytl="{top}" xbr="{right}" ybr="{bottom}"></box>'
            )
        height, width = p.pixels.shape[:2]
        images.append(
            f'<image id="{k}" name="{p.name}.jpg" width="{width}" height="{height}">{objects}'
            "</image>"
        )
    labels = "".join(f"<label><name>{n}</name><color>#aabbcc</color></label>" for n in SPECIES)
    put(
        folder / "cvat/annotations.xml",
        '<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version><meta><task>'
        f"<labels>{labels}</labels></task></meta>{''.join(images)}</annotations>",
    )
    return [objects_of(p) for p in pictures]


def write_runs(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    """Write Severstal's table: rectangles of classes 1 and 4, as runs down the columns."""
    root, expected, rows = folder / "severstal", [], []
    for p in pictures:
        height, width = p.pixels.shape[:2]
        mask = np.zeros((height, width), np.uint8)
        for label, top, left in ((1, 2, 3), (4, 20, 30))[: p.label]:
            mask[top : top + 9, left : left + 6] = label
            runs = [(x * height + top + 1, 9) for x in range(left, left + 6)]
            rows.append((f"{p.name}.jpg", label, " ".join(f"{a} {b}" for a, b in runs)))
        put(root / f"train_images/{p.name}.jpg", p.data)
        expected.append({"image": p.data, "mask": mask})
    with open(root / "train.csv", "w", newline="") as file:
        csv.writer(file).writerows([("ImageId", "ClassId", "EncodedPixels"), *rows])
    return expected


def write_studio(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    tasks = []
    for k, p in enumerate(pictures):
        height, width = p.pixels.shape[:2]
        results = []
        for label, box in zip(names_of(p), boxes_of(p), strict=True):
            x, y, w, h = sized(box)
            value = {
                "x": 100 * x / width, "y": 100 * y / height, "width": 100 * w / width,
                "height": 100 * h / height, "rotation": 0, "rectanglelabels": [label],
            }  # fmt: skip
            results.append(
                {"original_width": width, "original_height": height, "image_rotation": 0}
                | {"value": value, "id": f"r{k}", "from_name": "label", "to_name": "image"}
                | {"type": "rectanglelabels"}
            )
        name = f"3f2a-{p.name}.jpg"
        put(folder / "label_studio/images" / name, p.data)
        tasks.append(
            {"id": k, "annotations": [{"id": k, "completed_by": 1, "result": results}]}
            | {"data": {"image": f"/data/upload/1/{name}"}, "meta": {}}
        )
    put(folder / "label_studio/export.json", json.dumps(tasks))
    return [objects_of(p) for p in pictures]


def write_visdrone(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    root, names = folder / "VisDrone2019-DET-train", {"ant": 1, "bee": 4, "cat": 11}
    shown = {"ant": "pedestrian", "bee": "car", "cat": "others"}
    expected = []
    for p in pictures:
        put(root / f"images/0000{p.name}_d.jpg", p.data)
        boxes = [[*box[:3], 15.0] for box in boxes_of(p)]
        lines = ["0,0,5,5,0,0,0,0\n"]
        for label, box in zip(names_of(p), boxes, strict=True):
            lines.append(f"{','.join(f'{n:.0f}' for n in sized(box))},1,{names[label]},0,1\n")
        put(root / f"annotations/0000{p.name}_d.txt", "".join(lines))
        labels = [shown[label] for label in names_of(p)]
        expected.append({"image": p.data, "boxes": boxes, "labels": labels})
    return expected


def write_kitti(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    shown = {"ant": "Car", "bee": "Pedestrian", "cat": "Cyclist"}
    expected = []
    for p in pictures:
        put(folder / f"kitti/training/image_2/{p.name}.png", p.data)
        lines = [
            f"{shown[label]} 0.00 0 -1.58 {' '.join(f'{n:.2f}' for n in box)} 1.6 1.6 3.8 1 1 9 0\n"
            for label, box in zip(names_of(p), boxes_of(p), strict=True)
        ]
        lines.append("DontCare -1 -1 -10 1.00 2.00 3.00 4.00 -1 -1 -1 -1000 -1000 -1000 -10\n")
        put(folder / f"kitti/training/label_2/{p.name}.txt", "".join(lines))
        labels = [shown[label] for label in names_of(p)]
        expected.append({"image": p.data, "boxes": boxes_of(p), "labels": labels})
    return expected


def write_dota(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    for p in pictures:
        put(folder / f"dota/train/images/P{p.name}.png", p.data)
        lines = ["imagesource:GoogleEarth\n", "gsd:0.146343590398\n"]
        for label, (left, top, right, bottom) in zip(names_of(p), boxes_of(p), strict=True):
            middle = (left + right) / 2
            corners = (middle, top, right, bottom - 2, middle, bottom, left, top + 2)
            lines.append(f"{' '.join(map(str, corners))} {label} 0\n")
        put(folder / f"dota/train/labelTxt/P{p.name}.txt", "".join(lines))
    return [objects_of(p) for p in pictures]


def write_bdd(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    images = []
    for p in pictures:
        put(folder / f"bdd100k/images/100k/train/{p.name}.jpg", p.data)
        labels = [
            {"id": str(k), "attributes": {"occluded": False}, "category": label}
            | {"box2d": dict(zip(("x1", "y1", "x2", "y2"), box, strict=True))}
            for k, (label, box) in enumerate(zip(names_of(p), boxes_of(p), strict=True))
        ]
        labels.append({"id": "9", "category": "lane", "poly2d": [[1, 2], [3, 4]]})
        image = {"name": f"{p.name}.jpg", "attributes": {"weather": "clear"}, "timestamp": 10000}
        images.append(image | {"labels": labels})
    put(folder / "bdd100k/labels/det_20/det_train.json", json.dumps(images))
    return [objects_of(p) for p in pictures]


def write_sagemaker(folder: Path, pictures: Sequence[Picture]) -> list[Expected]:
    lines = []
    for p in pictures:
        put(folder / f"sagemaker/images/{p.name}.jpg", p.data)
        height, width = p.pixels.shape[:2]
        objects = [
            dict(zip(("left", "top", "width", "height"), sized(box), strict=True))
            | {"class_id": SPECIES.index(label)}
            for label, box in zip(names_of(p), boxes_of(p), strict=True)
        ]
        classes = {str(SPECIES.index(label)): label for label in names_of(p)}
        document = {
            "source-ref": f"s3://bucket/images/{p.name}.jpg",
            "insects": {
                "image_size": [{"width": width, "height": height, "depth": 3}],
                "annotations": objects,
            },
            "insects-metadata": {"class-map": classes, "type": "groundtruth/object-detection"},
        }
        lines.append(json.dumps(document) + "\n")
    put(folder / "sagemaker/output.manifest", "".join(lines))
    return [objects_of(p) for p in pictures]


RECIPES = (
    Recipe("CUB-200-2011", write_cub, ("CUB_200_2011", "."), ("cub.lmdb",)),
    Recipe("CelebA", write_celeba, ("celeba", "celeba/list_attr_celeba.txt"), ("celeba.lmdb",)),
    Recipe(
        "WIDER FACE",
        write_widerface,
        (".", "wider_face_split/wider_face_train_bbx_gt.txt"),
        ("faces.lmdb",),
    ),
    Recipe("Flowers 102", write_flowers, ("flowers-102",), ("flowers.lmdb",), "scipy"),
    Recipe("Stanford Cars", write_cars, ("stanford_cars",), ("cars.lmdb",), "scipy"),
    Recipe("Stanford Dogs", write_dogs, ("stanford_dogs",), ("dogs.lmdb",), "scipy"),
    Recipe("SVHN", write_svhn, ("svhn", "svhn/train"), ("digits.lmdb",)),
    Recipe(
        "CIFAR binary",
        write_cifar,
        ("cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        ("cifar10.lmdb",),
    ),
    Recipe("Tiny ImageNet", write_tiny, ("tiny-imagenet-200",), ("tiny.lmdb",)),
    Recipe(
        ".mat files", write_mat, ("mat", "images.mat"), ("digits32.lmdb", "images73.lmdb"), "scipy"
    ),
    Recipe(
        "Caffe Datum LMDB",
        write_caffe,
        ("train_lmdb", "train_lmdb/data.mdb", "encoded_lmdb"),
        ("caffe.lmdb",),
    ),
    Recipe("Paired LMDB", write_pairs, ("DIV2K",), ("pairs.lmdb",)),
    Recipe("LabelMe", write_labelme, ("labelme", "labelme/000000.json", "."), ("labelme.lmdb",)),
    Recipe("CVAT", write_cvat, ("cvat", "cvat/annotations.xml"), ("cvat.lmdb",)),
    Recipe("Run-length tables", write_runs, ("severstal", "severstal/train.csv"), ("steel.lmdb",)),
    Recipe(
        "Label Studio",
        write_studio,
        ("label_studio", "label_studio/export.json"),
        ("studio.lmdb",),
    ),
    Recipe("VisDrone", write_visdrone, ("VisDrone2019-DET-train", "."), ("drone.lmdb",)),
    Recipe("KITTI", write_kitti, ("kitti", "kitti/training"), ("kitti.lmdb",)),
    Recipe("DOTA", write_dota, ("dota", "dota/train"), ("dota.lmdb",)),
    Recipe(
        "BDD100K", write_bdd, ("bdd100k/labels/det_20/det_train.json", "bdd100k"), ("bdd.lmdb",)
    ),
    Recipe(
        "SageMaker",
        write_sagemaker,
        ("sagemaker", "sagemaker/output.manifest"),
        ("truth.lmdb",),
    ),
)
