"""Public datasets as they are published: read exactly, or refused; never packed as something else.

Each layout is a tree of files with the names of the real dataset and pictures of ours. Those that
are read are packed, and every image that comes out must be, byte for byte, one of the files that
went in, with the class that the layout gives it. Those that no reader knows must be refused.

``PYTHONPATH=tests python tests/converters/test_public_layouts.py`` prints the table in docs/converters/layouts.md.
"""

# ruff: noqa: E501, T201  (a table of trees, and one that is printed)

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastdata
from fastdata.errors import FastdataError

PAGE = Path(__file__).parents[2] / "docs/converters/layouts.md"

Content = str | bytes | None
Tree = Mapping[str, Content]
"""Files by name; None stands for a picture, of the kind that the name's suffix says."""


def picture(number: int, suffix: str) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)
    Image.fromarray(pixels).save(file, {"png": "PNG", "bmp": "BMP"}.get(suffix, "JPEG"))
    return file.getvalue()


def mask(number: int = 0) -> bytes:
    file = io.BytesIO()
    pixels = np.zeros((24, 32), np.uint8)
    pixels[4:12, 5:20] = number % 3 + 1
    image = Image.fromarray(pixels, "P")
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0])
    image.save(file, "PNG")
    return file.getvalue()


def put(root: Path, tree: Tree) -> Path:
    for number, (name, content) in enumerate(tree.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            content = picture(number, name.rpartition(".")[2].lower())
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@dataclass(frozen=True)
class Layout:
    """One dataset as it is published.

    Attributes
    ----------
    tree : mapping, or callable that writes the files into a folder
    format : str
        What it is read as; "" where it must be refused.
    count : int
        Samples.
    labels : mapping
        Of some images the class, by the end of their names.
    at : str
        What is packed, below the folder.
    options : mapping
        As ``--option``, and ``format``.
    says : str
        Part of the refusal.
    files : bool
        Whether images are files, which must come out byte for byte.
    """

    tree: Tree | Callable[[Path], None]
    format: str = ""
    count: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    at: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    says: str | None = None
    files: bool = True


def images(pattern: str, *names: str) -> dict[str, Content]:
    return {pattern.format(name): None for name in names}


def voc_xml(name: str, label: str = "dog") -> str:
    return (
        f"<annotation><filename>{name}</filename><size><width>32</width><height>24</height>"
        f"<depth>3</depth></size><object><name>{label}</name><bndbox><xmin>3</xmin><ymin>4</ymin>"
        "<xmax>20</xmax><ymax>14</ymax></bndbox></object></annotation>"
    )


def coco(names: list[str]) -> str:
    return json.dumps(
        {
            "images": [
                {"id": k, "file_name": name, "width": 32, "height": 24}
                for k, name in enumerate(names)
            ],
            "annotations": [
                {"id": 9 + k, "image_id": k, "category_id": 1, "bbox": [2, 3, 10, 8], "area": 80,
                 "iscrowd": 0, "segmentation": [[2, 3, 12, 3, 12, 11]]}
                for k in range(len(names))
            ],
            "categories": [{"id": 1, "name": "dog"}],
        }
    )  # fmt: skip


def npz(path: str, **arrays: Any) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        np.savez(root / path, **arrays)

    return write


def archived(suffix: str, tree: Tree) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        with tempfile.TemporaryDirectory() as made:
            put(Path(made), tree)
            if suffix == "zip":
                with zipfile.ZipFile(root / "data.zip", "w") as archive:
                    for name in tree:
                        archive.write(Path(made, name), name)
            else:
                with tarfile.open(
                    root / f"data.{suffix}", "w:gz" if "gz" in suffix else "w"
                ) as tar:
                    for name in tree:
                        tar.add(Path(made, name), name)

    return write


PIXELS = np.arange(6 * 28 * 28, dtype=np.uint8).reshape(6, 28, 28)
CATS = {**images("cat/{}.jpg", "0", "1"), **images("dog/{}.jpg", "0")}
SPLITS = {f"{split}/{name}": None for split in ("train", "val") for name in CATS}
YAML = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"
BOX = "1 0.5 0.5 0.25 0.5\n"

LAYOUTS: dict[str, Layout] = {
    # -- class folders
    "Imagenette": Layout(
        {**images("train/n01440764/{}.JPEG", "a", "b"), **images("val/n03028079/{}.JPEG", "c")},
        "folder", 3, {"a.JPEG": "n01440764", "c.JPEG": "n03028079"},
    ),
    "Chest X-Ray (Kaggle)": Layout(
        {f"{s}/{c}/{s}.jpeg": None for s in ("train", "val", "test") for c in ("NORMAL", "PNEUMONIA")},
        "folder", 6, {"NORMAL/test.jpeg": "NORMAL"},
    ),
    "LFW": Layout(
        {"Aaron_Eckhart/Aaron_Eckhart_0001.jpg": None, "Zico/Zico_0001.jpg": None},
        "folder", 2, {"Zico_0001.jpg": "Zico"},
    ),
    "EuroSAT": Layout(
        {"2750/Forest/Forest_1.jpg": None, "2750/River/River_1.jpg": None},
        "folder", 2, {"Forest_1.jpg": "Forest"}, at="2750",
    ),
    "Caltech 101, unpacked": Layout(
        {"101_ObjectCategories/ant/image_0001.jpg": None, "101_ObjectCategories/bee/image_0001.jpg": None},
        "folder", 2, {"ant/image_0001.jpg": "ant"},
    ),
    "Caltech 101": Layout(
        {"101_ObjectCategories/ant/image_0001.jpg": None, "101_ObjectCategories/bee/image_0001.jpg": None},
        "folder", 2, {"ant/image_0001.jpg": "ant"}, at="101_ObjectCategories",
    ),
    "Places365 (train)": Layout(
        {"a/airfield/1.jpg": None, "a/alley/1.jpg": None, "b/bar/1.jpg": None}, says="either may be",
    ),
    "SUN397": Layout(
        {"a/abbey/1.jpg": None, "a/apartment/outdoor/1.jpg": None, "b/bar/1.jpg": None},
        says="either may be",
    ),
    "Office-31": Layout(
        {f"{d}/images/{c}/1.jpg": None for d in ("amazon", "dslr") for c in ("bike", "mug")},
        says="either may be",
    ),
    "Food-101": Layout(
        {"images/pizza/1.jpg": None, "images/ramen/2.jpg": None,
         "meta/classes.txt": "pizza\nramen\n", "meta/train.txt": "pizza/1\n"},
       
    ),
    "DTD": Layout(
        {"images/banded/banded_1.jpg": None, "images/dotted/dotted_1.jpg": None,
         "labels/train1.txt": "banded/banded_1.jpg\n", "imdb/imdb.mat": b"MATLAB 5.0 MAT-file"},
       
    ),
    "Stanford Dogs": Layout(
        {"Images/n02085620-Chihuahua/n02085620_7.jpg": None,
         "Annotation/n02085620-Chihuahua/n02085620_7": voc_xml("n02085620_7", "Chihuahua")},
        says="datasets.md#stanford-dogs",
    ),
    "GTSRB (Kaggle)": Layout(
        {"Train/0/0.png": None, "Train/1/1.png": None, "Test/0.png": None, "Train.csv": "Path\nx\n"},
       
    ),
    "class folders, .tar.gz": Layout(
        archived("tar.gz", CATS), "archive", 3, {"dog/0.jpg": "dog"}, at="data.tar.gz",
    ),
    "class folders, .tar": Layout(archived("tar", CATS), "archive", 3, {"dog/0.jpg": "dog"}, at="data.tar"),
    "class folders, .zip": Layout(archived("zip", SPLITS), "archive", 6, {"train/dog/0.jpg": "dog"}, at="data.zip"),
    # -- ImageNet and its like
    "ILSVRC CLS-LOC (Kaggle)": Layout(
        {"ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_1.JPEG": None,
         "ILSVRC/Data/CLS-LOC/train/n01443537/n01443537_1.JPEG": None,
         "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG": None,
         "ILSVRC/ImageSets/CLS-LOC/train_cls.txt": "n01440764/n01440764_1 1\nn01443537/n01443537_1 2\n",
         "ILSVRC/ImageSets/CLS-LOC/val.txt": "ILSVRC2012_val_00000001 1\n",
         "LOC_synset_mapping.txt": "n01440764 tench, Tinca tinca\nn01443537 goldfish\n",
         "LOC_val_solution.csv": "ImageId,PredictionString\nILSVRC2012_val_00000001,n01443537 1 2 3 4\n"},
        "ilsvrc", 3, {"n01440764_1.JPEG": "n01440764", "val_00000001.JPEG": "n01443537"},
    ),
    "ImageNet, flat val": Layout(
        {"train/n01440764/a.JPEG": None, "train/n01443537/b.JPEG": None, "val/c.JPEG": None},
       
    ),
    "ImageNet, flat val and its development kit": Layout(
        {"train/n01440764/a.JPEG": None, "train/n01443537/b.JPEG": None, "train/n03995372/c.JPEG": None,
         "val/ILSVRC2012_val_00000001.JPEG": None,
         "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": "2\n"},
        says="sort the images into class folders",
    ),
    "Tiny ImageNet": Layout(
        {"wnids.txt": "n02124075\nn01443537\n", "words.txt": "n02124075\tcat\nn01443537\tgoldfish\n",
         "train/n02124075/images/n02124075_0.JPEG": None, "train/n01443537/images/n01443537_0.JPEG": None,
         "train/n02124075/n02124075_boxes.txt": "n02124075_0.JPEG\t0\t0\t5\t5\n",
         "train/n01443537/n01443537_boxes.txt": "n01443537_0.JPEG\t0\t0\t5\t5\n",
         "val/images/val_0.JPEG": None, "val/val_annotations.txt": "val_0.JPEG\tn01443537\t0\t0\t5\t5\n",
         "test/images/test_0.JPEG": None},
        says="datasets.md#tiny-imagenet",
    ),
    "CUB-200-2011": Layout(
        {"images/001.Black_Albatross/a.jpg": None, "images/002.Laysan/b.jpg": None,
         "images.txt": "1 001.Black_Albatross/a.jpg\n2 002.Laysan/b.jpg\n",
         "classes.txt": "1 001.Black_Albatross\n2 002.Laysan\n",
         "image_class_labels.txt": "1 1\n2 2\n", "train_test_split.txt": "1 1\n2 0\n",
         "bounding_boxes.txt": "1 2.0 3.0 10.0 8.0\n2 1.0 1.0 5.0 5.0\n"},
        says="datasets.md#cub-200-2011",
    ),
    # -- images and masks
    "CamVid (SegNet)": Layout(
        {**images("train/{}.png", "a", "b"), "trainannot/a.png": mask(), "trainannot/b.png": mask(1),
         **images("val/{}.png", "c"), "valannot/c.png": mask(), **images("test/{}.png", "d"),
         "testannot/d.png": mask()},
        "masks", 4,
    ),
    "Kvasir-SEG, Carvana (U-Net)": Layout(
        {**images("images/{}.jpg", "a", "b"), "masks/a.png": mask(), "masks/b.png": mask(1)},
        "masks", 2,
    ),
    "Cityscapes": Layout(
        {f"leftImg8bit/{s}/ulm/ulm_0_0_leftImg8bit.png": None for s in ("train", "val")}
        | {f"gtFine/{s}/ulm/ulm_0_0_gtFine_labelIds.png": mask() for s in ("train", "val")},
        "masks", 2,
    ),
    "ADE20K (SceneParsing)": Layout(
        {"images/training/ADE_train_1.jpg": None, "images/validation/ADE_val_1.jpg": None,
         "annotations/training/ADE_train_1.png": mask(), "annotations/validation/ADE_val_1.png": mask(),
         "objectInfo150.txt": "Idx\tRatio\tTrain\tVal\tName\n1\t0.1\t1\t1\twall\n"},
        "masks", 2,
    ),
    "DIV2K": Layout(
        {"DIV2K_train_HR/0001.png": None, "DIV2K_train_LR_bicubic/X2/0001x2.png": None},
        says="different depths",
    ),
    # -- detection
    "Pascal VOC 2012": Layout(
        {"JPEGImages/2007_1.jpg": None, "Annotations/2007_1.xml": voc_xml("2007_1.jpg"),
         "ImageSets/Main/train.txt": "2007_1\n"},
        "voc", 1,
    ),
    "Roboflow, Pascal VOC": Layout(
        {"train/a_jpg.rf.1.jpg": None, "train/a_jpg.rf.1.xml": voc_xml("a_jpg.rf.1.jpg"),
         "valid/b_jpg.rf.1.jpg": None, "valid/b_jpg.rf.1.xml": voc_xml("b_jpg.rf.1.jpg"),
         "README.roboflow.txt": "dogs"},
        "voc", 2,
    ),
    "images and annotations of XML": Layout(
        {"images/road0.png": None, "annotations/road0.xml": voc_xml("road0.png", "light")},
        "voc", 1,
    ),
    "COCO 2017 (val)": Layout(
        {"annotations/instances_val2017.json": coco(["1.jpg", "2.jpg"]), **images("val2017/{}.jpg", "1", "2")},
        "coco", 2,
    ),
    "Roboflow, COCO": Layout(
        {"train/a.jpg": None, "train/_annotations.coco.json": coco(["a.jpg"]),
         "valid/b.jpg": None, "valid/_annotations.coco.json": coco(["b.jpg"])},
        "coco", 2,
    ),
    "COCO8 (Ultralytics)": Layout(
        {"data.yaml": YAML, "images/train/a.jpg": None, "images/val/b.jpg": None,
         "labels/train/a.txt": BOX, "labels/val/b.txt": BOX},
        "yolo", 2,
    ),
    "Roboflow, YOLO": Layout(
        {"data.yaml": "train: ../train/images\nval: ../valid/images\nnc: 2\nnames: ['cat', 'dog']\n",
         "train/images/a.jpg": None, "train/labels/a.txt": BOX,
         "valid/images/b.jpg": None, "valid/labels/b.txt": BOX, "README.dataset.txt": "x"},
        "yolo", 2,
    ),
    "labelme": Layout(
        {"a.jpg": None,
         "a.json": json.dumps({
             "version": "5.2.1", "flags": {}, "imagePath": "a.jpg", "imageData": None,
             "imageHeight": 24, "imageWidth": 32,
             "shapes": [{"label": "dog", "points": [[2, 3], [10, 12]], "shape_type": "rectangle",
                         "group_id": None, "flags": {}}]})},
        says="datasets.md#labelme",
    ),
    "CVAT for images": Layout(
        {"images/a.jpg": None,
         "annotations.xml": '<annotations><version>1.1</version><meta><task><labels><label><name>dog'
         '</name></label></labels></task></meta><image id="0" name="a.jpg" width="32" height="24">'
         '<box label="dog" occluded="0" xtl="2" ytl="3" xbr="10" ybr="12" z_order="0"></box></image>'
         "</annotations>"},
        says="datasets.md#cvat",
    ),
    "WIDER FACE": Layout(
        {"WIDER_train/images/0--Parade/0_1.jpg": None,
         "wider_face_split/wider_face_train_bbx_gt.txt":
         "0--Parade/0_1.jpg\n1\n2 3 10 8 0 0 0 0 0 0\n"},
        says="datasets.md#wider-face",
    ),
    "SVHN, whole pictures": Layout(
        {"train/1.png": None, "train/2.png": None, "train/digitStruct.mat": b"MATLAB 7.3",
         "train/see_bboxes.m": "load digitStruct.mat\n", "test/1.png": None,
         "test/digitStruct.mat": b"MATLAB 7.3"},
        says="datasets.md#svhn",
    ),
    "MVTec AD": Layout(
        {"bottle/train/good/0.png": None, "bottle/test/broken/0.png": None,
         "bottle/ground_truth/broken/0_mask.png": mask()},
        "mvtec", 2,
    ),
    # -- tables
    "Kaggle, train.csv of ids": Layout(
        {"train.csv": "image_id,label\na,cat\nb,dog\n", **images("train_images/{}.jpg", "a", "b")},
        "manifest", 2, {"a": "cat"}, at="train.csv",
    ),
    "Kaggle, the folder of it": Layout(
        {"train.csv": "image_id,label\na,cat\nb,dog\n", **images("train_images/{}.jpg", "a", "b"),
         "test_images/c.jpg": None, "sample_submission.csv": "image_id,label\nc,cat\n"},
        "manifest", 2, {"a": "cat"},
    ),
    "HAM10000": Layout(
        {"HAM10000_metadata.csv": "lesion_id,image_id,dx,age\nL1,ISIC_1,nv,50\nL2,ISIC_2,mel,60\n",
         "HAM10000_images_part_1/ISIC_1.jpg": None, "HAM10000_images_part_2/ISIC_2.jpg": None},
        "manifest", 2,
    ),
    "NIH ChestX-ray14": Layout(
        {"Data_Entry_2017.csv": "Image Index,Finding Labels,Follow-up #,Patient ID\n"
         "1_000.png,Cardiomegaly|Emphysema,0,1\n2_000.png,No Finding,0,2\n",
         "images_001/images/1_000.png": None, "images_002/images/2_000.png": None},
        "manifest", 2,
    ),
    "Roboflow, multi-label": Layout(
        {"train/_classes.csv": "filename, cat, dog\na.jpg, 1, 1\n", "train/a.jpg": None,
         "valid/_classes.csv": "filename, cat, dog\nb.jpg, 0, 1\n", "valid/b.jpg": None,
         "README.roboflow.txt": "pets"},
        "manifest", 2,
    ),
    "Roboflow, CreateML": Layout(
        {f"{s}/{n}": c for s in ("train", "valid") for n, c in {
            "a.jpg": None, "_annotations.createml.json": '[{"image": "a.jpg", "annotations": [{"label"'
            ': "cat", "coordinates": {"x": 9, "y": 8, "width": 4, "height": 6}}]}]'}.items()},
        "manifest", 2,
    ),
    "Stanford Online Products": Layout(
        {"Ebay_train.txt": "image_id class_id super_class_id path\n1 1 1 chair_final/a_0.JPG\n"
         "2 2 1 chair_final/b_0.JPG\n", "chair_final/a_0.JPG": None, "chair_final/b_0.JPG": None},
        "manifest", 2, at="Ebay_train.txt",
    ),
    "In-Shop": Layout(
        {"list_eval_partition.txt": "2\nimage_name item_id evaluation_status\n"
         "img/W/id_1/a.jpg    id_1    train\nimg/W/id_2/b.jpg    id_2    query\n",
         "img/W/id_1/a.jpg": None, "img/W/id_2/b.jpg": None},
        "manifest", 2, at="list_eval_partition.txt",
    ),
    "Oxford Pets, its list": Layout(
        {"annotations/list.txt": "#Image CLASS-ID SPECIES BREED ID\n#ID: 1:37 Class ids\n"
         "Abyssinian_100 1 1 1\nbeagle_2 2 2 1\n",
         "images/Abyssinian_100.jpg": None, "images/beagle_2.jpg": None},
        "manifest", 2, at="annotations/list.txt",
    ),
    "Caffe's list, path and label": Layout(
        {"val.txt": "images/a.jpg 1\nimages/b.jpg 0\n", **images("images/{}.jpg", "a", "b")},
        "manifest", 2, at="val.txt",
    ),
    "Roboflow, CSV": Layout(
        {"a.jpg": None, "_annotations.csv":
         "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,32,24,dog,2,3,12,11\n"},
        "manifest", 1, at="_annotations.csv",
    ),
    "CelebA": Layout(
        {"img_align_celeba/000001.jpg": None, "img_align_celeba/000002.jpg": None,
         "list_attr_celeba.txt": "2\nBald Smiling\n000001.jpg -1 1\n000002.jpg 1 -1\n",
         "list_eval_partition.txt": "000001.jpg 0\n000002.jpg 1\n"},
        says="datasets.md#celeba",
    ),
    "Hugging Face, metadata.csv": Layout(
        {"train/metadata.csv": "file_name,text\na.jpg,hello\n", "train/a.jpg": None,
         "test/metadata.csv": "file_name,text\nb.jpg,bye\n", "test/b.jpg": None},
        "hf_folder", 2,
    ),
    "Hugging Face, metadata.jsonl": Layout(
        {"metadata.jsonl": '{"file_name": "a.jpg", "label": "cat"}\n', "a.jpg": None},
        "hf_folder", 1,
    ),
    "UTKFace, dogs vs cats: flat": Layout(images("{}.jpg", "cat.0", "dog.1", "dog.2"), "flat", 3),
    "ISIC 2018": Layout(
        {"ISIC2018_Task3_Training_Input/ISIC_1.jpg": None,
         "ISIC2018_Task3_Training_GroundTruth.csv": "image,MEL,NV\nISIC_1,1.0,0.0\n"},
        "manifest", 1, {"ISIC_1": "MEL"},
    ),
    # -- arrays
    "MedMNIST": Layout(
        npz("bloodmnist.npz", **{f"{s}_images": PIXELS for s in ("train", "val", "test")},
            **{f"{s}_labels": np.arange(6, dtype=np.uint8)[:, None] for s in ("train", "val", "test")}),
        "numpy", 18, at="bloodmnist.npz", files=False,
    ),
    "Keras mnist.npz": Layout(
        npz("mnist.npz", x_train=PIXELS, y_train=np.arange(6), x_test=PIXELS[:2], y_test=np.arange(2)),
        "numpy", 8, at="mnist.npz", files=False,
    ),
    # -- what nobody here reads
    "BraTS (NIfTI)": Layout({"BraTS_1/BraTS_1_t1.nii.gz": b"\x1f\x8bxx", "BraTS_1/seg.nii.gz": b"\x1f\x8b"}),
    "STL-10 (binary)": Layout({"train_X.bin": bytes(2 * 27648), "train_y.bin": b"\1\2"}),
}  # fmt: skip


def made(layout: Layout, root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    if callable(layout.tree):
        layout.tree(root)
    else:
        put(root, layout.tree)
    return root / layout.at


def check_images(layout: Layout, dataset: Any) -> str:
    """Compare what was packed with what lies there; return by what it was compared."""
    assert len(dataset) == layout.count, f"{len(dataset)} samples, not {layout.count}"
    if not layout.files:
        first = np.asarray(dataset[0].image)[0]
        assert (first == PIXELS[0]).all()
        return "pixels of the first array"
    tree = layout.tree if isinstance(layout.tree, Mapping) else dict.fromkeys(CATS | SPLITS)
    wanted = {
        picture(number, name.rpartition(".")[2].lower())
        for number, (name, content) in enumerate(tree.items())
        if content is None
    }
    stored = [
        bytes(shard.blob("image", index)) for shard in dataset.shards for index in range(len(shard))
    ]
    if isinstance(layout.tree, Mapping):
        assert set(stored) <= wanted
    assert len(set(stored)) == len(stored)
    for end, name in layout.labels.items():
        places = [place for place, key in enumerate(dataset.keys) if key.endswith(end)]
        assert places, (end, list(dataset.keys))
        assert dataset.classes[int(dataset[places[0]].label)] == name
    return "bytes of files" + (", classes" if layout.labels else "")


def row(name: str, folder: Path) -> str:
    """Pack a layout, or see it refused; return its row of the table."""
    layout = LAYOUTS[name]
    location, packed = made(layout, folder / "in"), folder / "x.lmdb"
    options = {"codec": "keep" if layout.files else "raw", "resize": "none", "num_workers": 0}
    if not layout.format:
        with pytest.raises(FastdataError, match=layout.says) as caught:
            fastdata.pack(location, packed, progress=False, **options)  # type: ignore[arg-type]
        assert not packed.exists()
        text = str(caught.value).splitlines()[0].replace(f"{folder}/in", "DATA").split(". ")[0]
        return f"| {name} | refused | {text} | | |"
    report = fastdata.pack(location, packed, progress=False, **options)  # type: ignore[arg-type]
    assert report.read_as.startswith(f"read as {layout.format}: ")
    assert not report.num_rejected, report.rejects
    dataset = fastdata.open(packed)
    exact = check_images(layout, dataset)
    fields = ", ".join(f"`{one}`" for one in dataset.schema)
    return f"| {name} | `{layout.format}` | {fields} | {len(dataset)} | {exact} |"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_public_dataset_is_read_exactly_or_refused(tmp_path: Path, name: str) -> None:
    assert row(name, tmp_path) in PAGE.read_text(encoding="utf-8").splitlines()


def main() -> None:
    """Print the table of all layouts."""
    print("| dataset | read as | fields | samples | exact by |\n|---|---|---|---|---|")
    for name in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            print(row(name, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
