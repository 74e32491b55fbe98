"""Layouts of public datasets, each with the right result: a format, or a refusal.

`LAYOUTS` has two sides.  Pairs, masks, domains, tables and annotations are not class folders.
True class folders with difficult names are.  The script prints a line for each layout, with the
expected result, the result, and its faults:

    python tests/converters/recognition_layouts.py [PART-OF-A-NAME]
"""

# ruff: noqa: E501, T201  (a table of trees, and one that is printed)

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from layout_check import Layout, Outcome, Tree, outcome
from layout_classes import CLASSES, HIDDEN, classes
from layout_pictures import Pic, encoded

__all__ = ["LAYOUTS", "THOROUGH"]

Files = dict[str, "Pic | str | bytes"]


def side(
    folders: Mapping[str, str | tuple[str, str]],
    n: int = 8,
    root: str = "",
    start: int = 0,
    size: tuple[int, int] = (48, 36),
) -> Files:
    """Return folders of pictures of the same scenes: of each folder the kind, and the files' names."""
    found: Files = {}
    for folder, how in folders.items():
        kind, pattern = (how, "{k:04}.png") if isinstance(how, str) else how
        for k in range(n):
            found[f"{root}{folder}/{pattern.format(k=k + 1)}"] = Pic(start + k, kind, size)
    return found


def in_splits(
    names: tuple[str, ...],
    folders: Mapping[str, str | tuple[str, str]],
    n: int = 8,
    root: str = "",
    after: bool = False,
) -> Files:
    """Return `side` in each split, or with the splits in each folder."""
    found: Files = {}
    for i, split in enumerate(names):
        if after:
            folders_ = {f"{folder}/{split}": how for folder, how in folders.items()}
            found |= side(folders_, n, root, 100 * i)
        else:
            found |= side(folders, n, f"{root}{split}/", 100 * i)
    return found


def plain(
    folder: str, n: int = 8, pattern: str = "{k:04}.jpg", start: int = 0, kind: str = "photo"
) -> Files:
    """Return a folder of pictures that have nothing in common; "" is the top."""
    root = f"{folder}/" if folder else ""
    return {root + pattern.format(k=k + 1): Pic(start + k, kind) for k in range(n)}


def texts(pattern: str, text: str, n: int = 8) -> Files:
    return {pattern.format(k=k + 1): text for k in range(n)}


def refused(group: str, tree: Tree, says: str = "", archive: str = "") -> Layout:
    return Layout(group, tree, "refused", says=says, archive=archive)


def masks(tree: Tree, count: int, says: str = "", archive: str = "") -> Layout:
    """Return a layout that must be read as images and masks."""
    return Layout("segmentation", tree, "masks", says=says, count=count, archive=archive)


def maybe_masks(tree: Tree, count: int, says: str = "", archive: str = "") -> Layout:
    """Return a layout that is images and masks, or is refused: never anything else."""
    return Layout("segmentation", tree, "masks/refused", says=says, count=count, archive=archive)


JPG, PNG = "{k:04}.jpg", "{k:04}.png"
PHOTO, MASK = ("photo", JPG), ("binary", PNG)

SEGMENTATION: dict[str, Layout] = {
    "CVC-ClinicDB": maybe_masks(side({"Original": "photo", "Ground Truth": "binary"}), 8, "Ground Truth"),
    "CVC-ClinicDB, .tif": maybe_masks(side({"Original": ("photo", "{k}.tif"), "Ground Truth": ("binary", "{k}.tif")}), 8, "Ground Truth"),
    "CVC-ClinicDB (Kaggle, PNG and TIF)": maybe_masks(
        side({"PNG/Original": ("photo", "{k}.png"), "PNG/Ground Truth": ("binary", "{k}.png"),
              "TIF/Original": ("photo", "{k}.tif"), "TIF/Ground Truth": ("binary", "{k}.tif")})
        | {"metadata.csv": "sequence_id,frame_id,png_image_path\n1,1,PNG/Original/1.png\n"}, 8),
    "CVC-ColonDB: images, masks": masks(side({"images": ("photo", "{k}.png"), "masks": ("binary", "{k}.png")}), 8),
    "DUTS-TR": maybe_masks(side({"DUTS-TR-Image": PHOTO, "DUTS-TR-Mask": MASK}), 8, "DUTS-TR-Mask"),
    "DUTS, both parts": maybe_masks(
        side({"DUTS-TR/DUTS-TR-Image": PHOTO, "DUTS-TR/DUTS-TR-Mask": MASK})
        | side({"DUTS-TE/DUTS-TE-Image": PHOTO, "DUTS-TE/DUTS-TE-Mask": MASK}, start=100), 16, "DUTS-TE"),
    "mmsegmentation: img_dir, ann_dir": masks(in_splits(("train", "val"), {"img_dir": PHOTO, "ann_dir": ("ids", PNG)}, after=True), 16),
    "mmsegmentation, without splits": masks(side({"img_dir": PHOTO, "ann_dir": ("ids", PNG)}), 8),
    "LoveDA, one domain: images_png, masks_png": masks(side({"images_png": ("photo", "{k}.png"), "masks_png": ("ids", "{k}.png")}), 8),
    "LoveDA": maybe_masks(
        {name: pic for i, place in enumerate(("Train/Rural", "Train/Urban", "Val/Rural", "Val/Urban"))
         for name, pic in side({"images_png": ("photo", "{k}.png"), "masks_png": ("ids", "{k}.png")}, 4, f"{place}/", 100 * i).items()}, 16),
    "Penn-Fudan: PNGImages, PedMasks": masks(
        side({"PNGImages": ("photo", "FudanPed{k:05}.png"), "PedMasks": ("ids", "FudanPed{k:05}_mask.png")}), 8),
    "Penn-Fudan, whole": maybe_masks(
        side({"PennFudanPed/PNGImages": ("photo", "FudanPed{k:05}.png"), "PennFudanPed/PedMasks": ("ids", "FudanPed{k:05}_mask.png")})
        | texts("PennFudanPed/Annotation/FudanPed{k:05}.txt", "# Compatible with PASCAL Annotation Version 1.00\n")
        | {"PennFudanPed/added-object-list.txt": "FudanPed00001 1\n", "PennFudanPed/readme.txt": "1. Directory structure\n"}, 8),
    "DRIVE": Layout(
        "segmentation",
        side({"training/images": ("photo", "{k}_training.tif"), "training/1st_manual": ("binary", "{k}_manual1.gif"), "training/mask": ("fov", "{k}_training_mask.gif")})
        | side({"test/images": ("photo", "{k}_test.tif"), "test/1st_manual": ("binary", "{k}_manual1.gif"), "test/mask": ("fov", "{k}_test_mask.gif")}, start=100),
        "masks/refused", says="1st_manual", count=16),
    "DRIVE, training only": Layout(
        "segmentation",
        side({"images": ("photo", "{k}_training.tif"), "1st_manual": ("binary", "{k}_manual1.gif"), "mask": ("fov", "{k}_training_mask.gif")}),
        "masks/refused", says="1st_manual", count=8),
    "1st_manual next to images": masks(side({"images": ("photo", "{k}_training.png"), "1st_manual": ("binary", "{k}_manual1.png")}), 8),
    "HRF": Layout(
        "segmentation",
        side({"images": ("photo", "{k:02}_dr.JPG"), "manual1": ("binary", "{k:02}_dr.tif"), "mask": ("fov", "{k:02}_dr_mask.tif")}),
        "masks/refused", says="manual1", count=8),
    "manual1 next to images": masks(side({"images": ("photo", "{k:02}_h.jpg"), "manual1": ("binary", "{k:02}_h.tif")}), 8),
    "STARE": maybe_masks(side({"stare-images": ("photo", "im{k:04}.ppm"), "labels-ah": ("binary", "im{k:04}.ah.ppm")}), 8, "labels-ah"),
    "CHASE_DB1": Layout(
        "segmentation",
        {f"Image_{k:02}{eye}{end}": Pic(2 * k + (eye == "R"), kind) for k in range(1, 7) for eye in "LR"
         for end, kind in ((".jpg", "photo"), ("_1stHO.png", "binary"), ("_2ndHO.png", "binary"))},
        "masks/refused", says="1stHO", count=12),
    "MSRA10K: picture and mask of one stem": Layout(
        "segmentation",
        {f"MSRA10K_Imgs_GT/Imgs/{k}.{end}": Pic(k, kind) for k in range(8) for end, kind in (("jpg", "photo"), ("png", "binary"))}
        | {"MSRA10K_Imgs_GT/Readme.txt": "MSRA10K\n"},
        "masks/refused", count=8),
    "ECSSD: images, ground_truth_mask": maybe_masks(side({"images": PHOTO, "ground_truth_mask": MASK}), 8),
    "HKU-IS: imgs, gt": masks(side({"imgs": ("photo", PNG), "gt": MASK}), 8),
    "COD10K: Imgs, GT, Edge": maybe_masks(side({"TrainDataset/Imgs": PHOTO, "TrainDataset/GT": MASK, "TrainDataset/Edge": ("edges", PNG)}), 8),
    "BUSI: classes next to masks": Layout(
        "segmentation",
        {f"Dataset_BUSI_with_GT/{c}/{c} ({k}){end}.png": Pic(40 * i + k, kind) for i, c in enumerate(("benign", "malignant", "normal"))
         for k in range(1, 5) for end, kind in (("", "photo"), ("_mask", "binary"))},
        "masks/refused", says="_mask", count=12, labels={"benign (1)": "benign", "normal (2)": "normal"}),
    "COVID-19 Radiography: class/images, class/masks": refused(
        "segmentation",
        {name: pic for i, c in enumerate(("COVID", "Normal", "Viral Pneumonia"))
         for name, pic in side({f"{c}/images": (("photo"), f"{c}-{{k}}.png"), f"{c}/masks": ("binary", f"{c}-{{k}}.png")}, 4, "", 40 * i).items()}, "masks"),
    "COVID-19 Radiography with tables": refused(
        "segmentation",
        {name: pic for i, c in enumerate(("COVID", "Normal"))
         for name, pic in side({f"{c}/images": (("photo"), f"{c}-{{k}}.png"), f"{c}/masks": ("binary", f"{c}-{{k}}.png")}, 4, "", 40 * i).items()}
        | {"COVID.metadata.xlsx": b"PK\3\4" + bytes(40), "README.md.txt": "COVID\n"}, "masks"),
    "KITTI semantics": maybe_masks(
        side({"training/image_2": ("photo", "{k:06}_10.png"), "training/semantic": ("ids", "{k:06}_10.png"),
              "training/semantic_rgb": ("colours", "{k:06}_10.png"), "training/instance": ("ids", "{k:06}_10.png")})
        | plain("testing/image_2", pattern="{k:06}_10.png", start=100), 8, "semantic"),
    "KITTI semantics, training only": maybe_masks(
        side({"image_2": ("photo", "{k:06}_10.png"), "semantic": ("ids", "{k:06}_10.png"), "semantic_rgb": ("colours", "{k:06}_10.png"), "instance": ("ids", "{k:06}_10.png")}), 8, "semantic"),
    "ISIC 2018, task 1": maybe_masks(
        side({"ISIC2018_Task1-2_Training_Input": ("photo", "ISIC_{k:07}.jpg"), "ISIC2018_Task1_Training_GroundTruth": ("binary", "ISIC_{k:07}_segmentation.png")})
        | {"ISIC2018_Task1-2_Training_Input/LICENSE.txt": "CC-0"}, 8, "GroundTruth"),
    "Massachusetts roads": maybe_masks(
        {name: pic for i, s in enumerate(("train", "val", "test")) for name, pic in side({f"tiff/{s}": ("photo", "{k}_15.tiff"), f"tiff/{s}_labels": ("binary", "{k}_15.tif")}, 8, "", 100 * i).items()}, 24, "train_labels"),
    "CamVid (Kaggle)": maybe_masks(
        {name: pic for i, s in enumerate(("train", "val", "test")) for name, pic in side({s: ("photo", "0016E5_{k:05}.png"), f"{s}_labels": ("colours", "0016E5_{k:05}_L.png")}, 8, "", 100 * i).items()}
        | {"class_dict.csv": "name,r,g,b\nVoid,0,0,0\nCar,128,0,0\nRoad,0,128,0\nSky,128,128,0\n"}, 24),
    "Inria aerial": maybe_masks(
        in_splits(("train",), {"images": ("photo", "austin{k}.tif"), "gt": ("binary", "austin{k}.tif")}, root="AerialImageDataset/")
        | plain("AerialImageDataset/test/images", pattern="bellingham{k}.tif", start=300), 8),
    "Potsdam: Images, Labels": maybe_masks(side({"Images": ("photo", "top_potsdam_{k}_10_RGB.png"), "Labels": ("colours", "top_potsdam_{k}_10_label.png")}), 8, "Labels"),
    "Carvana (Kaggle): train, train_masks": maybe_masks(side({"train": ("photo", "a{k}_01.jpg"), "train_masks": ("binary", "a{k}_01_mask.gif")}), 8, "train_masks"),
    "Carvana with its tables": maybe_masks(
        side({"train": ("photo", "a{k}_01.jpg"), "train_masks": ("binary", "a{k}_01_mask.gif")}) | plain("test", pattern="b{k}_01.jpg", start=60)
        | {"train_masks.csv": "img,rle_mask\na1_01.jpg,1 2\n", "metadata.csv": "id,year,make\na1,2015,Acura\n"}, 8),
    "Data Science Bowl 2018: a folder for each picture": refused(
        "segmentation",
        {f"stage1_train/{h}/{part}/{h if part == 'images' else h + str(k)}.png": Pic(i, kind)
         for i, h in enumerate(("00071198d0", "003cee89357d", "00ae65c1c6", "0121d6759c"))
         for part, kind, count in (("images", "photo", 1), ("masks", "binary", 3)) for k in range(count)}, "masks"),
    "WHU buildings: Image, Mask in splits": maybe_masks(in_splits(("train", "val"), {"Image": ("photo", "{k}.tif"), "Mask": ("binary", "{k}.tif")}), 16, "Mask"),
    "DeepGlobe roads: _sat, _mask in one folder": maybe_masks(
        {f"train/{k}{end}": Pic(k, kind) for k in range(1, 9) for end, kind in (("_sat.jpg", "photo"), ("_mask.png", "binary"))}, 8),
    "TikTok dancing: images, densepose, masks": maybe_masks(
        side({"TikTok_dataset/00001/images": ("photo", PNG), "TikTok_dataset/00001/masks": MASK, "TikTok_dataset/00001/densepose": ("colours", PNG)}), 8, "masks"),
    "AIM-500: original, mask, trimap": maybe_masks(side({"original": PHOTO, "mask": MASK, "trimap": ("ids", PNG)}), 8, "trimap"),
    "SBU shadows": maybe_masks(
        {name: pic for i, s in enumerate(("SBUTrain4KRecoveredSmall", "SBU-Test")) for name, pic in side({f"{s}/ShadowImages": PHOTO, f"{s}/ShadowMasks": MASK}, 8, "", 100 * i).items()}, 16, "ShadowMasks"),
    "ISTD: train_A, train_B, train_C": refused(
        "segmentation", {name: pic for i, s in enumerate(("train", "test")) for name, pic in side({f"{s}/{s}_A": "dark", f"{s}/{s}_B": "binary", f"{s}/{s}_C": "photo"}, 8, "ISTD_Dataset/", 100 * i).items()}, "train_B"),
    "VisA: Images, Masks and image_anno.csv": refused(
        "segmentation",
        side({"candle/Data/Images/Anomaly": ("photo", "{k:03}.JPG"), "candle/Data/Masks/Anomaly": ("binary", "{k:03}.png")}) | plain("candle/Data/Images/Normal", start=90)
        | {"candle/image_anno.csv": "image,label,mask\ncandle/Data/Images/Normal/0001.jpg,normal,\n"}, "image_anno.csv|[Mm]ask"),
    "MVTec LOCO: validation, numbered masks": Layout(
        "segmentation",
        plain("breakfast_box/train/good", pattern="{k:03}.png") | plain("breakfast_box/validation/good", 3, "{k:03}.png", 100)
        | plain("breakfast_box/test/good", 3, "{k:03}.png", 200) | plain("breakfast_box/test/logical_anomalies", 4, "{k:03}.png", 300)
        | {f"breakfast_box/ground_truth/logical_anomalies/{k:03}/000.png": Pic(299 + k, "binary") for k in range(1, 5)}
        | {"breakfast_box/defects_config.json": "[]"},
        "mvtec/refused"),
    "CelebAMask-HQ": refused(
        "segmentation",
        plain("CelebA-HQ-img", pattern="{k}.jpg") | {f"CelebAMask-HQ-mask-anno/0/{k:05}_{part}.png": Pic(k - 1, "binary") for k in range(1, 9) for part in ("hair", "nose")}
        | {"CelebA-HQ-to-CelebA-mapping.txt": "idx orig_idx orig_file\n1 119613 119614.jpg\n"}, "mapping|mask"),
    "FSS-1000: pictures and masks in class folders": Layout(
        "segmentation",
        {f"{c}/{k}.{end}": Pic(40 * i + k, kind) for i, c in enumerate(("ab_wheel", "abacus", "airliner")) for k in range(1, 9) for end, kind in (("jpg", "photo"), ("png", "binary"))},
        "masks/refused", count=24),
    "Semantic drone": maybe_masks(
        side({"dataset/semantic_drone_dataset/original_images": ("photo", "{k:03}.jpg"), "dataset/semantic_drone_dataset/label_images_semantic": ("ids", "{k:03}.png")})
        | side({"RGB_color_image_masks/RGB_color_image_masks": ("colours", "{k:03}.png")}), 8, "label_images_semantic"),
    "NuInsSeg: tissue images, mask binary": maybe_masks(
        {name: pic for i, c in enumerate(("human bladder", "mouse heart")) for name, pic in
         side({f"{c}/tissue images": ("photo", "{k:02}.png"), f"{c}/mask binary": ("binary", "{k:02}.png"), f"{c}/label masks": ("ids", "{k:02}.tif")}, 6, "", 40 * i).items()}, 12, "mask binary"),
    "Freiburg forest: rgb, nir_gray, GT_color": refused(
        "segmentation", in_splits(("train", "test"), {"rgb": ("photo", "b{k}_Clipped.jpg"), "nir_gray": ("gray", "b{k}.tif"), "GT_color": ("colours", "b{k}_mask.png")}), "GT_color"),
    "Dubai: tiles of images and masks": maybe_masks(
        {name: pic for t in range(1, 4) for name, pic in side({f"Tile {t}/images": ("photo", "image_part_{k:03}.jpg"), f"Tile {t}/masks": ("colours", "image_part_{k:03}.png")}, 6, "", 40 * t).items()}
        | {"classes.json": '{"classes": [{"title": "Water", "color": "#50E3C2"}]}'}, 18, "masks"),
    "lungs: CXR_png, masks, ClinicalReadings": maybe_masks(
        side({"CXR_png": ("photo", "MCUCXR_{k:04}_0.png"), "masks": ("binary", "MCUCXR_{k:04}_0.png")}) | texts("ClinicalReadings/MCUCXR_{k:04}_0.txt", "Patient's Sex: F\n"), 8, "masks"),
    "LaPa: images, labels, landmarks": maybe_masks(
        in_splits(("train", "val"), {"images": ("photo", "{k}.jpg"), "labels": ("ids", "{k}.png")})
        | {f"{s}/landmarks/{k}.txt": "106\n1.0 2.0\n" for s in ("train", "val") for k in range(1, 9)}, 16, "labels"),
    "Oxford pets": Layout(
        "segmentation",
        side({"images": ("photo", "Abyssinian_{k}.jpg"), "annotations/trimaps": ("ids", "Abyssinian_{k}.png")})
        | {"annotations/list.txt": "#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\n", "annotations/trainval.txt": "Abyssinian_1 1 1 1\n", "annotations/README": "pets"},
        "masks/manifest/refused"),
    "DAVIS: a folder for each clip": Layout(
        "segmentation",
        {f"{part}/480p/{clip}/{k:05}.{end}": Pic(40 * i, kind, (48, 36), k) for i, clip in enumerate(("bear", "camel")) for k in range(6)
         for part, end, kind in (("JPEGImages", "jpg", "photo"), ("Annotations", "png", "palette"))}
        | {"ImageSets/2017/train.txt": "bear\n", "ImageSets/2017/val.txt": "camel\n"}, "masks/refused", says="Annotations"),
    "clips of frames and masks: bear/frames, bear/masks": maybe_masks(
        {f"{clip}/{part}/{k:05}.{end}": Pic(40 * i, kind, (48, 36), k) for i, clip in enumerate(("bear", "camel")) for k in range(6)
         for part, end, kind in (("frames", "jpg", "photo"), ("masks", "png", "binary"))}, 12, "masks"),
    "unusual names: photos_in, photos_seg": maybe_masks(side({"photos_in": PHOTO, "photos_seg": MASK}), 8, "photos_seg"),
    "unusual names: scans, tumours": maybe_masks(side({"scans": ("photo", PNG), "tumours": MASK}), 8, "tumours"),
    "unusual names: x, y": maybe_masks(side({"x": ("photo", PNG), "y": MASK}), 8, ""),
    "unusual names: 1, 2": maybe_masks(side({"1": ("photo", PNG), "2": MASK}), 8, ""),
    "unusual names: Bilder, Masken": maybe_masks(side({"Bilder": ("photo", PNG), "Masken": ("ids", PNG)}), 8, "Masken"),
    "unusual names: src, lbl in splits": maybe_masks(in_splits(("train", "val"), {"src": PHOTO, "lbl": ("colours", PNG)}), 16, "lbl"),
    "train, train_mask, val, val_mask": maybe_masks(
        {name: pic for i, s in enumerate(("train", "val")) for name, pic in side({s: PHOTO, f"{s}_mask": MASK}, 8, "", 100 * i).items()}, 16, "train_mask"),
    "trainx, trainy, testx, testy": maybe_masks(
        {name: pic for i, s in enumerate(("train", "test")) for name, pic in side({f"{s}x": ("photo", "X_img_{k}.png"), f"{s}y": ("binary", "Y_img_{k}.png")}, 8, "", 100 * i).items()}, 16, "trainx"),
    "satellite: ortho, dsm, labels": refused("segmentation", side({"ortho": ("photo", PNG), "dsm": ("depth", PNG), "labels": ("ids", PNG)}), "labels"),
    "image and label of one folder, numbered": maybe_masks(
        {f"{k:03}_{part}.png": Pic(k, kind) for k in range(8) for part, kind in (("image", "photo"), ("label", "ids"))}, 8),
    "Supervisely persons": refused(
        "segmentation",
        plain("ds1/img", pattern="pexels-{k}.png") | texts("ds1/ann/pexels-{k}.png.json", '{"size": {"height": 36, "width": 48}, "tags": [], "objects": []}')
        | {"meta.json": '{"classes": [{"title": "person", "shape": "bitmap", "color": "#FF0000"}], "tags": []}'}, "recipe|ann|json"),
}  # fmt: skip

_FRAMES = {
    f"train/GOPR0372_07_0{c}/{part}/{k:06}.png": Pic(40 * c, kind, (48, 36), k)
    for c in range(2)
    for k in range(8)
    for part, kind in (("blur", "blur"), ("blur_gamma", "blur"), ("sharp", "photo"))
}
LOL = side({"low": "dark", "high": "photo"})

PAIRS: dict[str, Layout] = {
    # -- deblurring, denoising, light, rain, haze, water, size
    "GoPro": refused("pairs", _FRAMES, "blur"),
    "GoPro, train and test of blur and sharp": refused("pairs", in_splits(("train", "test"), {"blur": "blur", "sharp": "photo"}), "sharp"),
    "GoPro, flat: blur, sharp": refused("pairs", side({"blur": "blur", "sharp": "photo"}), "sharp"),
    "RealBlur: blurred and sharp names": refused("pairs", side({"blur": ("blur", "blur_{k}.png"), "gt": ("photo", "gt_{k}.png")}), "gt"),
    "blur dataset (Kaggle): three of one scene": refused(
        "pairs", side({"sharp": ("photo", "{k}_HONOR-7X_S.jpg"), "motion_blurred": ("blur", "{k}_HONOR-7X_M.jpg"), "defocused_blurred": ("blur", "{k}_HONOR-7X_F.jpg")}), "sharp"),
    "SIDD": refused(
        "pairs", {f"Data/{k:04}_001_S6_00100/{kind}_SRGB_010.PNG": Pic(k, how) for k in range(1, 9) for kind, how in (("NOISY", "noise"), ("GT", "photo"))}, "NOISY"),
    "SIDD, two folders": refused("pairs", side({"NOISY": "noise", "GT": "photo"}), "NOISY"),
    "SIDD, input and groundtruth in splits": refused("pairs", in_splits(("train", "val"), {"input": "noise", "groundtruth": "photo"}), "groundtruth"),
    "clean, noisy": refused("pairs", side({"clean": "photo", "noisy": "noise"}), "noisy"),
    "clean, noisy, JPEG and names that end so": refused("pairs", side({"clean": ("photo", "{k}_clean.jpg"), "noisy": ("noise", "{k}_noisy.jpg")}), "noisy"),
    "dirty documents (Kaggle)": refused(
        "pairs", side({"train": ("noise", "{k}.png"), "train_cleaned": ("photo", "{k}.png")}) | plain("test", pattern="{k}.png", start=300, kind="noise") | {"sampleSubmission.csv": "id,value\n1_1_1,1\n"}, "train_cleaned"),
    "dirty documents, three folders": refused(
        "pairs", side({"train": ("noise", "{k}.png"), "train_cleaned": ("photo", "{k}.png")}) | plain("test", pattern="{k}.png", start=300, kind="noise"), "train_cleaned"),
    "DIV2K HR": Layout(
        "pairs", plain("DIV2K_train_HR", pattern="{k:04}.png") | plain("DIV2K_valid_HR", pattern="{k:04}.png", start=800), "flat/refused", says="DIV2K_valid_HR", count=16),
    "DIV2K HR (Kaggle, doubled folders)": Layout(
        "pairs", plain("DIV2K_train_HR/DIV2K_train_HR", pattern="{k:04}.png") | plain("DIV2K_valid_HR/DIV2K_valid_HR", pattern="{k:04}.png", start=800), "flat/refused", says="DIV2K_valid_HR", count=16),
    "DIV2K HR and LR": refused("pairs", side({"DIV2K_train_HR": "photo", "DIV2K_train_LR_bicubic/X2": ("half", "{k:04}x2.png")}), "LR_bicubic"),
    "HR, LR of the same names": refused("pairs", side({"HR": "photo", "LR": "half"}), "LR"),
    "train_HR, train_LR, val_HR, val_LR": refused(
        "pairs", {name: pic for i, s in enumerate(("train", "val")) for name, pic in side({f"{s}_HR": "photo", f"{s}_LR": "half"}, 8, "", 100 * i).items()}, "train_LR"),
    "super resolution (Kaggle): low_res, high_res": refused("pairs", in_splits(("train", "val"), {"high_res": ("photo", "{k}.png"), "low_res": ("half", "{k}.png")}, root="dataset/"), "low_res"),
    "Set5: GTmod12, LRbicx2": refused("pairs", side({"GTmod12": ("photo", "{k}.png"), "LRbicx2": ("half", "{k}.png"), "original": ("photo", "{k}.png")}), "LRbicx2"),
    "Urban100: image_SRF_2 of both": refused("pairs", {f"image_SRF_2/img_{k:03}_SRF_2_{n}.png": Pic(k, how) for k in range(1, 9) for n, how in (("HR", "photo"), ("LR", "half"))}, ""),
    "REDS": refused(
        "pairs", {f"train/{part}/{c:03}/{k:08}.png": Pic(40 * c, how, (48, 36), k) for c in range(3) for k in range(6) for part, how in (("train_sharp", "photo"), ("train_blur", "blur"))}, "train_blur"),
    "REDS, one split": refused(
        "pairs", {f"{part}/{c:03}/{k:08}.png": Pic(40 * c, how, (48, 36), k) for c in range(3) for k in range(6) for part, how in (("train_sharp", "photo"), ("train_blur", "blur"))}, "train_blur"),
    "LOL": refused("pairs", LOL, "low"),
    "LOL, our485 and eval15": refused("pairs", side({"low": "dark", "high": "photo"}, 8, "our485/") | side({"low": "dark", "high": "photo"}, 4, "eval15/", 100), "our485|low"),
    "LOL (Kaggle), wrapped": refused("pairs", side({"low": "dark", "high": "photo"}, 8, "lol_dataset/our485/") | side({"low": "dark", "high": "photo"}, 4, "lol_dataset/eval15/", 100), "our485|low"),
    "LOL-v2: Low, Normal": refused("pairs", in_splits(("Train", "Test"), {"Low": ("dark", "low{k:05}.png"), "Normal": ("photo", "normal{k:05}.png")}, root="Real_captured/"), "Normal"),
    "MIT FiveK: input, expertC": refused("pairs", side({"input": ("dark", "a{k:04}.jpg"), "expertC": ("photo", "a{k:04}.jpg")}), "expertC"),
    "RAISE: pictures and a table": Layout("pairs", plain("RAISE_1k", pattern="r{k:08}t.png") | {"RAISE_1k.csv": "File,NEF,TIFF,Device\nr00000001t,http://a,http://b,Nikon D90\n"}, "manifest/refused", says="RAISE_1k.csv"),
    "Rain100: rain, norain": refused("pairs", side({"rain": ("rain", "norain-{k:03}.png"), "norain": ("photo", "norain-{k:03}.png")}), "norain"),
    "Rain100L: rainy and its pictures above": refused("pairs", side({"rainy": ("rain", "rain-{k:03}.png")}) | plain("", pattern="norain-{k:03}.png"), "rainy"),
    "Rain100H: rain/rain-001, norain/norain-001": refused("pairs", side({"rain": ("rain", "rain-{k:03}.png"), "norain": ("photo", "norain-{k:03}.png")}), "norain"),
    "Rain1400: rainy_image of many, ground_truth": refused(
        "pairs", {f"ground_truth/{k}.jpg": Pic(k) for k in range(1, 9)} | {f"rainy_image/{k}_{j}.jpg": Pic(k, "rain" if j < 3 else "haze") for k in range(1, 9) for j in range(1, 4)}, "ground_truth"),
    "RainDS: data, gt": refused("pairs", side({"train/data": ("rain", "{k}_rain.png"), "train/gt": ("photo", "{k}_clean.png")}), "gt"),
    "Snow100K: synthetic, gt, mask": refused("pairs", side({"synthetic": ("rain", "city_{k:05}.jpg"), "gt": ("photo", "city_{k:05}.jpg"), "mask": ("binary", "city_{k:05}.jpg")}), "synthetic|mask"),
    "UIEB: raw-890, reference-890": refused("pairs", side({"raw-890": ("haze", "{k}_img_.png"), "reference-890": ("photo", "{k}_img_.png")}), "reference-890"),
    "EUVP: trainA, trainB, validation": refused("pairs", side({"Paired/underwater_dark/trainA": "dark", "Paired/underwater_dark/trainB": "photo"}) | plain("Paired/underwater_dark/validation", start=70), "trainA"),
    "RESIDE: hazy of many, clear": refused(
        "pairs", {f"clear/{k}.png": Pic(k) for k in range(1, 9)} | {f"hazy/{k}_{j}_0.9{j}.png": Pic(k, "haze" if j < 2 else "blur") for k in range(1, 9) for j in range(1, 3)}, "hazy"),
    "O-HAZE: hazy, GT": refused("pairs", side({"hazy": ("haze", "{k:02}_outdoor_hazy.jpg"), "GT": ("photo", "{k:02}_outdoor_GT.jpg")}), "hazy"),
    "hazy, GT of the same names": refused("pairs", side({"hazy": "haze", "GT": "photo"}), "hazy"),
    "dehazing: haze_images, original_images": refused("pairs", side({"haze_images": ("haze", "{k:02}.jpg"), "original_images": ("photo", "{k:02}.jpg")}), "haze_images"),
    "DPED: iphone, canon": refused("pairs", side({"train/iphone": ("warm", "{k}.jpg"), "train/canon": ("photo", "{k}.jpg")}), "iphone"),
    "demoire: source, target in splits": refused("pairs", in_splits(("train", "test"), {"source": ("rain", "image_test_part001_{k:08}.png"), "target": ("photo", "image_test_part001_{k:08}.png")}), "target"),
    "watermarks: watermark, no-watermark of the same": refused("pairs", in_splits(("train", "valid"), {"watermark": ("rain", JPG), "no-watermark": ("photo", JPG)}), "no-watermark"),
    "shadows: shadow, shadow_free": refused("pairs", side({"shadow": "dark", "shadow_free": "photo"}), "shadow_free"),
    "reflection: transmission_layer, blended": refused("pairs", side({"blended": ("haze", "{k}.jpg"), "transmission_layer": ("photo", "{k}.jpg")}), "transmission_layer"),
    "before, after": refused("pairs", side({"before": ("dark", JPG), "after": ("photo", JPG)}), "after"),
    "damaged, restored: no usual word": refused("pairs", side({"damaged": ("noise", PNG), "restored": ("photo", PNG)}), "restored"),
    "0, 1: pairs under numbers": refused("pairs", side({"0": ("noise", PNG), "1": ("photo", PNG)}), ""),
    "compressed: q10, q90": refused("pairs", side({"q10": ("blur", JPG), "q90": ("photo", JPG)}), "q10"),
    "frames of one clip: noisy, clean": refused(
        "pairs", {f"{part}/frame_{k:04}.png": Pic(8, kind, (48, 36), k) for k in range(10) for part, kind in (("noisy", "noise"), ("clean", "photo"))}, "noisy"),
    # -- translation
    "CycleGAN": refused(
        "pairs", plain("trainA") | plain("trainB", start=100) | plain("testA", start=200) | plain("testB", start=300), "trainA"),
    "horse2zebra, wrapped": refused(
        "pairs", plain("horse2zebra/trainA", pattern="n02381460_{k}.jpg") | plain("horse2zebra/trainB", start=100, pattern="n02391049_{k}.jpg") | plain("horse2zebra/testA", start=200) | plain("horse2zebra/testB", start=300), "trainA"),
    "horse2zebra (Kaggle) with its table": refused(
        "pairs", plain("trainA") | plain("trainB", start=100) | plain("testA", start=200) | plain("testB", start=300) | {"metadata.csv": "image_id,domain,split\n0001,A (Horse),train\n"}, "metadata.csv|trainA"),
    "trainA, trainB only": refused("pairs", plain("trainA") | plain("trainB", start=100), "trainA"),
    "train_A, train_B of the same": refused("pairs", side({"train_A": "photo", "train_B": "warm"}), "train_A"),
    "pix2pix: A/train, B/train": refused("pairs", in_splits(("train", "val"), {"A": PHOTO, "B": ("edges", JPG)}, after=True), "A"),
    "pix2pix: facades side by side": Layout("pairs", {k: v for i, s in enumerate(("train", "val", "test")) for k, v in plain(f"facades/{s}", 6, "{k}.jpg", 100 * i, "pair").items()}, "flat", count=18),
    "pix2pix: maps, train and val": Layout("pairs", {k: v for i, s in enumerate(("train", "val")) for k, v in plain(s, 8, "{k}.jpg", 100 * i, "pair").items()}, "flat", count=16),
    "edges2shoes: _AB": Layout("pairs", {k: v for i, s in enumerate(("train", "val")) for k, v in plain(f"edges2shoes/{s}", 8, "{k}_AB.jpg", 100 * i, "pair").items()}, "flat", count=16),
    "pix2pix (Kaggle): several sets": refused(
        "pairs", {k: v for j, d in enumerate(("cityscapes", "facades")) for i, s in enumerate(("train", "val")) for k, v in plain(f"{d}/{d}/{s}", 4, "{k}.jpg", 300 * j + 100 * i, "pair").items()}, "facades"),
    "monet2photo of tfrecords (Kaggle)": refused(
        "pairs", plain("monet_jpg") | plain("photo_jpg", start=100) | {"monet_tfrec/monet00-60.tfrec": bytes(40), "photo_tfrec/photo00-352.tfrec": bytes(40)}, "tfrec"),
    "colour, gray": refused("pairs", side({"color": ("photo", "{k}.jpg"), "gray": ("gray", "{k}.jpg")}), "gray"),
    "landscapes (Kaggle): landscape Images/color, gray": refused("pairs", side({"landscape Images/color": ("photo", "{k}.jpg"), "landscape Images/gray": ("gray", "{k}.jpg")}), "gray"),
    "sketches: photos, sketches": refused("pairs", side({"photos": ("photo", JPG), "sketches": ("edges", JPG)}), "sketches"),
    "CUHK faces: photo, sketch with endings": refused("pairs", side({"photo": ("photo", "f-{k:03}-01.jpg"), "sketch": ("edges", "f-{k:03}-01-sz1.jpg")}), "sketch"),
    "day, night of one place": refused("pairs", side({"day": PHOTO, "night": ("night", JPG)}), "night"),
    "visible, infrared (LLVIP)": refused("pairs", in_splits(("train", "test"), {"visible": ("photo", "{k:06}.jpg"), "infrared": ("gray", "{k:06}.jpg")}, after=True), "infrared"),
    "RGB, NIR: country_rgb, country_nir": Layout("pairs", {f"{c}/{k:04}_{part}.png": Pic(40 * i + k, how) for i, c in enumerate(("country", "field", "forest")) for k in range(8) for part, how in (("rgb", "photo"), ("nir", "gray"))}, "folder/refused"),
    "multispectral: R, G, B, NIR": refused("pairs", side({"R": "gray", "G": "gray", "B": "gray", "NIR": "dark"}), "NIR"),
    # -- change detection
    "LEVIR-CD": refused("pairs", in_splits(("train", "val", "test"), {"A": ("photo", "x_{k}.png"), "B": ("changed", "x_{k}.png"), "label": ("binary", "x_{k}.png")}), "label"),
    "LEVIR-CD, one split": refused("pairs", side({"A": "photo", "B": "changed", "label": "binary"}), "label"),
    "LEVIR-CD, A and B only": refused("pairs", side({"A": "photo", "B": "changed"}), ""),
    "LEVIR-CD of open-cd: A, B, label, list": refused("pairs", side({"A": "photo", "B": "changed", "label": "binary"}) | {"list/train.txt": "0001.png\n", "list/val.txt": "0002.png\n"}, "label"),
    "WHU-CD: A, B, OUT": refused("pairs", side({"A": "photo", "B": "changed", "OUT": "binary"}), "OUT"),
    "S2Looking: Image1, Image2, label": refused("pairs", in_splits(("train", "val"), {"Image1": ("photo", "{k}.png"), "Image2": ("changed", "{k}.png"), "label": ("binary", "{k}.png"), "label1": ("colours", "{k}.png")}), "Image1|label"),
    "SYSU-CD: time1, time2, label": refused("pairs", in_splits(("train", "val"), {"time1": "photo", "time2": "changed", "label": "binary"}), "time1|label"),
    "DSIFN: t1, t2, mask": refused("pairs", in_splits(("train", "val"), {"t1": PHOTO, "t2": ("changed", JPG), "mask": MASK}), "t1|mask"),
    "xBD: pre and post": refused(
        "pairs", {f"train/images/guatemala_{k:08}_{when}_disaster.png": Pic(k, how) for k in range(8) for when, how in (("pre", "photo"), ("post", "changed"))}
        | {f"train/labels/guatemala_{k:08}_{when}_disaster.json": '{"features": {"lng_lat": [], "xy": []}}' for k in range(8) for when in ("pre", "post")}, "labels|json"),
    # -- depth and stereo
    "NYU v2 (Kaggle): RGB and depth in one folder": refused(
        "pairs", {f"nyu2_train/{room}_out/{k}.{end}": Pic(40 * i + k, how) for i, room in enumerate(("basement_0001a", "bedroom_0004", "cafe_0001b")) for k in range(1, 7) for end, how in (("jpg", "photo"), ("png", "depth"))}, "png"),
    "NYU v2 (Kaggle) with its tables": refused(
        "pairs", {f"data/nyu2_train/{room}_out/{k}.{end}": Pic(40 * i + k, how) for i, room in enumerate(("basement_0001a", "bedroom_0004")) for k in range(1, 7) for end, how in (("jpg", "photo"), ("png", "depth"))}
        | {f"data/nyu2_test/{k:05}_{end}.png": Pic(300 + k, how) for k in range(6) for end, how in (("colors", "photo"), ("depth", "depth"))}
        | {"data/nyu2_train.csv": "data/nyu2_train/basement_0001a_out/1.jpg,data/nyu2_train/basement_0001a_out/1.png\n", "data/nyu2_test.csv": "data/nyu2_test/00000_colors.png,data/nyu2_test/00000_depth.png\n"}, "nyu2_train"),
    "nyu2_test: _colors, _depth in one folder": refused("pairs", {f"nyu2_test/{k:05}_{end}.png": Pic(k, how) for k in range(8) for end, how in (("colors", "photo"), ("depth", "depth"))}, "depth|one folder"),
    "rgb, depth": refused("pairs", side({"rgb": ("photo", JPG), "depth": ("depth", PNG)}), "depth"),
    "rgb, depth with other stems (TUM)": refused(
        "pairs", {f"rgb/1305031102.{175304 + 33 * k}.png": Pic(3, "photo", (48, 36), k) for k in range(8)} | {f"depth/1305031102.{160407 + 33 * k}.png": Pic(3, "depth", (48, 36), k) for k in range(8)}
        | {"rgb.txt": "# color images\n1305031102.175304 rgb/1305031102.175304.png\n", "depth.txt": "# depth maps\n", "groundtruth.txt": "# tx ty tz\n"}, "rgb.txt|depth"),
    "image, depth in splits": refused("pairs", in_splits(("train", "test"), {"image": ("photo", JPG), "depth": ("depth", PNG)}), "depth"),
    "colors, disparity, no usual word": refused("pairs", side({"views": ("photo", JPG), "disparity": ("depth", PNG)}), "disparity"),
    "KITTI depth": refused(
        "pairs", {f"train/2011_09_26_drive_{c:04}_sync/proj_depth/{part}/image_0{cam}/{k:010}.png": Pic(40 * c, "depth", (48, 36), k) for c in (1, 2) for cam in (2, 3) for k in range(4) for part in ("groundtruth", "velodyne_raw")}
        | {f"raw/2011_09_26_drive_{c:04}_sync/image_0{cam}/data/{k:010}.png": Pic(40 * c, "photo", (48, 36), k) for c in (1, 2) for cam in (2, 3) for k in range(4)}, "train|depth"),
    "DIODE": refused(
        "pairs", {f"train/indoors/scene_00000/scan_0000{c}/{k:05}_indoors_000_010.png": Pic(9 * c + k) for c in (1, 2) for k in range(4)}
        | {f"train/indoors/scene_00000/scan_0000{c}/{k:05}_indoors_000_010_depth{m}.npy": b"\x93NUMPY\1\0" for c in (1, 2) for k in range(4) for m in ("", "_mask")}, "npy"),
    "stereo: left, right": refused("pairs", side({"left": "photo", "right": "right"}), "right"),
    "stereo: left, right, disparity": refused("pairs", side({"left": "photo", "right": "right", "disparity": "depth"}), "disparity"),
    "stereo in splits": refused("pairs", in_splits(("train", "val"), {"left": "photo", "right": "right"}), "right"),
    "stereo: image_2, image_3 (KITTI)": refused("pairs", in_splits(("training", "testing"), {"image_2": ("photo", "{k:06}.png"), "image_3": ("right", "{k:06}.png")}), "image_3|recipe"),
    "stereo: image_0, image_1": refused("pairs", side({"image_0": ("photo", "{k:06}.png"), "image_1": ("right", "{k:06}.png")}), "image_1"),
    "stereo: cam0, cam1 of a clip": refused("pairs", {f"{cam}/data/{k:08}.png": Pic(5, how, (48, 36), k) for k in range(8) for cam, how in (("cam0", "photo"), ("cam1", "right"))}, "cam1"),
    "Middlebury: im0, im1 in a folder for each scene": refused(
        "pairs", {f"{scene}/{name}.png": Pic(i, how) for i, scene in enumerate(("Adirondack", "Jadeplant", "Motorcycle")) for name, how in (("im0", "photo"), ("im1", "right"))}
        | {f"{scene}/calib.txt": "cam0=[1 0 0; 0 1 0; 0 0 1]\n" for scene in ("Adirondack", "Jadeplant", "Motorcycle")}, "calib.txt"),
    "Sintel: clean, final, flow": refused(
        "pairs", {f"training/{part}/{clip}/frame_{k:04}.png": Pic(40 * i, how, (48, 36), k) for i, clip in enumerate(("alley_1", "bamboo_1")) for k in range(1, 7) for part, how in (("clean", "photo"), ("final", "blur"))}
        | {f"training/flow/{clip}/frame_{k:04}.flo": b"PIEH" for clip in ("alley_1", "bamboo_1") for k in range(1, 7)}, "clean"),
    "Flying chairs: img1, img2, flow in one folder": refused(
        "pairs", {f"data/{k:05}_img{j}.ppm": Pic(k, how) for k in range(1, 9) for j, how in ((1, "photo"), (2, "right"))} | {f"data/{k:05}_flow.flo": b"PIEH" for k in range(1, 9)}, "flo"),
}  # fmt: skip

REID: dict[str, Layout] = {
    "Market-1501": refused(
        "re-identification", {f"{part}/{100 * j + i:04}_c1s1_{k:06}_00.jpg": Pic(200 * j + 20 * i + k) for j, part in enumerate(("bounding_box_train", "bounding_box_test", "query", "gt_bbox")) for i in range(4) for k in range(2)}
        | {"gt_query/0001_c1s1_001051_00_good.mat": b"MATLAB 5.0 MAT-file", "readme.txt": "Market-1501\n"}, "query"),
    "Market-1501, pictures only": refused(
        "re-identification", {f"{part}/{100 * j + i:04}_c1s1_{k:06}_00.jpg": Pic(200 * j + 20 * i + k) for j, part in enumerate(("bounding_box_train", "bounding_box_test", "query")) for i in range(4) for k in range(2)}, "query"),
    "DukeMTMC-reID, wrapped": refused(
        "re-identification", {f"DukeMTMC-reID/{part}/{100 * j + i:04}_c2_f{k:07}.jpg": Pic(200 * j + 20 * i + k) for j, part in enumerate(("bounding_box_train", "bounding_box_test", "query")) for i in range(4) for k in range(2)}, "query"),
    "MSMT17": Layout(
        "re-identification", {f"{s}/{i:04}/{i:04}_{k:03}_01_0303morning_0008_{k}.jpg": Pic(100 * j + 20 * i + k) for j, s in enumerate(("train", "test")) for i in range(3) for k in range(3)}
        | {"list_train.txt": "0000/0000_000_01_0303morning_0008_0.jpg 0\n", "list_query.txt": "0000/0000_000_01_0303morning_0008_0.jpg 0\n", "list_gallery.txt": "0001/0001_001_01_0303morning_0008_1.jpg 1\n", "list_val.txt": "0001/0001_001_01_0303morning_0008_1.jpg 1\n"},
        "manifest/refused", says="list_"),
    "VeRi-776": Layout(
        "re-identification", {f"{part}/{100 * j + i:04}_c001_{k:08}_0.jpg": Pic(200 * j + 20 * i + k) for j, part in enumerate(("image_train", "image_test", "image_query")) for i in range(4) for k in range(2)}
        | {"name_train.txt": "0000_c001_00000000_0.jpg\n", "train_label.xml": "<TrainingImages></TrainingImages>"}, "manifest/refused", says="image_query|name_train"),
    "VeRi-776, pictures only": refused(
        "re-identification", {f"{part}/{100 * j + i:04}_c001_{k:08}_0.jpg": Pic(200 * j + 20 * i + k) for j, part in enumerate(("image_train", "image_test", "image_query")) for i in range(4) for k in range(2)}, "image_query"),
    "query, gallery": refused("re-identification", plain("query", pattern="{k:04}_c1.jpg") | plain("gallery", pattern="{k:04}_c2.jpg", start=100), "gallery"),
    "probe, gallery": refused("re-identification", plain("probe", pattern="{k:04}.jpg") | {f"gallery/{k:04}.jpg": Pic(k - 1, "right") for k in range(1, 9)}, "gallery"),
    "CUHK03-NP: labeled, detected": refused(
        "re-identification", {f"{kind}/{part}/{i:04}_c1_{k}.png": Pic(600 * m + 200 * j + 20 * i + k) for m, kind in enumerate(("labeled", "detected")) for j, part in enumerate(("bounding_box_train", "bounding_box_test", "query")) for i in range(3) for k in range(2)}, "detected"),
    "LFW pairs: match, mismatch": refused("re-identification", {f"{part}/{k:04}_{j}.jpg": Pic(100 * i + 2 * k + j) for i, part in enumerate(("train", "test")) for k in range(6) for j in (0, 1)} | {"pairs.txt": "10\t300\nAbel_Pacheco\t1\t4\n"}, "pairs.txt"),
}  # fmt: skip

ANN_JSON = '{"description": "", "tags": [], "size": {"height": 36, "width": 48}, "objects": []}'
GEO = '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"image_id": "1.tif", "type_id": 73, "bounds_imcoords": "2,3,10,12"}, "geometry": null}]}'
YOLO_BOX = "0 0.5 0.5 0.25 0.5\n"
KITTI = "Car 0.00 0 -1.58 10.0 5.0 30.0 20.0 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"


def voc(name: str) -> str:
    return (
        f"<annotation><filename>{name}</filename><size><width>48</width><height>36</height>"
        "<depth>3</depth></size><object><name>dog</name><bndbox><xmin>3</xmin><ymin>4</ymin>"
        "<xmax>20</xmax><ymax>14</ymax></bndbox></object></annotation>"
    )


def coco(names: list[str], *, text_ids: bool = False) -> str:
    ids = [str(k) if text_ids else k for k in range(len(names))]
    return json.dumps(
        {
            "images": [
                {"id": k, "file_name": name, "width": 48, "height": 36}
                for k, name in zip(ids, names, strict=True)
            ],
            "annotations": [
                {
                    "id": 9 + int(k),
                    "image_id": k,
                    "category_id": 1,
                    "bbox": [2, 3, 10, 8],
                    "area": 80,
                    "iscrowd": 0,
                }
                for k in ids
            ],
            "categories": [{"id": 1, "name": "dog"}],
        }
    )


NAMES = [f"{k:04}.jpg" for k in range(1, 9)]
LABELS_AB = {"0001": "x", "0002": "y"}

ANNOTATIONS: dict[str, Layout] = {
    "Supervisely": refused("annotations", plain("ds0/img", pattern="{k}.jpg") | texts("ds0/ann/{k}.jpg.json", ANN_JSON) | {"meta.json": '{"classes": [{"title": "dog", "shape": "rectangle", "color": "#0F0"}], "tags": []}'}, "recipe|json"),
    "Supervisely, two sets": refused(
        "annotations", {k: v for d in ("train", "val") for k, v in (plain(f"{d}/img", pattern="{k}.jpg", start=100 * (d == "val")) | texts(d + "/ann/{k}.jpg.json", ANN_JSON)).items()} | {"meta.json": '{"classes": [], "tags": []}', "README.md": "x"}, "recipe|json"),
    "Supervisely without meta.json": refused("annotations", plain("img", pattern="{k}.jpg") | texts("ann/{k}.jpg.json", ANN_JSON), "json"),
    "xView": refused("annotations", plain("train_images", pattern="{k}.tif") | plain("val_images", pattern="{k}.tif", start=100) | {"xView_train.geojson": GEO}, "geojson"),
    "xView, labels in a folder": refused("annotations", plain("train_images/train_images", pattern="{k}.tif") | plain("val_images/val_images", pattern="{k}.tif", start=100) | {"train_labels/xView_train.geojson": GEO}, "geojson|train_labels"),
    "SpaceNet": refused("annotations", plain("RGB-PanSharpen", pattern="img{k}.tif") | texts("geojson/buildings/buildings_img{k}.geojson", GEO), "geojson"),
    "UTKFace in parts": refused("annotations", {f"part{p}/{20 + k}_{k % 2}_{k % 5}_2016121914092{p}.jpg": Pic(100 * p + k) for p in (1, 2, 3) for k in range(8)}, "part1"),
    "UTKFace, two folders": refused("annotations", {f"{d}/{20 + k}_{k % 2}_{k % 5}_201612191409{k:02}.jpg.chip.jpg": Pic(100 * p + k) for p, d in enumerate(("UTKFace", "crop_part1")) for k in range(8)}, "crop_part1"),
    "UTKFace": Layout("annotations", {f"UTKFace/{20 + k}_{k % 2}_{k % 5}_201612191409{k:02}.jpg.chip.jpg": Pic(k) for k in range(8)}, "flat/refused", count=8),
    "FFHQ": Layout("annotations", {f"{t:05}/{t + k:05}.png": Pic(t // 100 + k) for t in range(0, 5000, 1000) for k in range(6)}, "flat/refused", says="00000", count=30),
    "FFHQ, wrapped, with its list": Layout("annotations", {f"ffhq/images1024x1024/{t:05}/{t + k:05}.png": Pic(t // 100 + k) for t in range(0, 3000, 1000) for k in range(6)} | {"ffhq/ffhq-dataset-v2.json": '{"0": {"category": "training"}}', "ffhq/LICENSE.txt": "CC"}, "refused", says="ffhq-dataset-v2.json"),
    "CelebA-HQ, flat": Layout("annotations", plain("celeba_hq_256", pattern="{k:05}.jpg"), "flat/refused", count=8),
    "pictures numbered through folders of 4": Layout("annotations", {f"{k // 4:03}/{k:06}.jpg": Pic(k) for k in range(24)}, "flat/refused", count=24),
    "pictures by the start of their hash": Layout("annotations", {f"{h[:2]}/{h}.jpg": Pic(i) for i, h in enumerate(("0a1b2c3d4e5f", "0affee123456", "1b00c0ffee11", "1bdeadbeef22", "ff00ff00ff00", "ff1234567890"))}, "flat/refused", count=6),
    "pictures by date: 2021, 2022": Layout("annotations", {f"{y}/{m:02}/IMG_{y}{m:02}0{k}.jpg": Pic(300 * (y - 2020) + 20 * m + k) for y in (2021, 2022) for m in (1, 7) for k in range(1, 4)}, "flat/refused", count=12),
    "img2dataset, unpacked": refused(
        "annotations", {f"0000{s}/0000{s}{k:04}.{end}": content for s in range(2) for k in range(4) for end, content in (("jpg", Pic(40 * s + k)), ("txt", "a cat on a mat"), ("json", '{"caption": "a cat", "status": "success"}'))}
        | {f"0000{s}.parquet": b"PAR1PAR1" for s in range(2)} | {f"0000{s}_stats.json": '{"count": 4}' for s in range(2)}, "json|txt"),
    "img2dataset, pictures and captions": refused("annotations", {f"0000{s}/0000{s}{k:04}.{end}": content for s in range(2) for k in range(4) for end, content in (("jpg", Pic(40 * s + k)), ("txt", "a cat on a mat"))}, "txt"),
    "LoRA training: 10_cat with captions": refused("annotations", {f"10_cat/{k}.{end}": content for k in range(8) for end, content in (("jpg", Pic(k)), ("txt", "a cat on a mat"))}, "txt"),
    "UCF-101 frames: class/clip/frame": refused("annotations", {f"{c}/v_{c}_g01_c0{g}/frame{k:04}.jpg": Pic(100 * i + 20 * g, "photo", (48, 36), k) for i, c in enumerate(("Archery", "Biking")) for g in (1, 2) for k in range(6)}, "Archery"),
    "video frames: clip_0001": refused("annotations", {f"clip_{c:04}/frame_{k:05}.jpg": Pic(40 * c, "photo", (48, 36), k) for c in range(1, 5) for k in range(8)}, "clip_0001"),
    "video frames: frames/video1": refused("annotations", {f"frames/video{c}/{k:05}.jpg": Pic(40 * c, "photo", (48, 36), k) for c in range(1, 4) for k in range(8)}, "video1"),
    "Vimeo-90K: sequences/00001/0001/im1.png": refused("annotations", {f"sequences/0000{c}/000{s}/im{k}.png": Pic(40 * c + 9 * s, "photo", (48, 36), k) for c in (1, 2) for s in (1, 2) for k in range(1, 8)} | {"tri_trainlist.txt": "00001/0001\n", "tri_testlist.txt": "00002/0001\n"}, "tri_"),
    "MOT17": refused("annotations", {f"train/MOT17-0{c}-DPM/img1/{k:06}.jpg": Pic(40 * c, "photo", (48, 36), k) for c in (2, 4) for k in range(1, 7)} | {f"train/MOT17-0{c}-DPM/{name}": text for c in (2, 4) for name, text in (("gt/gt.txt", "1,1,10,20,5,6,1,1,1\n"), ("det/det.txt", "1,-1,10,20,5,6,0.9\n"), ("seqinfo.ini", "[Sequence]\nname=MOT17\n"))}, "gt.txt|seqinfo"),
    "VIA: via_region_data.json in splits": refused("annotations", {f"{s}/{k:04}.jpg": Pic(100 * i + k) for i, s in enumerate(("train", "val")) for k in range(6)} | {f"{s}/via_region_data.json": '{"0001.jpg1234": {"fileref": "", "size": 1234, "filename": "0001.jpg", "regions": {}}}' for s in ("train", "val")}, "via_region_data.json"),
    "KITTI detection": refused("detection", plain("training/image_2", pattern="{k:06}.png") | texts("training/label_2/{k:06}.txt", KITTI) | texts("training/calib/{k:06}.txt", "P0: 1 0 0\n") | plain("testing/image_2", pattern="{k:06}.png", start=90), "recipe|label_2"),
    "KITTI detection, two folders": refused("detection", plain("image_2", pattern="{k:06}.png") | texts("label_2/{k:06}.txt", KITTI), "recipe|label_2"),
    "VisDrone": refused(
        "detection", {k: v for i, s in enumerate(("train", "val")) for k, v in (plain(f"VisDrone2019-DET-{s}/images", start=90 * i) | texts(f"VisDrone2019-DET-{s}/annotations/{{k:04}}.txt", "2,3,10,12,1,4,0,0\n")).items()}, "recipe|annotations"),
    "VisDrone, one split": refused("detection", plain("images") | texts("annotations/{k:04}.txt", "2,3,10,12,1,4,0,0\n"), "recipe|annotations"),
    "DOTA": refused("detection", {k: v for i, s in enumerate(("train", "val")) for k, v in (plain(f"{s}/images", pattern="P{k:04}.png", start=90 * i) | texts(f"{s}/labelTxt/P{{k:04}}.txt", "imagesource:GoogleEarth\ngsd:0.14\n2 3 10 3 10 12 2 12 plane 0\n")).items()}, "recipe|labelTxt"),
    "DOTA, one split": refused("detection", plain("images", pattern="P{k:04}.png") | texts("labelTxt-v1.0/P{k:04}.txt", "imagesource:GoogleEarth\ngsd:0.14\n2 3 10 3 10 12 2 12 plane 0\n"), "recipe|labelTxt"),
    "BDD100K": refused(
        "detection", {k: v for i, s in enumerate(("train", "val")) for k, v in plain(f"images/100k/{s}", start=90 * i).items()} | {f"labels/det_20/det_{s}.json": json.dumps([{"name": name, "labels": [{"id": "0", "category": "car", "box2d": {"x1": 1, "y1": 2, "x2": 9, "y2": 9}}]} for name in NAMES]) for s in ("train", "val")}, "recipe|labels|det_"),
    "BDD100K, a list next to its pictures": refused("detection", plain("") | {"labels.json": json.dumps([{"name": name, "labels": [{"id": "0", "category": "car", "box2d": {"x1": 1, "y1": 2, "x2": 9, "y2": 9}}], "attributes": {"weather": "clear"}} for name in NAMES])}, "recipe|labels"),
    "Label Studio": refused(
        "detection", plain("upload/1", pattern="{k}-cat.jpg") | {"project-1-at-2024-01-01.json": json.dumps([{"id": k, "annotations": [{"id": k, "result": [{"type": "rectanglelabels", "value": {"x": 1, "y": 2, "width": 30, "height": 30, "rectanglelabels": ["Car"]}}]}], "data": {"image": f"/data/upload/1/{k}-cat.jpg"}} for k in range(1, 9)])}, "recipe|json"),
    "SageMaker": refused(
        "detection", plain("train") | {"output.manifest": "".join(json.dumps({"source-ref": f"s3://b/train/{name}", "boxes": {"image_size": [{"width": 48, "height": 36, "depth": 3}], "annotations": [{"class_id": 0, "left": 2, "top": 3, "width": 8, "height": 9}]}, "boxes-metadata": {"class-map": {"0": "dog"}}}) + "\n" for name in NAMES)}, "recipe|manifest"),
    "SageMaker: train, train_annotation": refused("detection", plain("train") | texts("train_annotation/{k:04}.json", '{"file": "0001.jpg", "image_size": [{"width": 48, "height": 36, "depth": 3}], "annotations": [], "categories": []}') | plain("validation", start=90), "recipe|train_annotation"),
    "SageMaker: .lst": refused("detection", plain("train") | {"train.lst": "".join(f"{k}\t0\ttrain/{name}\n" for k, name in enumerate(NAMES))}, "lst"),
    "ICDAR 2015": refused("detection", plain("ch4_training_images", pattern="img_{k}.jpg") | texts("ch4_training_localization_transcription_gt/gt_img_{k}.txt", "\ufeff2,3,10,3,10,12,2,12,Genaxis Theatre\n"), "gt_img_1|localization|txt"),
    "ICDAR, next to": refused("detection", plain("", pattern="img_{k}.jpg") | texts("gt_img_{k}.txt", '2, 3, 10, 12, "Tiredness"\n'), "gt_img_1|txt"),
    "CrowdHuman": refused("detection", plain("Images", pattern="273271,{k}.jpg") | {"annotation_train.odgt": '{"ID": "273271,1", "gtboxes": []}\n'}, "odgt"),
    "DIOR": Layout("detection", plain("JPEGImages-trainval", pattern="{k:05}.jpg") | {f"Annotations/Horizontal Bounding Boxes/{k:05}.xml": voc(f"{k:05}.jpg") for k in range(1, 9)} | {"ImageSets/Main/train.txt": "00001\n"}, "voc/voc_folders/refused", says="Annotations"),
    "NEU-DET": Layout("detection", {f"train/images/{c}/{c}_{k}.jpg": Pic(40 * i + k) for i, c in enumerate(("crazing", "patches")) for k in range(1, 5)} | {f"train/annotations/{c}_{k}.xml": voc(f"{c}_{k}.jpg") for c in ("crazing", "patches") for k in range(1, 5)}, "voc/voc_folders/refused", says="annotations"),
    "YOLO: images, labels, data.yaml": Layout("detection", in_splits(("train", "val"), {"images": PHOTO}, after=True) | {f"labels/{s}/{k:04}.txt": YOLO_BOX for s in ("train", "val") for k in range(1, 9)} | {"data.yaml": "train: images/train\nval: images/val\nnames: {0: cat}\n"}, "yolo", count=16),
    "YOLO without a YAML": Layout("detection", in_splits(("train", "val"), {"images": PHOTO}, after=True) | {f"labels/{s}/{k:04}.txt": YOLO_BOX for s in ("train", "val") for k in range(1, 9)}, "yolo/refused", says="labels", count=16),
    "YOLO without splits": Layout("detection", plain("images") | texts("labels/{k:04}.txt", YOLO_BOX), "yolo/refused", says="labels", count=8),
    "YOLO: texts next to the pictures": Layout("detection", plain("") | texts("{k:04}.txt", YOLO_BOX) | {"classes.txt": "cat\n"}, "yolo/refused", says="txt", count=8),
    "YOLO: texts next to them, no classes": Layout("detection", plain("obj") | texts("obj/{k:04}.txt", YOLO_BOX), "yolo/refused", says="txt", count=8),
    "YOLO in class folders": Layout("detection", {f"{c}/{k}.{e}": v for i, c in enumerate(("cat", "dog")) for k in range(6) for e, v in (("jpg", Pic(40 * i + k)), ("txt", YOLO_BOX))}, "yolo/refused", says="txt"),
    "LabelMe in class folders": Layout("detection", {f"{c}/{k}.{e}": v for i, c in enumerate(("cat", "dog")) for k in range(6) for e, v in (("jpg", Pic(40 * i + k)), ("json", '{"version": "5.0", "shapes": [], "imagePath": "0.jpg"}'))}, "labelme/refused", says="json|recipe"),
    "OpenPose: a keypoint JSON for each": refused("detection", plain("images") | texts("keypoints/{k:04}_keypoints.json", '{"version": 1.3, "people": []}'), "json"),
    "landmarks: .pts next to the pictures (300-W)": refused("detection", {f"{d}/{k}.{e}": v for i, d in enumerate(("afw", "ibug")) for k in range(6) for e, v in (("jpg", Pic(40 * i + k)), ("pts", "version: 1\nn_points: 68\n{\n1 2\n}\n"))}, "pts"),
    "point clouds: .bin next to": refused("detection", plain("image_2", pattern="{k:06}.png") | {f"velodyne/{k:06}.bin": bytes(64) for k in range(1, 9)}, "bin|recipe"),
    # -- COCO
    "COCO: train, val, annotations": Layout("detection", plain("train") | plain("val", start=90) | {f"annotations/instances_{s}.json": coco(NAMES) for s in ("train", "val")}, "coco", count=16),
    "COCO: data and labels.json (FiftyOne)": Layout("detection", plain("data") | {"labels.json": coco(NAMES)}, "coco", count=8),
    "COCO: images and result.json (Label Studio)": Layout("detection", plain("images") | {"result.json": coco([f"images/{name}" for name in NAMES])}, "coco", count=8),
    "COCO: ids as text": Layout("detection", plain("images") | {"annotations.json": coco(NAMES, text_ids=True)}, "coco", count=8),
    "COCO: two files for one folder": Layout("detection", plain("images") | {"annotations/train.json": coco(NAMES[:5]), "annotations/val.json": coco(NAMES[5:])}, "coco", count=8),
    "COCO: class folders next to its file": Layout("detection", classes("cat", "dog") | {"annotations.json": coco([f"{c}/{k:03}.jpg" for c in ("cat", "dog") for k in range(4)])}, "coco/refused", says="annotations.json"),
}  # fmt: skip

CSV_ROWS = "".join(f"{k:04}.jpg,{'xy'[k % 2 == 0]}\n" for k in range(1, 9))
"""Of 0001.jpg to 0008.jpg: x if odd."""
CSV_IDS = CSV_ROWS.replace(".jpg", "")
AB = {f"{'a' if k < 5 else 'b'}/{k:04}.jpg": Pic(k) for k in range(1, 9)}
"""Class-like folders, while a list has other labels."""
AB_ROWS = "".join(f"{'a' if k < 5 else 'b'}/{k:04}.jpg,{'xy'[k % 2 == 0]}\n" for k in range(1, 9))


def listed(tree: Tree, says: str, *, must: bool = False, count: int = 8) -> Layout:
    """Return a layout whose labels are in a list: they are read, or the source is refused."""
    return Layout(
        "lists",
        tree,
        "manifest" if must else "manifest/refused",
        says=says,
        count=count,
        labels=LABELS_AB,
    )


KAGGLE = "".join(f"{k:04},{'xy'[k % 2 == 0]}\n" for k in range(1, 9))
KEY = b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(90)
NPY = b"\x93NUMPY\1\0v\0{'descr': '<i8', 'fortran_order': False, 'shape': (8,), }".ljust(
    128
) + bytes(64)


def _unread(name: str, content: str | bytes) -> dict[str, Layout]:
    """Return a file of labels next to class-like folders, above them, and in a class."""
    trees: dict[str, Files] = {
        f"{name} next to": AB | {name: content},
        f"{name} above": {f"images/{k}": v for k, v in AB.items()} | {name: content},
        f"{name} in a class": AB | {f"a/{name}": content},
    }
    return {f"labels: {title}": refused("lists", tree, name) for title, tree in trees.items()}


LISTS: dict[str, Layout] = {
    "Kaggle: train.csv and train_images": listed(plain("train_images") | {"train.csv": "id,label\n" + CSV_ROWS}, "train.csv", must=True),
    "Kaggle: train.csv of ids without suffix": listed(plain("train_images") | {"train.csv": "id,label\n" + CSV_IDS}, "train.csv", must=True),
    "Kaggle: with test.csv and a sample submission": listed(plain("train_images") | plain("test_images", start=90, pattern="t{k}.jpg") | {"train.csv": "id,label\n" + CSV_IDS, "test.csv": "id\nt1\nt2\n", "sample_submission.csv": "id,label\nt1,x\n"}, "train.csv|test.csv"),
    "Kaggle: cassava": listed(plain("train_images") | plain("test_images", 2, start=90, pattern="t{k}.jpg") | {"train.csv": "image_id,label\n" + CSV_ROWS, "sample_submission.csv": "image_id,label\nt1.jpg,x\n", "label_num_to_disease_map.json": '{"0": "CBB"}'}, "train.csv|json"),
    "Kaggle: dog breeds, labels.csv, train, test": listed(plain("train") | plain("test", start=90, pattern="t{k}.jpg") | {"labels.csv": "id,breed\n" + CSV_IDS}, "labels.csv"),
    "Kaggle: cancer, train_labels.csv": listed(plain("train", pattern="{k:04}.tif") | plain("test", start=90, pattern="t{k}.tif") | {"train_labels.csv": "id,label\n" + CSV_IDS, "sample_submission.csv": "id,label\nt1,0\n"}, "train_labels.csv|sample"),
    "Kaggle: whales, train and train.csv": listed(plain("train") | plain("test", start=90, pattern="t{k}.jpg") | {"train.csv": "Image,Id\n" + CSV_ROWS, "sample_submission.csv": "Image,Id\nt1.jpg,x\n"}, "train.csv"),
    "Kaggle: plants, one image folder": listed(plain("images") | {"train.csv": "image_id,label\n" + CSV_IDS[:35], "test.csv": "image_id\n0006\n0007\n"}, "train.csv|test.csv", count=-1),
    "Kaggle: wheat, a bbox column": refused("lists", plain("train") | {"train.csv": "image_id,width,height,bbox,source\n" + "".join(f'{k:04},48,36,"[{k}, 3.0, 10.0, 12.0]",usask_1\n' for k in range(1, 9) for _ in "ab")}, "train.csv"),
    "Kaggle: steel, RLE": refused("lists", plain("train_images") | plain("test_images", start=90) | {"train.csv": "ImageId,ClassId,EncodedPixels\n" + "".join(f"{k:04}.jpg,{k % 3 + 1},29 12 60 12\n" for k in range(1, 9))}, "recipe|train.csv"),
    "Kaggle: ships, RLE next to": refused("lists", plain("train_v2") | plain("test_v2", start=90) | {"train_ship_segmentations_v2.csv": "ImageId,EncodedPixels\n" + "".join(f"{k:04}.jpg,264661 17\n" for k in range(1, 9))}, "recipe|train_ship"),
    "HAM10000: two image folders": listed({f"HAM10000_images_part_{1 + (k > 4)}/{k:04}.jpg": Pic(k) for k in range(1, 9)} | {"HAM10000_metadata.csv": "lesion_id,image_id,dx\n" + "".join(f"HAM_{k},{k:04},{'xy'[k % 2 == 0]}\n" for k in range(1, 9))}, "HAM10000_metadata.csv", must=True),
    "HAM10000 with tables of pixels": listed({f"HAM10000_images_part_{1 + (k > 4)}/{k:04}.jpg": Pic(k) for k in range(1, 9)} | {"HAM10000_metadata.csv": "lesion_id,image_id,dx\n" + "".join(f"HAM_{k},{k:04},{'xy'[k % 2 == 0]}\n" for k in range(1, 9)), "hmnist_8_8_L.csv": "pixel0000,label\n1,2\n"}, "hmnist|HAM10000_metadata"),
    "HAM10000 without its table": refused("lists", {f"HAM10000_images_part_{1 + (k > 4)}/{k:04}.jpg": Pic(k) for k in range(1, 9)}, "part_1"),
    "NIH: twelve image folders": listed({f"images_{k:03}/images/{k:04}.jpg": Pic(k) for k in range(1, 9)} | {"Data_Entry_2017.csv": "Image Index,Finding Labels,Follow-up #\n" + "".join(f"{k:04}.jpg,{'xy'[k % 2 == 0]},0\n" for k in range(1, 9))}, "Data_Entry_2017.csv", must=True),
    "NIH with its lists": listed({f"images_{k:03}/images/{k:04}.jpg": Pic(k) for k in range(1, 9)} | {"Data_Entry_2017.csv": "Image Index,Finding Labels,Follow-up #\n" + "".join(f"{k:04}.jpg,{'xy'[k % 2 == 0]},0\n" for k in range(1, 9)), "BBox_List_2017.csv": "Image Index,Finding Label,Bbox [x,y,w,h]\n", "train_val_list.txt": "0001.jpg\n", "test_list.txt": "0002.jpg\n", "README_CHESTXRAY.pdf": b"%PDF"}, "Data_Entry|BBox_List|list"),
    "NIH without its tables": refused("lists", {f"images_{i:03}/images/{i:03}{k}.png": Pic(20 * i + k) for i in range(1, 5) for k in range(3)}, "images_001"),
    "labels.csv next to class-like folders": listed(AB | {"labels.csv": "path,label\n" + AB_ROWS}, "labels.csv"),
    "labels.csv next to them, names without folder": listed(AB | {"labels.csv": "name,label\n" + CSV_ROWS}, "labels.csv"),
    "labels.csv next to them, ids": listed(AB | {"labels.csv": "id,label\n" + CSV_IDS}, "labels.csv"),
    "labels.csv above them": listed({f"images/{k}": v for k, v in AB.items()} | {"labels.csv": "path,label\n" + AB_ROWS}, "labels.csv"),
    "labels.csv above them, names without folder": listed({f"images/{k}": v for k, v in AB.items()} | {"labels.csv": "name,label\n" + CSV_ROWS}, "labels.csv"),
    "labels.csv of UTF-16": listed(AB | {"labels.csv": ("path,label\n" + AB_ROWS).encode("utf-16")}, "labels.csv"),
    "labels.csv of cp1252": listed(AB | {"labels.csv": ("path,label,note\n" + AB_ROWS.replace("\n", ",caf\xe9\n")).encode("cp1252")}, "labels.csv"),
    "labels.csv with a byte-order mark": listed(AB | {"labels.csv": ("path,label\n" + AB_ROWS).encode("utf-8-sig")}, "labels.csv"),
    "labels.csv with a folder prefix": listed(AB | {"labels.csv": "path,label\n" + "".join(f"dataset/{row}\n" for row in AB_ROWS.split())}, "labels.csv"),
    "labels.csv of backslashes": listed(AB | {"labels.csv": "path,label\n" + AB_ROWS.replace("/", "\\")}, "labels.csv"),
    "labels.csv with missing files first": Layout("lists", AB | {"labels.csv": "path,label\n" + "".join(f"a/gone{k}.jpg,x\n" for k in range(40)) + AB_ROWS}, "refused", says="labels.csv"),
    "labels.csv of semicolons": listed(AB | {"labels.csv": ("path,label\n" + AB_ROWS).replace(",", ";")}, "labels.csv"),
    "labels.tsv": listed(AB | {"labels.tsv": ("path,label\n" + AB_ROWS).replace(",", "\t")}, "labels.tsv"),
    "labels.CSV in capitals": listed(AB | {"LABELS.CSV": "path,label\n" + AB_ROWS}, "LABELS.CSV"),
    "labels.txt": listed(AB | {"labels.txt": AB_ROWS.replace(",", " ")}, "labels.txt"),
    "labels.txt of labels only": refused("lists", AB | {"labels.txt": "x\ny\nx\ny\nx\ny\nx\ny\n"}, "labels.txt"),
    "labels.json of names": listed(AB | {"labels.json": json.dumps({row.split(",")[0]: row.split(",")[1] for row in AB_ROWS.split()})}, "labels.json"),
    "labels.json of rows": listed(AB | {"labels.json": json.dumps([{"path": row.split(",")[0], "label": row.split(",")[1]} for row in AB_ROWS.split()])}, "labels.json"),
    "labels.jsonl": listed(AB | {"labels.jsonl": "".join(json.dumps({"path": row.split(",")[0], "label": row.split(",")[1]}) + "\n" for row in AB_ROWS.split())}, "labels.jsonl"),
    "annotations without a suffix": refused("lists", AB | {"annotations": AB_ROWS}, "annotations"),
    "labels.data with paths": refused("lists", AB | {"labels.data": AB_ROWS}, "labels.data"),
    **_unread("labels.mat", KEY), **_unread("labels.npy", NPY), **_unread("labels.pkl", b"\x80\x04]\x94."),
    **_unread("labels.xlsx", b"PK\3\4" + bytes(60)), **_unread("labels.xml", "<annotations></annotations>"),
    **_unread("labels.yaml", "0001.jpg: x\n0002.jpg: y\n"),
    **_unread("labels.parquet", b"PAR1PAR1"), **_unread("labels.db", b"SQLite format 3\0" + bytes(84)), **_unread("labels.npz", b"PK\3\4" + bytes(60)),
    "class_names.json of other names": refused("lists", AB | {"class_names.json": '["x", "y"]'}, "class_names.json"),
    "classes.txt of other names": Layout("lists", AB | {"classes.txt": "x\ny\n"}, "refused", says="classes.txt"),
    "styles.csv above class-like folders": refused("lists", AB | {"styles.csv": "id;gender;articleType\n1;Men;Shirts\n"}, "styles.csv"),
    "Stanford Online Products": Layout("lists", {f"{c}_final/{k:04}_{j}.JPG": Pic(40 * i + 2 * k + j) for i, c in enumerate(("bicycle", "cabinet")) for k in range(3) for j in (0, 1)}
        | {f"Ebay_{s}.txt": "image_id class_id super_class_id path\n" + "".join(f"{9 * i + 2 * k + j + 1} {3 * i + k + 1} {i + 1} {c}_final/{k:04}_{j}.JPG\n" for i, c in enumerate(("bicycle", "cabinet")) for k in range(3) for j in (0, 1)) for s in ("train",)}, "manifest/refused", says="Ebay_train.txt", count=12),
    "In-Shop": Layout("lists", {f"img/WOMEN/{c}/id_{k:08}/0{j}_1_front.jpg": Pic(40 * i + 4 * k + j) for i, c in enumerate(("Dresses", "Tees")) for k in range(2) for j in (1, 2)} | {"list_eval_partition.txt": "8\nimage_name item_id evaluation_status\nimg/WOMEN/Dresses/id_00000000/01_1_front.jpg id_00000000 train\n"}, "manifest/refused", says="list_eval_partition"),
    "Flickr8k: Images and captions.txt": Layout("lists", plain("Images") | {"captions.txt": "image,caption\n" + "".join(f"{name},A dog runs .\n{name},A child , in pink\n" for name in NAMES)}, "manifest/refused", says="captions.txt"),
    "Flickr30k: results.csv": Layout("lists", plain("flickr30k_images") | {"results.csv": "image_name| comment_number| comment\n" + "".join(f"{name}| 0| A dog runs .\n" for name in NAMES)}, "manifest/refused", says="results.csv"),
    "Places: val_256 and places365_val.txt": Layout("lists", plain("val_256") | {"places365_val.txt": "".join(f"{name} {k % 3}\n" for k, name in enumerate(NAMES))}, "manifest/refused", says="places365_val.txt", count=8),
    "GTSRB (Kaggle)": Layout("lists", {f"Train/{c}/{c:05}_{k:05}.png": Pic(40 * c + k) for c in range(3) for k in range(3)} | {f"Test/{k:05}.png": Pic(300 + k) for k in range(4)} | {f"Meta/{c}.png": Pic(400 + c) for c in range(3)}
        | {"Train.csv": "Width,Height,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2,ClassId,Path\n48,36,1,2,40,30,0,Train/0/00000_00000.png\n", "Test.csv": "Width,Height,Roi.X1,Roi.Y1,Roi.X2,Roi.Y2,ClassId,Path\n48,36,1,2,40,30,0,Test/00000.png\n", "Meta.csv": "Path,ClassId\nMeta/0.png,0\n"}, "refused", says="Train.csv"),
    "GTSRB: a table in each class folder": refused("lists", {f"Final_Training/Images/{c:05}/{k:05}.ppm": Pic(40 * c + k) for c in range(3) for k in range(3)} | {f"Final_Training/Images/{c:05}/GT-{c:05}.csv": "Filename;Width;Height;Roi.X1;ClassId\n00000.ppm;48;36;5;0\n" for c in range(3)}, "GT-00000.csv"),
    "SVHN format of Roboflow: _classes.csv in splits": Layout("lists", {f"{s}/{k:04}.jpg": Pic(90 * i + k) for i, s in enumerate(("train", "valid")) for k in range(1, 5)} | {f"{s}/_classes.csv": "filename, cat, dog\n" + "".join(f"{k:04}.jpg, {k % 2}, {1 - k % 2}\n" for k in range(1, 5)) for s in ("train", "valid")}, "manifest/refused", says="_classes.csv", count=8),
    "Roboflow, CreateML": Layout("lists", {f"{s}/{k:04}.jpg": Pic(90 * i + k) for i, s in enumerate(("train", "valid")) for k in range(1, 5)} | {f"{s}/_annotations.createml.json": json.dumps([{"image": f"{k:04}.jpg", "annotations": [{"label": "dog", "coordinates": {"x": 9, "y": 9, "width": 6, "height": 8}}]} for k in range(1, 5)]) for s in ("train", "valid")}, "manifest/coco/createml/refused", says="createml"),
    "iNaturalist: train_mini and its JSON": Layout("lists", {f"train_mini/{i:05}_Animalia_{c}/{k}.jpg": Pic(40 * i + k) for i, c in enumerate(("Apis", "Bombus")) for k in range(4)} | {"train_mini.json": json.dumps({"images": [], "annotations": [], "categories": [], "info": {}})}, "coco/refused", says="train_mini.json"),
    "LFW (Kaggle) with its tables": Layout("lists", {f"lfw-deepfunneled/lfw-deepfunneled/{p}/{p}_000{k}.jpg": Pic(40 * i + k) for i, p in enumerate(("Aaron_Eckhart", "Zico")) for k in (1, 2)} | {"people.csv": "name,images\nAaron_Eckhart,2\nZico,2\n", "pairs.csv": "name,imagenum1,imagenum2,\nZico,1,2,\n", "lfw_readme.csv": "x\n"}, "refused", says=r"\.csv"),
    "SUN397: outdoor and indoor": refused("lists", {f"a/{c}/sun_{i}{k}.jpg": Pic(40 * i + k) for i, c in enumerate(("abbey", "apartment_building/outdoor", "athletic_field/outdoor")) for k in range(3)} | {"ClassName.txt": "/a/abbey\n/a/apartment_building/outdoor\n/a/athletic_field/outdoor\n"}, "ClassName.txt|a"),
    "Food-101": Layout("lists", classes("pizza", "ramen", pattern="images/{c}/{k}.jpg") | {"meta/classes.txt": "pizza\nramen\n", "meta/train.txt": "pizza/1\nramen/1\n", "meta/test.txt": "pizza/2\n", "meta/labels.txt": "Pizza\nRamen\n", "meta/train.json": '{"pizza": ["pizza/1"]}', "README.txt": "Food", "license_agreement.txt": "x"}, "refused", says="meta"),
}  # fmt: skip

HARD: dict[str, Layout] = {
    "a test folder among classes": refused("hard", classes("cat", "dog", "test"), "test"),
    "train and test among classes": refused("hard", classes("cat", "dog", "train", "test"), "train"),
    "train with classes, test flat": refused("hard", classes("cat", "dog", pattern="train/{c}/{k}.jpg") | plain("test", start=300), "test"),
    "train with classes, val flat (ImageNet)": refused("hard", classes("n01440764", "n01443537", pattern="train/{c}/{k}.jpg") | plain("val", start=300), "val"),
    "classes and loose pictures": refused("hard", classes("cat", "dog") | {"0.jpg": Pic(999)}, "0.jpg"),
    "the data and its copy: yes, no, brain_tumor_dataset": Layout("hard", classes("yes", "no") | classes("yes", "no", pattern="brain_tumor_dataset/{c}/{k}.jpg"), "folder/refused", says="brain_tumor_dataset", unused="brain_tumor_dataset/", note="brain_tumor_dataset"),
    "Chest X-Ray (Kaggle, twice in it)": Layout(
        "hard", {f"chest_xray/{w}{s}/{c}/{k}.jpg": Pic(300 * j + 40 * i + k) for w in ("", "chest_xray/") for j, s in enumerate(("train", "val")) for i, c in enumerate(("NORMAL", "PNEUMONIA")) for k in range(2)}, "folder/refused", says="chest_xray", unused="chest_xray/chest_xray", note="chest_xray"),
    "Chest X-Ray twice, and the second has other pictures": refused(
        "hard", {f"chest_xray/{w}{s}/{c}/{k}.jpg": Pic(300 * j + 40 * i + k + 1000 * bool(w)) for w in ("", "chest_xray/") for j, s in enumerate(("train", "val")) for i, c in enumerate(("NORMAL", "PNEUMONIA")) for k in range(2)}, "chest_xray"),
    "PlantVillage (Kaggle, twice in it)": Layout("hard", classes("Pepper_bell", "Potato", pattern="PlantVillage/{c}/{k}.jpg") | classes("Pepper_bell", "Potato", pattern="PlantVillage/PlantVillage/{c}/{k}.jpg"), "folder/refused", says="PlantVillage", unused="PlantVillage/PlantVillage/", note="PlantVillage"),
    "PlantVillage: color, grayscale, segmented": refused("hard", {f"plantvillage dataset/{v}/{c}/{k}.jpg": Pic(40 * i + k, how) for v, how in (("color", "photo"), ("grayscale", "gray"), ("segmented", "dark")) for i, c in enumerate(("Apple___scab", "Corn___rust")) for k in range(4)}, "grayscale"),
    "domains: PACS": refused("hard", {f"{d}/{c}/{k}.jpg": Pic(300 * j + 40 * i + k) for j, d in enumerate(("art_painting", "cartoon", "photo", "sketch")) for i, c in enumerate(("dog", "elephant", "giraffe")) for k in range(2)}, "cartoon"),
    "domains: Office-31": refused("hard", {f"{d}/images/{c}/{k}.jpg": Pic(300 * j + 40 * i + k) for j, d in enumerate(("amazon", "dslr", "webcam")) for i, c in enumerate(("bike", "mug")) for k in range(2)}, "dslr"),
    "breeds in species": refused("hard", {f"{s}/{b}/{k}.jpg": Pic(300 * j + 40 * i + k) for j, (s, breeds) in enumerate((("cat", ("siamese", "persian")), ("dog", ("poodle", "boxer")))) for i, b in enumerate(breeds) for k in range(3)}, "siamese"),
    "folds: fold1, fold2 of classes": refused("hard", {f"fold{f}/{c}/{k}.jpg": Pic(300 * f + 40 * i + k) for f in (1, 2, 3) for i, c in enumerate(("cat", "dog")) for k in range(3)}, "fold1"),
    "batches of pictures: batch_1, batch_2": refused("hard", plain("batch_1") | plain("batch_2", start=90, pattern="{k:05}.jpg"), "batch_1"),
    "an images folder and a masks folder, empty": refused("hard", plain("images") | {"masks/": ""}, "masks"),
    "images and a folder of texts": refused("hard", plain("images") | texts("captions/{k:04}.txt", "a dog on the grass"), "captions"),
    "images and a folder of JSON": refused("hard", plain("images") | texts("meta/{k:04}.json", '{"a": 1}'), "json|meta"),
    "three copies in three sizes: small, medium, large": refused("hard", {f"{d}/{k:04}.jpg": Pic(k, "photo", (w, h)) for d, w, h in (("small", 24, 18), ("medium", 48, 36), ("large", 96, 72)) for k in range(8)}, "medium"),
    "augmented copies: original, flipped, rotated": refused("hard", side({"original": ("photo", JPG), "blurred": ("blur", JPG), "darkened": ("dark", JPG)}), "darkened"),
    "plain pictures in splits": Layout("hard", plain("train") | plain("val", start=90) | plain("test", start=180), "flat", count=24),
    "plain pictures in one wrapper": Layout("hard", plain("images"), "flat", count=8),
    "plain pictures in two wrappers": Layout("hard", plain("archive/celeba"), "flat/refused", count=8),
    "plain pictures and a README": Layout("hard", plain("") | {"README.md": "# x\n", "LICENSE": "MIT"}, "flat", count=8),
    "train alone, flat": Layout("hard", plain("train"), "flat/refused", says="train", count=8),
    "no pictures at all": refused("hard", {"a/0.txt": "x", "b/1.txt": "y"}, "txt"),
    "RAW files and NIfTI": refused("hard", {"a/0.nef": bytes(40), "b/1.nii.gz": bytes(40)}, "nef|nii"),
    "DICOM in class folders": refused("hard", {f"{c}/{k}.dcm": bytes(128) + b"DICM" for c in ("cat", "dog") for k in range(3)}, "dcm"),
    "videos in class folders": refused("hard", {f"{c}/{k}.mp4": bytes(40) for c in ("run", "walk") for k in range(3)}, "mp4"),
}  # fmt: skip

KAGGLE_TREES: dict[str, Layout] = {
    "Stanford Cars (Kaggle) with its tables": refused("kaggle", {f"car_data/car_data/{s}/{c}/{k:05}.jpg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "test")) for i, c in enumerate(("AM General Hummer SUV 2000", "Acura RL Sedan 2012")) for k in range(3)} | {"anno_train.csv": "00001.jpg,39,116,569,375,14\n", "anno_test.csv": "00001.jpg,30,52,246,147,181\n", "names.csv": "AM General Hummer SUV 2000\n"}, "anno_train.csv|anno_test.csv"),
    "sports (Kaggle): splits and a table": Layout("kaggle", {f"{s}/{c}/{k:03}.jpg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "valid", "test")) for i, c in enumerate(("air hockey", "judo")) for k in range(1, 4)} | {"sports.csv": "class id,filepaths,labels,data set\n0,train/air hockey/001.jpg,air hockey,train\n", "EfficientNetB0-sports.h5": b"\x89HDF\r\n\x1a\n" + bytes(64)}, "manifest/refused", says="sports.csv"),
    "garbage (Kaggle) with its lists": refused("kaggle", classes("cardboard", "glass", "metal", pattern="Garbage classification/Garbage classification/{c}/{c}{k}.jpg") | {"one-indexed-files.txt": "glass1.jpg 1\nmetal1.jpg 4\n", "zero-indexed-files.txt": "glass1.jpg 0\n"}, "indexed-files"),
    "10 monkeys (Kaggle) with monkey_labels.txt": Layout("kaggle", {f"{s}/{s}/{c}/{c}0{k}.jpg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("training", "validation")) for i, c in enumerate(("n0", "n1")) for k in range(3)} | {"monkey_labels.txt": "Label, Latin Name, Common Name, Train Images, Validation Images\nn0, alouatta_palliata, mantled_howler, 131, 26\n"}, "folder/refused", says="monkey_labels.txt"),
    "malaria (Kaggle, twice in it)": Layout("kaggle", classes("Parasitized", "Uninfected", pattern="cell_images/{c}/{k}.png") | classes("Parasitized", "Uninfected", pattern="cell_images/cell_images/{c}/{k}.png"), "folder/refused", says="cell_images", unused="cell_images/cell_images/", note="cell_images"),
    "drivers (Kaggle): imgs and a list": Layout("kaggle", classes("c0", "c1", "c2", pattern="imgs/train/{c}/img_{k}.jpg") | plain("imgs/test", pattern="img_9{k}.jpg", start=300) | {"driver_imgs_list.csv": "subject,classname,img\np002,c0,img_0.jpg\n", "sample_submission.csv": "img,c0\n"}, "manifest/refused", says="driver_imgs_list.csv"),
    "blood cells (Kaggle): images and labels.csv": refused("kaggle", {f"dataset2-master/dataset2-master/images/{s}/{c}/_0_{k}.jpeg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("TRAIN", "TEST", "TEST_SIMPLE")) for i, c in enumerate(("EOSINOPHIL", "LYMPHOCYTE")) for k in range(3)} | {"dataset2-master/dataset2-master/labels.csv": ",Image,Category\n,0,NEUTROPHIL\n,1,NEUTROPHIL\n"}, "labels.csv"),
    "monkeypox (Kaggle): originals, augmented, folds": refused("kaggle", {f"{d}/{d}/{c}/{k}.jpg": Pic(300 * j + 40 * i + k, how) for j, (d, how) in enumerate((("Original Images", "photo"), ("Augmented Images", "blur"))) for i, c in enumerate(("Monkey Pox", "Others")) for k in range(3)}, "Augmented Images"),
    "breast histopathology: patient/class": refused("kaggle", {f"{p}/{c}/{p}_idx5_x{k}_class{c}.png": Pic(300 * j + 40 * c + k) for j, p in enumerate((8863, 8864, 8865)) for c in (0, 1) for k in range(3)}, "8863"),
    "New Plant Diseases (Kaggle) with its flat test": refused("kaggle", {f"New Plant Diseases Dataset(Augmented)/New Plant Diseases Dataset(Augmented)/{s}/{c}/{k}.JPG": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "valid")) for i, c in enumerate(("Apple___Apple_scab", "Corn___healthy")) for k in range(3)} | plain("test/test", pattern="AppleScab{k}.JPG", start=900), "test"),
    "weather (Kaggle): the label is in the file name": Layout("kaggle", {f"dataset2/{c}{k}.jpg": Pic(40 * i + k) for i, c in enumerate(("cloudy", "rain", "shine")) for k in range(1, 4)}, "flat/refused", count=9),
    "casting (Kaggle): data and its originals": refused("kaggle", {f"casting_data/casting_data/{s}/{c}/{k}.jpeg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "test")) for i, c in enumerate(("def_front", "ok_front")) for k in range(3)} | classes("def_front", "ok_front", pattern="casting_512x512/casting_512x512/{c}/{k}.jpeg", start=1000), "casting_512x512"),
    "Simpsons (Kaggle): a flat test set and annotations": refused("kaggle", classes("bart_simpson", "homer_simpson", pattern="simpsons_dataset/simpsons_dataset/{c}/pic_{k:04}.jpg") | plain("kaggle_simpson_testset/kaggle_simpson_testset", pattern="bart_simpson_{k}.jpg", start=400) | {"annotation.txt": "./characters/bart_simpson/pic_0000.jpg,57,72,52,72,bart_simpson\n"}, "annotation.txt"),
    "140k faces (Kaggle) with its tables": Layout("kaggle", {f"real_vs_fake/real-vs-fake/{s}/{c}/{k:05}.jpg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "valid", "test")) for i, c in enumerate(("fake", "real")) for k in range(3)} | {f"{s}.csv": f",original_path,id,label,label_str,path\n0,x,1,1,real,{s}/real/00000.jpg\n" for s in ("train", "valid", "test")}, "manifest/refused", says="train.csv|test.csv"),
    "CelebA (Kaggle)": Layout("kaggle", plain("img_align_celeba/img_align_celeba", pattern="{k:06}.jpg") | {"list_attr_celeba.csv": "image_id,Bald,Smiling\n" + "".join(f"{k:06}.jpg,-1,1\n" for k in range(1, 9)), "list_bbox_celeba.csv": "image_id,x_1,y_1,width,height\n000001.jpg,95,71,226,313\n", "list_eval_partition.csv": "image_id,partition\n000001.jpg,0\n"}, "celeba/manifest/refused", says="list_attr|recipe", count=8),
    "landmarks (GLDv2): folders of the hash and train.csv": Layout("kaggle", {f"train/{h[0]}/{h[1]}/{h[2]}/{h}.jpg": Pic(k) for k, h in enumerate(("0a1b2c3d4e5f6071", "1b2c3d4e5f60710a", "2c3d4e5f60710a1b", "0a2d4e5f60710a1b"))} | {"train.csv": "id,url,landmark_id\n0a1b2c3d4e5f6071,http://x,7\n"}, "manifest/refused", says="train.csv"),
    "STL-10 as folders: train, test, unlabeled": Layout("kaggle", {f"{s}/{c}/{k}.png": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "test")) for i, c in enumerate(("bird", "car")) for k in range(3)} | plain("unlabeled", pattern="{k}.png", start=900), "folder/refused", says="unlabeled", unused="unlabeled", note="unlabeled"),
    "two zips and a table, not unpacked": refused("kaggle", {"train.zip": b"PK\5\6" + bytes(18), "test.zip": b"PK\5\6" + bytes(18), "train.csv": "id,label\n1,x\n"}, "zip|train.csv"),
    "Omniglot: alphabet/character": refused("kaggle", {f"images_background/{a}/character0{c}/0{c}_0{k}.png": Pic(300 * j + 40 * c + k, "binary", (28, 28)) for j, a in enumerate(("Greek", "Korean")) for c in (1, 2) for k in range(3)}, "Greek"),
    "SVHN-like: train, test, extra flat": refused("kaggle", plain("train", pattern="{k}.png") | plain("test", pattern="{k}.png", start=90) | plain("extra", pattern="{k}.png", start=180), "extra"),
    "domains with domain folders: rgb/class, depth/class": refused("kaggle", {f"{d}/{c}/{k}.png": Pic(40 * i + k, how) for d, how in (("rgb", "photo"), ("depth", "depth")) for i, c in enumerate(("apple", "ball")) for k in range(4)}, "depth"),
    "original/class, augmented/class": refused("kaggle", {f"{d}/{c}/{k}.png": Pic(40 * i + k, how) for d, how in (("original", "photo"), ("augmented", "blur")) for i, c in enumerate(("apple", "ball")) for k in range(4)}, "augmented"),
    "backgrounds removed: with_background, without_background": refused("kaggle", side({"with_background": ("photo", JPG), "without_background": ("changed", JPG)}), "without_background"),
}  # fmt: skip

MORE: dict[str, Layout] = {
    "masks as JPEG": maybe_masks(side({"images": PHOTO, "masks": ("binary", JPG)}), 8, "masks"),
    "masks of half of the images": Layout("segmentation", plain("images") | {f"masks/{k:04}.png": Pic(k - 1, "binary") for k in range(1, 5)}, "masks/refused", says="masks", count=4, rejects=4),
    "masks whose names differ by a word: img_1, mask_1": maybe_masks(side({"images": ("photo", "img_{k}.png"), "masks": ("binary", "mask_{k}.png")}), 8, "masks"),
    "masks in colours without a table: photos, annot_rgb": maybe_masks(side({"photos": PHOTO, "annot_rgb": ("colours", PNG)}), 8, "annot_rgb"),
    "instances: images, masks/1/0.png": maybe_masks({f"images/{k}.png": Pic(k) for k in range(1, 9)} | {f"masks/{k}/{j}.png": Pic(k, "binary") for k in range(1, 9) for j in (0, 1)}, -1, "masks"),
    "masks in class folders: cat/x.png, cat/x_seg.png": maybe_masks({f"{c}/{k}{end}.png": Pic(40 * i + k, how) for i, c in enumerate(("cat", "dog")) for k in range(6) for end, how in (("", "photo"), ("_seg", "binary"))}, -1, "_seg"),
    "class/images, class/masks with one class": maybe_masks(side({"tumor/images": PHOTO, "tumor/masks": MASK}), 8, "masks"),
    "images/class, masks/class": maybe_masks({f"{d}/{c}/{k}.png": Pic(40 * i + k, how) for d, how in (("images", "photo"), ("masks", "binary")) for i, c in enumerate(("cat", "dog")) for k in range(6)}, 12, "masks"),
    "imgs, segs: the shapes of letters": maybe_masks(side({"imgs": ("photo", "{k}.png"), "segs": ("palette", "{k}.png")}), 8, "segs"),
    "pairs in one order under other names: IMG_0001, DSC_0501": refused("pairs", side({"input": ("dark", "IMG_{k:04}.jpg")}) | {f"target/DSC_{500 + k:04}.jpg": Pic(k - 1) for k in range(1, 9)}, "target"),
    "pairs by the end of names: a1_1, a1_2": refused("pairs", side({"input": ("blur", "a{k}_1.jpg"), "target": ("photo", "a{k}_2.jpg")}), "target"),
    "pairs of few: low, high of three": refused("pairs", side({"low": "dark", "high": "photo"}, 3), "low"),
    "pairs of one: low, high": refused("pairs", side({"low": "dark", "high": "photo"}, 1), "low"),
    "pairs of 40 among unpaired: low, high": refused("pairs", side({"low": "dark", "high": "photo"}, 20) | plain("low", 20, "x{k}.png", 900, "dark") | plain("high", 20, "y{k}.png", 950), "low"),
    "pairs next to a README: low, high": refused("pairs", side({"low": "dark", "high": "photo"}) | {"README.md": "# LOL\n"}, "low"),
    "pairs and a hidden folder: low, high": refused("pairs", side({"low": "dark", "high": "photo"}) | {".ipynb_checkpoints/0001.png": Pic(0)}, "low"),
    "pairs in a wrapper: data/low, data/high": refused("pairs", side({"low": "dark", "high": "photo"}, root="archive/data/"), "low"),
    "pairs of other suffixes: low/1.jpg, high/1.png": refused("pairs", side({"low": ("dark", "{k}.jpg"), "high": ("photo", "{k}.png")}), "low"),
    "pairs in deeper folders: low/a/1.png, high/a/1.png": refused("pairs", {f"{d}/{c}/{k}.png": Pic(40 * i + k, how) for d, how in (("low", "dark"), ("high", "photo")) for i, c in enumerate(("a", "b")) for k in range(6)}, "low"),
    "five exposures of the same scenes": refused("pairs", side({"ev-2": "dark", "ev-1": "night", "ev0": "photo", "ev1": "warm", "ev2": "haze"}), "ev0"),
    "hands of one person, in the same places: left, right": Layout("classes", {f"{c}/{k:04}.jpg": Pic(300 + 40 * i + k, background=k % 3) for i, c in enumerate(("left", "right")) for k in range(12)}, "folder"),
    "an image folder and heat maps": refused("pairs", side({"images": ("photo", JPG), "heatmaps": ("depth", JPG)}), "heatmaps"),
    "an image folder and saliency maps": refused("pairs", side({"stimuli": ("photo", JPG), "maps": ("depth", JPG)}), "maps"),
    "normals: rgb, normals": refused("pairs", side({"rgb": "photo", "normals": "warm"}), "normals"),
    "exposures: short, long": refused("pairs", side({"short": "dark", "long": "photo"}), "long"),
    "exposures in one folder for each scene": Layout("pairs", {f"scene{k:03}/{name}.jpg": Pic(k, how) for k in range(8) for name, how in (("under", "dark"), ("normal", "photo"), ("over", "haze"))}, "folder/refused"),
    "scans: low_dose, full_dose": refused("pairs", side({"low_dose": ("noise", PNG), "full_dose": ("gray", PNG)}), "full_dose"),
    "faces with and without masks of the same people": refused("pairs", side({"with_mask": ("changed", JPG), "without_mask": ("photo", JPG)}), "without_mask"),
    "face masks, same people, two splits": refused("pairs", in_splits(("train", "test"), {"with_mask": ("changed", JPG), "without_mask": ("photo", JPG)}), "without_mask"),
    "makeup: before_1, after_1": refused("pairs", side({"before": ("photo", "before_{k}.jpg"), "after": ("warm", "after_{k}.jpg")}), "after"),
    "three views of a scene: front, left, right": refused("pairs", side({"front": "photo", "left": "right", "right": "warm"}), "front"),
    "A, B in train only": refused("pairs", side({"train/A": "photo", "train/B": "edges"}), "A"),
    "zebra and horse under neutral names: domain1, domain2": Layout("hard", classes("domain1", "domain2", n=8), "folder/refused", says="domain1"),
    "multi-view objects on a marked turntable": Layout("hard", {f"obj{i}/{k:03}.jpg": Pic(40 * i, background=k) for i in range(5) for k in range(10)}, "folder/refused", says="obj0"),
    "equal classes numbered through: 0/0..5, 1/6..11": Layout("hard", {f"{k // 6}/{k}.png": Pic(k) for k in range(24)}, "folder/flat/refused", count=24),
    "a class folder with a table of its classes": Layout("lists", classes("cat", "dog") | {"classes.csv": "id,name,species\n0,cat,Felis\n1,dog,Canis\n"}, "folder/refused", says="classes.csv"),
    "notes.txt that is a list": Layout("lists", AB | {"notes.txt": AB_ROWS.replace(",", " ")}, "manifest/refused", says="notes.txt"),
    "README.txt that is a list": Layout("lists", AB | {"README.txt": AB_ROWS.replace(",", "\t")}, "manifest/refused", says="README.txt"),
    "README.csv": Layout("lists", AB | {"README.csv": "path,label\n" + AB_ROWS}, "manifest/refused", says="README.csv"),
    "lists of train and test above classes": Layout("lists", {f"images/{k}": v for k, v in AB.items()} | {"train.txt": "a/0001.jpg\nb/0005.jpg\n", "test.txt": "a/0002.jpg\n"}, "manifest/refused", says="train.txt|test.txt"),
    "a list in a folder next to the classes: splits/train.txt": refused("lists", AB | {"splits/train.txt": "a/0001.jpg\nb/0005.jpg\n"}, "splits"),
    "metadata.csv next to classes (Hugging Face)": Layout("lists", AB | {"metadata.csv": "file_name,label\n" + AB_ROWS}, "hf_folder/manifest/refused", says="metadata.csv", count=8, labels=LABELS_AB),
    "metadata.jsonl in one class": refused("lists", AB | {"a/metadata.jsonl": '{"file_name": "0001.jpg", "text": "x"}\n'}, "metadata.jsonl"),
    "a GeoJSON next to classes": refused("lists", AB | {"areas.geojson": GEO}, "areas.geojson"),
    "a shape file next to classes": refused("lists", AB | {"areas.shp": bytes(100), "areas.dbf": bytes(40)}, "areas"),
    "a TOML of labels": refused("lists", AB | {"labels.toml": '"0001.jpg" = "x"\n'}, "labels.toml"),
    "an SQL dump": refused("lists", AB | {"labels.sql": "INSERT INTO labels VALUES ('a/0001.jpg', 'x');\n"}, "labels.sql"),
    "a gzipped list": refused("lists", AB | {"labels.csv.gz": b"\x1f\x8b\x08" + bytes(20)}, "labels.csv.gz"),
    "an .odt of annotations for each image": refused("lists", {f"{c}/{k}.{e}": v for i, c in enumerate(("cat", "dog")) for k in range(4) for e, v in (("jpg", Pic(40 * i + k)), ("cap", "a cat"))}, "cap"),
    "class folders in GBK (zip)": Layout("archives", classes("猫", "狗"), "folder/refused", archive="zip gbk"),
    "class folders with backslashes (zip)": Layout("archives", classes("cat", "dog"), "folder", archive="zip backslash"),
}  # fmt: skip


def img2dataset() -> Tree:
    """Return shards of img2dataset: a tar, a Parquet file and statistics for each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files: Files = {}
    for shard in range(2):
        tar, table = io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w") as archive:
            for k in range(4):
                key = f"{shard:05}{k:04}"
                meta = json.dumps({"caption": "a cat", "key": key, "status": "success"})
                for end, data in (
                    ("jpg", encoded(Pic(40 * shard + k), "jpg")),
                    ("txt", b"a cat"),
                    ("json", meta.encode()),
                ):
                    info = tarfile.TarInfo(f"{key}.{end}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        keys = [f"{shard:05}{k:04}" for k in range(4)]
        pq.write_table(
            pa.table(
                {
                    "url": ["http://a"] * 4,
                    "caption": ["a cat"] * 4,
                    "key": keys,
                    "status": ["success"] * 4,
                }
            ),
            table,
        )
        files |= {
            f"{shard:05}.tar": tar.getvalue(),
            f"{shard:05}.parquet": table.getvalue(),
            f"{shard:05}_stats.json": '{"count": 4, "successes": 4}',
        }
    return files


def folder(tree: Tree) -> Layout:
    return Layout("classes", tree, "folder")


OTHERS: dict[str, Layout] = {
    # -- segmentation and saliency
    "BKAI polyps: train/train, train_gt/train_gt": maybe_masks(side({"train/train": ("photo", "{k}.jpeg"), "train_gt/train_gt": ("colours", "{k}.jpeg")}) | plain("test/test", pattern="t{k}.jpeg", start=300), 8, "train_gt"),
    "iSAID: images, Instance_masks, Semantic_masks": maybe_masks(in_splits(("train", "val"), {"images": ("photo", "P{k:04}.png"), "Semantic_masks": ("colours", "P{k:04}_instance_color_RGB.png"), "Instance_masks": ("colours", "P{k:04}_instance_id_RGB.png")}), 16, "Semantic_masks"),
    "Mapillary: images, instances, labels, panoptic": maybe_masks(in_splits(("training", "validation"), {"images": PHOTO, "instances": ("ids", PNG), "labels": ("palette", PNG), "panoptic": ("colours", PNG)}), 16, "labels"),
    "LIP: TrainVal_images, TrainVal_parsing_annotations": maybe_masks(side({"TrainVal_images": PHOTO, "TrainVal_parsing_annotations": ("ids", PNG)}), 8, "parsing"),
    "CIHP: Images, Categories, Instances": maybe_masks(side({"Images": PHOTO, "Category_ids": ("ids", PNG), "Instance_ids": ("ids", PNG), "Human_ids": ("binary", PNG)}), 8, "Category_ids"),
    "DUT-OMRON: DUT-OMRON-image, pixelwiseGT-new-PNG": maybe_masks(side({"DUT-OMRON-image": PHOTO, "pixelwiseGT-new-PNG": MASK}), 8, "pixelwiseGT"),
    "BSDS500: images and .mat": refused("segmentation", {k: v for i, s in enumerate(("train", "val", "test")) for k, v in (plain(f"images/{s}", pattern="{k}.jpg", start=90 * i) | {f"groundTruth/{s}/{k}.mat": KEY for k in range(1, 9)}).items()}, "groundTruth|mat"),
    "BSDS300: images in splits": Layout("segmentation", plain("images/train", pattern="{k}.jpg") | plain("images/test", pattern="t{k}.jpg", start=90), "flat/refused", says="train", count=16),
    "crops: image, label, image_aug, label_aug": maybe_masks(side({"image": PHOTO, "label": MASK, "image_aug": ("blur", JPG), "label_aug": MASK}), -1, "label"),
    # -- change, depth, views
    "SECOND: im1, im2, label1, label2": refused("pairs", side({"im1": "photo", "im2": "changed", "label1": "colours", "label2": "colours"}), "im1|label1"),
    "LEVIR-CD, lower case: a, b, mask": refused("pairs", side({"a": "photo", "b": "changed", "mask": "binary"}), "mask"),
    "bitemporal: pre, post": refused("pairs", side({"pre": "photo", "post": "changed"}), "post"),
    "bitemporal: 2016, 2018, change": refused("pairs", side({"2016": "photo", "2018": "changed", "change": "binary"}), "change"),
    "7-Scenes: color, depth and pose in one folder": refused("pairs", {f"chess/seq-0{c}/frame-{k:06}.{end}": v for c in (1, 2) for k in range(5) for end, v in (("color.png", Pic(40 * c, "photo", (48, 36), k)), ("depth.png", Pic(40 * c, "depth", (48, 36), k)), ("pose.txt", "1 0 0 0\n0 1 0 0\n"))}, "pose.txt|txt"),
    "7-Scenes without poses": refused("pairs", {f"seq-0{c}/frame-{k:06}.{end}.png": Pic(40 * c, how, (48, 36), k) for c in (1, 2) for k in range(6) for end, how in (("color", "photo"), ("depth", "depth"))}, "seq-01|depth"),
    "ScanNet: color, depth, pose": refused("pairs", {f"scene000{c}_00/{part}/{k}.{end}": v for c in range(2) for k in range(5) for part, end, v in (("color", "jpg", Pic(40 * c, "photo", (48, 36), k)), ("depth", "png", Pic(40 * c, "depth", (48, 36), k)), ("pose", "txt", "1 0 0 0\n"))}, "pose|txt"),
    "KITTI odometry": refused("pairs", {f"sequences/0{c}/{cam}/{k:06}.png": Pic(40 * c, how, (48, 36), k) for c in range(2) for k in range(5) for cam, how in (("image_2", "photo"), ("image_3", "right"))} | {f"sequences/0{c}/times.txt": "0.0\n0.1\n" for c in range(2)} | {f"poses/0{c}.txt": "1 0 0 0 0 1 0 0 0 0 1 0\n" for c in range(2)}, "times.txt|poses|recipe"),
    "NeRF: train, val and transforms_train.json": refused("annotations", plain("train", pattern="r_{k}.png") | plain("val", pattern="r_{k}.png", start=90) | {f"transforms_{s}.json": '{"camera_angle_x": 0.69, "frames": [{"file_path": "./train/r_1"}]}' for s in ("train", "val")}, "transforms"),
    "COLMAP: images, sparse": refused("annotations", plain("images") | {"sparse/0/cameras.bin": bytes(40), "sparse/0/images.bin": bytes(40), "sparse/0/points3D.bin": bytes(40)}, "sparse|bin"),
    # -- annotations
    "fMoW: a JSON for each picture of a class": refused("annotations", {f"train/{c}/{c}_{i}/{c}_{i}_0_rgb.{e}": v for j, c in enumerate(("airport", "zoo")) for i in range(3) for e, v in (("jpg", Pic(40 * j + i)), ("json", '{"gsd": 0.5, "bounding_boxes": []}'))}, "json"),
    "BigEarthNet: a folder of bands for each patch": refused("annotations", {f"S2A_MSIL2A_20170613T101031_{i}_45/S2A_MSIL2A_20170613T101031_{i}_45_{b}.tif": Pic(10 * i, "gray") for i in range(4) for b in ("B01", "B02", "B03")} | {f"S2A_MSIL2A_20170613T101031_{i}_45/labels_metadata.json": '{"labels": ["Sea"]}' for i in range(4)}, "labels_metadata.json"),
    "IMDB-WIKI: folders of the number and imdb.mat": refused("annotations", {f"imdb_crop/{i:02}/nm00001{i:02}_rm{k}_1899-5-10_1968.jpg": Pic(20 * i + k) for i in range(3) for k in range(3)} | {"imdb_crop/imdb.mat": KEY}, "mat"),
    "FairFace: train, val and two tables": Layout("lists", plain("train", pattern="{k}.jpg") | plain("val", pattern="{k}.jpg", start=90) | {f"fairface_label_{s}.csv": "file,age,gender,race,service_test\n" + "".join(f"{s}/{k}.jpg,20-29,Male,White,True\n" for k in range(1, 9)) for s in ("train", "val")}, "manifest/refused", says="fairface_label"),
    "AffectNet: images and .npy": refused("annotations", {k: v for s in ("train_set", "val_set") for k, v in (plain(f"{s}/images", pattern="{k}.jpg", start=90 * (s == "val_set")) | {f"{s}/annotations/{k}_{e}.npy": NPY for k in range(1, 9) for e in ("exp", "val")}).items()}, "npy|annotations"),
    "RAF-DB (Kaggle): class folders and tables": Layout("lists", {f"DATASET/{s}/{c}/{s}_{c}{k}.jpg": Pic(300 * j + 40 * c + k) for j, s in enumerate(("train", "test")) for c in (1, 2, 3) for k in range(3)} | {f"{s}_labels.csv": f"image,label\n{s}_10.jpg,1\n{s}_20.jpg,2\n" for s in ("train", "test")}, "manifest/refused", says="_labels.csv"),
    "Datumaro": refused("detection", plain("images/default") | {"annotations/default.json": '{"info": {}, "categories": {"label": {"labels": [{"name": "cat"}]}}, "items": [{"id": "0001", "annotations": [], "image": {"path": "0001.jpg"}}]}'}, "json|annotations"),
    "VoTT": refused("detection", plain("vott-json-export") | {"vott-json-export/cats-export.json": '{"name": "cats", "assets": {"1": {"asset": {"name": "0001.jpg"}, "regions": []}}}'}, "export.json"),
    "YOLO in rotated boxes: images, labelTxt": refused("detection", plain("images") | texts("labelTxt/{k:04}.txt", "2 3 10 3 10 12 2 12 plane 0\n"), "recipe|labelTxt"),
    "ImageNet-C: corruption/severity/class": refused("annotations", {f"{c}/{v}/{w}/{k}.JPEG": Pic(40 * i + k, how) for c, how in (("gaussian_noise", "noise"), ("fog", "haze")) for v in (1, 2) for i, w in enumerate(("n01440764", "n01443537")) for k in range(3)}, "gaussian_noise|fog"),
    "ObjectNet: images and mappings": refused("lists", classes("air_freshener", "alarm_clock", pattern="objectnet-1.0/images/{c}/{k}.png") | {"objectnet-1.0/mappings/folder_to_objectnet_label.json": '{"air_freshener": "Air freshener"}', "objectnet-1.0/mappings/imagenet_to_label_2012_v2": "tench\n", "objectnet-1.0/README": "x"}, "mappings"),
    "imagenette2 with noisy_imagenette.csv": Layout("lists", {f"{s}/{c}/{c}_{k}.JPEG": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "val")) for i, c in enumerate(("n01440764", "n02102040")) for k in range(3)} | {"noisy_imagenette.csv": "path,noisy_labels_0,noisy_labels_50,is_valid\n" + "".join(f"{s}/{c}/{c}_{k}.JPEG,{c},n02102040,{s == 'val'}\n" for s in ("train", "val") for c in ("n01440764", "n02102040") for k in range(3))}, "manifest/refused", says="noisy_imagenette.csv", count=12),
    "fastai's mnist_sample: train, valid and labels.csv": Layout("lists", {f"{s}/{c}/{k}.png": Pic(300 * j + 40 * c + k, "gray", (28, 28)) for j, s in enumerate(("train", "valid")) for c in (3, 7) for k in range(3)} | {"labels.csv": "name,label\n" + "".join(f"{s}/{c}/{k}.png,{int(c == 7)}\n" for s in ("train", "valid") for c in (3, 7) for k in range(3))}, "manifest/refused", says="labels.csv", count=12),
    "MARS: bbox_train, bbox_test of persons": Layout("re-identification", {f"{s}/{i:04}/{i:04}C1T0001F{k:03}.jpg": Pic(300 * j + 40 * i + k) for j, s in enumerate(("bbox_train", "bbox_test")) for i in range(3) for k in range(3)}, "folder/refused", says="bbox_train"),
    "iLIDS-VID: cam1/person, cam2/person": refused("re-identification", {f"sequences/{cam}/person{i:03}/{cam}_person{i:03}_{k:05}.png": Pic(40 * i, how, (48, 36), k) for cam, how in (("cam1", "photo"), ("cam2", "warm")) for i in (1, 2, 13) for k in range(4)}, "cam1"),
    "img2dataset: tar, Parquet and statistics": Layout("annotations", img2dataset, "webdataset", count=8),
    # -- true class folders of public datasets
    "NWPU-RESISC45": folder(classes("airplane", "airport", "bridge", pattern="NWPU-RESISC45/{c}/{c}_{k:03}.jpg")),
    "UC Merced": folder(classes("agricultural", "airplane", pattern="UCMerced_LandUse/Images/{c}/{c}{k:02}.jpg") | {"UCMerced_LandUse/readme.txt": "UC Merced Land Use Dataset\n"}),
    "PatternNet": folder(classes("airplane", "baseball_field", pattern="PatternNet/images/{c}/{c}{k:03}.jpg") | {"PatternNet/patternnet_description.pdf": b"%PDF-1.4\n"}),
    "VGGFace2": folder(classes("n000002", "n000003", pattern="train/{c}/{k:04}_01.jpg")),
    "CASIA-WebFace: numbers go on through the persons": folder({f"casia-webface/{c:06}/{k:08}.jpg": Pic(k) for c, (a, b) in enumerate(((1, 6), (6, 13), (13, 16), (16, 20))) for k in range(a, b)}),
    "ImageNet-R": folder(classes("n01443537", "n01484850", pattern="imagenet-r/{c}/art_{k}.jpg") | {"imagenet-r/README.txt": "ImageNet-R\n"}),
    "ImageNet-Sketch": folder(classes("n01440764", "n01443537", pattern="sketch/{c}/sketch_{k}.JPEG")),
    "ImageNetV2: 0 to 11": folder(classes(*map(str, range(12)), n=2, pattern="imagenetv2-matched-frequency-format-val/{c}/{k}ab.jpeg")),
    "mnist_png: training, testing": replace(folder({f"mnist_png/{s}/{c}/{10 * k + c}.png": Pic(300 * j + 40 * c + k, "gray", (28, 28)) for j, s in enumerate(("training", "testing")) for c in range(10) for k in range(2)}), split=1),
    "fastai's cifar10 and labels.txt": replace(folder({f"cifar10/{s}/{c}/{k:04}_{c}.png": Pic(300 * j + 40 * i + k) for j, s in enumerate(("train", "test")) for i, c in enumerate(("airplane", "frog")) for k in range(3)} | {"cifar10/labels.txt": "airplane\nfrog\n"}), split=1),
    "ExDark": folder(classes("Bicycle", "Boat", "Bottle", pattern="ExDark/{c}/2015_{k:05}.jpg")),
    "Describable textures, images only": folder(classes("banded", "blotchy", "grid", pattern="dtd/images/{c}/{c}_{k:04}.jpg")),
    "AID": folder(classes("Airport", "BareLand", "Beach", pattern="AID/{c}/{c}_{k}.jpg")),
    "Kvasir v2": folder(classes("dyed-lifted-polyps", "normal-cecum", "polyps", pattern="kvasir-dataset-v2/{c}/{k}a.jpg")),
    "LC25000": folder(classes("colon_aca", "colon_n", pattern="lung_colon_image_set/colon_image_sets/{c}/{c}{k}.jpeg")),
    "LC25000, both": refused("annotations", classes("colon_aca", "colon_n", pattern="lung_colon_image_set/colon_image_sets/{c}/{c}{k}.jpeg") | classes("lung_aca", "lung_n", "lung_scc", pattern="lung_colon_image_set/lung_image_sets/{c}/{c}{k}.jpeg", start=300), "colon_image_sets"),
    "Real and fake faces (Kaggle)": folder(classes("training_fake", "training_real", n=8, pattern="real_and_fake_face/{c}/{k}.jpg")),
    "Sketchy: photo/class, sketch/class": refused("pairs", {f"{d}/{c}/n0{k}.jpg": Pic(40 * i + k, how) for d, how in (("photo", "photo"), ("sketch", "edges")) for i, c in enumerate(("airplane", "ape")) for k in range(6)}, "sketch"),
}  # fmt: skip


def zipped(names: dict[str, Layout], archive: str, *chosen: str) -> dict[str, Layout]:
    """Return some layouts in an archive."""
    return {
        f"{name}, .{archive}": replace(
            names[name],
            archive=archive,
            group="archives",
            expected=names[name]
            .expected.replace("masks/refused", "masks")
            .replace("masks", "masks/refused"),
        )
        for name in chosen
    }


WORST = (
    "CycleGAN",
    "LEVIR-CD, one split",
    "LOL",
    "DIV2K HR",
    "NYU v2 (Kaggle): RGB and depth in one folder",
    "stereo: left, right",
)
WORST_MASKS = (
    "CVC-ClinicDB",
    "DUTS-TR",
    "mmsegmentation, without splits",
    "KITTI semantics, training only",
)
WORST_OTHERS = ("Supervisely", "xView", "UTKFace in parts", "FFHQ")
TRUE_ONES = (
    "hands: left, right", "sign language: A to Z", "vehicles: train, bus, car", "wrapped twice",
    "Chest X-Ray (Kaggle, with __MACOSX)", "Intel scenes", "classes.txt next to", "a note in a class", "unicode",
    "rooms: clean, messy", "face masks, wrapped and split", "Fruits-360", "PlantVillage (Kaggle)", "splits: TRAIN, TEST",
    "class_names.json next to", "one image in a class", "an inner folder of one name", "words: GT, sedan, SUV",
)  # fmt: skip

ARCHIVES = (
    {
        name: layout
        for archive in ("zip", "tar")
        for name, layout in {
            **zipped(PAIRS, archive, *(WORST if archive == "zip" else WORST[:4] + WORST[5:])),
            **zipped(SEGMENTATION, archive, *WORST_MASKS),
            **zipped(ANNOTATIONS, archive, *WORST_OTHERS),
            **zipped(REID, archive, "Market-1501"),
            **zipped(
                LISTS,
                archive,
                "labels.csv next to class-like folders",
                "labels: labels.mat next to",
            ),
            **zipped(CLASSES, archive, *TRUE_ONES),
        }.items()
    }
    | zipped(PAIRS, "tar.gz", "LOL", "stereo: left, right")
    | zipped(CLASSES, "tar.gz", "hands: left, right", "wrapped once")
)

LAYOUTS: dict[str, Layout] = {
    **SEGMENTATION, **PAIRS, **REID, **ANNOTATIONS, **LISTS, **HARD, **KAGGLE_TREES, **MORE, **OTHERS, **HIDDEN, **CLASSES, **ARCHIVES,
}  # fmt: skip
"""Every layout by its name."""


THOROUGH = {*HIDDEN, *list(LAYOUTS)[::12]}
"""Layouts that are opened as they lie, too, and whose commands are run."""


def run(name: str, thorough: bool) -> Outcome:
    """Pack a layout in a temporary folder."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # LMDB waits for disks
    with tempfile.TemporaryDirectory(dir=memory) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcome(LAYOUTS[name], Path(folder, "in"), thorough)


def main(part: str = "", thorough: str = "") -> None:
    """Print a line for each layout whose name or group has `part` in it, and counts.

    With a second argument, each is opened as it lies, too, and commands are run.
    """
    counts: Counter[str] = Counter()
    for name, layout in LAYOUTS.items():
        if part not in name and part != layout.group:
            continue
        try:
            done = run(name, bool(thorough))
            mark = "WRONG" if done.wrong else "not ok" if done.faults else "ok"
        except Exception as error:
            done = Outcome("error", (f"{type(error).__name__}: {str(error)[:80]}",), True)
            mark = "ERROR"
        counts[mark] += 1
        print(" | ".join([name, layout.expected, done.got, mark, "; ".join(done.faults)[:150]]))
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
