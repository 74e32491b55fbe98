"""Image files loaded as they lie, against packs that keep them, PIL and plain lists."""

from __future__ import annotations

import logging
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pack_helpers import image_folder, pil_file, rejects_of
from PIL import Image, ImageOps
from samples import photo
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from unpacked_helpers import (
    CROP,
    WORKERS,
    check_same_batches,
    every_file,
    files_opened,
    packed,
    same_value,
    write_class_folders,
    write_scenes,
)
from warm_python import WarmPython
from worker_helpers import invert

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.codecs.image_header import read_image_header
from fastdata.errors import (
    DatasetNotFoundError,
    FileCorruptError,
    FormatError,
    ImageError,
    OptionError,
    SourceError,
)
from fastdata.unpacked import listing
from fastdata.unpacked.dataset import UnpackedDataset

BOXES = {"boxes": "boxes"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Class folders with files of every kind, and a pack of them."""
    root = tmp_path_factory.mktemp("folder")
    files = write_class_folders(root / "files", every_file())
    return files, packed(files, root / "kept.lmdb")


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A manifest of turned images with masks and boxes, and a pack of it."""
    root = tmp_path_factory.mktemp("scenes")
    manifest = write_scenes(root / "files")
    return manifest, packed(manifest, root / "kept.lmdb", fields=BOXES)


@pytest.fixture
def jpegs(tmp_path: Path) -> Path:
    """Class folders of twelve JPEGs of one size."""
    return image_folder(tmp_path / "jpegs")


# -- the same as packed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transform", "workers"),
    [
        *((CROP, workers) for workers in WORKERS),
        ([T.Resize(40), T.CenterCrop(32), T.Normalize((0.5,) * 3, (0.2,) * 3)], "threads"),
        ([T.Views(2, CROP)], "caller"),
        ([T.Views(2, CROP)], "processes"),
        ([invert, T.RandomResizedCrop(24)], "processes"),
    ],
    ids=[
        *(f"crop, {workers}" for workers in WORKERS),
        "normalize",
        "views, caller",
        "views, processes",
        "callable",
    ],
)
def test_batches_are_those_of_a_pack_that_keeps_the_files(
    folder: tuple[Path, Path], transform: Any, workers: str
) -> None:
    options = {"batch_size": 9, "shuffle": True, "transform": transform, **WORKERS[workers]}
    first, second = (fastdata.loader(path, **options) for path in folder)
    assert check_same_batches(first, second) == 2 * -(-len(every_file()) // 9)


@pytest.mark.parametrize("workers", WORKERS)
def test_masks_boxes_and_values_of_a_manifest_are_those_of_a_pack(
    scenes: tuple[Path, Path], workers: str
) -> None:
    manifest, kept = scenes
    dataset = fastdata.open(manifest, fields=BOXES)
    options = {"batch_size": 8, "shuffle": True, "transform": CROP, **WORKERS[workers]}
    check_same_batches(fastdata.loader(dataset, **options), fastdata.loader(kept, **options))
    for sample, other in zip(dataset, fastdata.open(kept), strict=True):
        assert all(map(same_value, sample, other))


def test_grey_images_are_those_of_a_grey_pack(folder: tuple[Path, Path], tmp_path: Path) -> None:
    kept = packed(folder[0], tmp_path / "grey.lmdb", channels=1)
    dataset = fastdata.open(folder[0], channels=1)
    options = {"batch_size": 9, "transform": CROP, "num_workers": 0}
    check_same_batches(fastdata.loader(dataset, **options), fastdata.loader(kept, **options))


def test_samples_are_what_pil_reads(folder: tuple[Path, Path]) -> None:
    dataset = fastdata.open(folder[0])
    for (key, label), sample in zip(dataset.samples, dataset, strict=True):
        path = folder[0] / key
        assert sample.label == label == ("ant", "bee").index(path.parent.name)
        if path.name in ("deep.png", "full.jpeg"):  # PIL clips 16 bits; decoders may differ
            continue
        with Image.open(path) as image:
            wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        assert np.array_equal(sample.image.permute(1, 2, 0).numpy(), wanted), key


@pytest.mark.parametrize("cache", ["ram", "device"])
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_caches_give_the_same_batches(folder: tuple[Path, Path], cache: Any, workers: str) -> None:
    options = {"batch_size": 9, "shuffle": True, "transform": CROP, "cache": cache}
    first, second = (fastdata.loader(path, **options, **WORKERS[workers]) for path in folder)
    check_same_batches(first, second, epochs=3)


@pytest.mark.parametrize(
    "part",
    [
        lambda data: data[3:17:2],
        lambda data: Subset(data, [5, 1, 5, 20]),
        lambda data: random_split(data, [10, len(data) - 10])[1],
        lambda data: ConcatDataset([data[:9], data[15:20], data]),
    ],
    ids=["slice", "subset", "split", "sum"],
)
def test_parts_and_sums_are_loaded_as_those_of_a_pack(
    folder: tuple[Path, Path], part: Callable[[Any], Any]
) -> None:
    options = {"batch_size": 7, "transform": CROP, "num_workers": 0}
    loaders = []
    for path in folder:
        torch.manual_seed(3)
        loaders.append(fastdata.loader(part(fastdata.open(path)), **options))
    check_same_batches(*loaders)


def test_two_folders_of_the_same_classes_are_added(tmp_path: Path) -> None:
    roots = [image_folder(tmp_path / name, 4, side=side) for name, side in (("a", 30), ("b", 44))]
    both = ConcatDataset([fastdata.open(root) for root in roots])
    with fastdata.loader(both, batch_size=8, transform=T.CenterCrop(20), num_workers=0) as loader:
        (batch,) = loader
    wanted = [
        sample for root in roots for sample in fastdata.open(root, transform=T.CenterCrop(20))
    ]
    assert torch.equal(batch.image, torch.stack([sample.image for sample in wanted]))
    assert batch.label.tolist() == [sample.label for sample in wanted]
    other = image_folder(tmp_path / "c", 4, classes=("ape", "bee"))
    with pytest.raises(FormatError, match="other fields or classes"):
        fastdata.loader(ConcatDataset([fastdata.open(roots[0]), fastdata.open(other)]))


def test_it_is_a_torch_dataset_like_a_packed_one(folder: tuple[Path, Path]) -> None:
    dataset, kept = map(fastdata.open, folder)
    for name in ("classes", "class_to_idx", "targets", "schema"):
        assert getattr(dataset, name) == getattr(kept, name)
    assert list(dataset.samples) == list(kept.samples)
    assert list(dataset.keys) == list(kept.keys)
    assert "(files): 28 samples" in repr(dataset)
    dataset.transform = T.CenterCrop(20)
    (images, labels) = next(iter(DataLoader(dataset[4:8], batch_size=4)))
    assert images.shape == (4, 3, 20, 20)
    assert labels.tolist() == dataset.targets[4:8]
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[3].image, dataset[3].image)
    record = fastdata.open(folder[0], batch_format="dict", names={"image": "pixels"})[0]
    assert list(record) == ["pixels", "label"]


def test_a_loader_goes_on_where_it_was_and_notices_other_files(jpegs: Path) -> None:
    options = {"batch_size": 4, "shuffle": True, "transform": CROP, "num_workers": 0}
    with fastdata.loader(jpegs, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch.image for batch in batches]
    with fastdata.loader(jpegs, **options) as loader:
        loader.load_state_dict(state)
        assert all(map(torch.equal, rest, [batch.image for batch in loader]))
    file = next(jpegs.rglob("*.jpg"))
    os.utime(file, ns=(1, 1))
    with (
        fastdata.loader(jpegs, **options) as loader,
        pytest.raises(OptionError, match="the state was taken with digest"),
    ):
        loader.load_state_dict(state)


# -- how files are read ----------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["caller", "threads"])
@pytest.mark.parametrize("transform", [CROP, [T.Views(2, CROP)], [invert, *CROP]])
def test_every_file_is_opened_once_an_epoch(tmp_path: Path, transform: Any, workers: str) -> None:
    masks = transform is CROP
    root = write_scenes(tmp_path / "scenes", 40) if masks else image_folder(tmp_path / "images", 40)
    options = {"batch_size": 20, "transform": transform, **WORKERS[workers]}
    options |= {"worker_method": "thread", "persistent_workers": False}
    files = {path.name for path in tmp_path.rglob("*.*") if path.suffix in (".jpg", ".png")}
    if masks:  # text, not boxes
        root.write_text(root.read_text().replace("boxes", "places", 1))
    with fastdata.loader(root, **options) as loader:
        loader.backend.work.read_ahead.pause = 10**6  # asking for files ahead opens them too
        with files_opened() as opened:
            assert len(list(loader)) == 2
    assert len(files) == (80 if masks else 40)
    assert {name: opened[name] for name in files} == dict.fromkeys(files, 1)


def test_held_files_are_opened_once_in_all_epochs(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images", 40)
    options = {"batch_size": 20, "transform": CROP, "shuffle": True, "num_workers": 0}
    with fastdata.loader(root, cache="ram", **options) as loader, files_opened() as opened:
        for _ in range(3):
            list(loader)
        nbytes = loader.stats().cache_bytes
    files = list(root.rglob("*.jpg"))
    assert [opened[path.name] for path in files] == [1] * 40
    assert nbytes == sum(path.stat().st_size for path in files)


def test_a_jpeg_that_is_cut_off_is_noticed_before_it_is_decoded() -> None:
    data = pil_file(photo(160, 140), "JPEG")
    assert read_image_header(data, 3)[:3] == ("jpeg", 160, 140)
    with pytest.raises(ImageError, match="truncated"):
        read_image_header(data[:-2], 3)


def test_tasks_have_few_files_in_memory(jpegs: Path) -> None:
    with fastdata.loader(jpegs, batch_size=1000, transform=CROP, num_workers=1) as loader:
        cut = loader.backend.maker.cut(1000)
    assert max(stop - start for start, stop in cut) <= UnpackedDataset._samples_per_task
    assert [start for start, _ in cut[1:]] == [stop for _, stop in cut[:-1]]
    assert (cut[0][0], cut[-1][1]) == (0, 1000)


# -- what cannot be read -----------------------------------------------------------------------


def _cut(data: bytes) -> bytes:
    return data[: len(data) * 3 // 4]


BAD: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "cut": (_cut, "truncated"),
    "empty": (lambda data: b"", "the file is empty"),
    "text": (lambda data: b"not an image", "not an image of a known format"),
    "header": (lambda data: data[:150], "broken JPEG header"),
    "missing": (lambda data: None, "No such file"),
    "bomb": (
        lambda data: data.replace(data[data.index(b"\xff\xc0") :][5:9], b"\xff\xff\xff\xff"),
        "more than the limit",
    ),
    "damaged": (lambda data: data[:-60] + b"\xff\xc4" * 25 + data[-10:], "broken JPEG|cannot be"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize(("transform", "place"), [(CROP, 7), ([], 0)], ids=["crop", "none"])
def test_what_a_pack_would_reject_is_an_error_or_skipped(
    jpegs: Path, tmp_path: Path, kind: str, transform: Any, place: int
) -> None:
    sound = fastdata.loader(jpegs, batch_size=6, transform=transform, num_workers=0)
    wanted = [(batch.image, batch.label) for batch in sound]
    file = sorted(jpegs.rglob("*.jpg"))[place]
    change, reason = BAD[kind]
    changed = change(file.read_bytes())
    dataset = fastdata.open(jpegs)
    if changed is None:
        file.unlink()
    else:
        file.write_bytes(changed)
        report = fastdata.pack(jpegs, tmp_path / "kept.lmdb", codec="keep", num_workers=0)
        assert report.num_rejected == 1
        assert file.name in rejects_of(tmp_path / "kept.lmdb")
    options = {"batch_size": 6, "transform": transform, "num_workers": 0}
    with fastdata.loader(dataset, **options) as loader:
        with pytest.raises(FileCorruptError, match=reason) as caught:
            list(loader)
        assert str(file) in str(caught.value)
    with pytest.raises(FileCorruptError, match=reason):
        dataset[place]
    with fastdata.loader(dataset, on_corrupt="skip", **options) as loader:
        found = list(loader)
        assert loader.stats().skipped_samples == 1
    for at, (batch, (images, labels)) in enumerate(zip(found, wanted, strict=True)):
        sound_ones = [k for k in range(6) if 6 * at + k != place]
        assert torch.equal(batch.image[sound_ones], images[sound_ones])
        assert torch.equal(batch.label[sound_ones], labels[sound_ones])


def test_a_bad_row_and_a_mask_of_another_size_are_skipped(tmp_path: Path) -> None:
    rows = {3: {"weight": ""}, 11: {"mask": "12_mask.png"}, 12: {"path": "gone.jpg"}}
    manifest = write_scenes(tmp_path / "scenes", 20, rows)
    dataset = fastdata.open(manifest, fields=BOXES)
    for place, reason in ((3, "is empty in this row"), (11, "the same size"), (12, "No such file")):
        with pytest.raises(FileCorruptError, match=reason):
            dataset[place]
    with fastdata.loader(
        dataset, batch_size=20, transform=CROP, on_corrupt="skip", num_workers=2
    ) as loader:
        (batch,) = loader
        assert loader.stats().skipped_samples == 3
    places = [place for place in range(20) if place not in rows]
    assert [batch.caption[k] for k in places] == [f"picture {k}" for k in places]
    assert not {"picture 3", "picture 11", "picture 12"} & set(batch.caption)


def test_a_file_that_changes_its_size_is_no_danger_to_others(jpegs: Path) -> None:
    file = sorted(jpegs.rglob("*.jpg"))[5]
    options = {"batch_size": 12, "transform": CROP, "cache": "device", "num_workers": 0}
    with fastdata.loader(jpegs, on_corrupt="skip", **options) as loader:
        before = loader.backend
        _ = loader.dataset._image_sizes("image", np.arange(12))  # looked at, when places are made
        file.write_bytes(pil_file(photo(90, 90), "JPEG"))
        (batch,) = loader
        assert loader.stats().skipped_samples == 1
        assert before is loader.backend
    places = [k for k in range(12) if k != 5]
    with fastdata.loader(jpegs, **options) as loader:
        (other,) = loader
    assert torch.equal(batch.image[places], other.image[places])


# -- what is said and refused -----------------------------------------------------------------


def test_it_says_once_what_packs_it(jpegs: Path, caplog: pytest.LogCaptureFixture) -> None:
    listing.suggest_packing.cache_clear()
    with caplog.at_level(logging.INFO, "fastdata"):
        for _ in range(2):
            fastdata.loader(jpegs, num_workers=0).close()
        fastdata.loader(fastdata.open(jpegs), num_workers=0, rank=1, world_size=2).close()
    said = [one.getMessage() for one in caplog.records if "fastdata pack" in one.getMessage()]
    assert len(said) == 1
    assert f"fastdata pack {jpegs} jpegs.lmdb" in said[0]


def _tar(root: Path) -> Path:
    path = root / "a train.tar"
    with tarfile.open(path, "w") as tar:
        for file in sorted(image_folder(root / "images").rglob("*.jpg")):
            tar.add(file, file.name)
    return path


def test_other_data_is_refused_with_the_command_that_packs_it(tmp_path: Path) -> None:
    path = _tar(tmp_path)
    wanted = (
        f"'webdataset' is not loaded as it lies. Pack it: fastdata pack '{path}' 'a train.lmdb'"
    )
    for do in (fastdata.open, fastdata.loader):
        with pytest.raises(FormatError) as caught:
            do(path)
        assert wanted in str(caught.value)
    with pytest.raises(
        FormatError, match=r"Pack it: fastdata pack .*images\.lmdb\. Or .*ConcatDataset"
    ):
        fastdata.open([tmp_path / "images", tmp_path / "images"])


def test_data_whose_samples_are_put_together_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "bottle"
    for name in ("train/good", "test/good", "test/broken", "ground_truth/broken"):
        (root / name).mkdir(parents=True)
        suffix = "_mask" * name.startswith("ground")
        Image.new("L", (9, 9)).save(root / name / f"000{suffix}.png")
    with pytest.raises(FormatError, match=r"'mvtec' is not loaded as it lies. Pack it: fastdata"):
        fastdata.open(root)


@pytest.mark.parametrize(
    "do",
    [
        lambda data, to: fastdata.export(data, to.with_suffix("")),
        lambda data, to: fastdata.pack(data, to),
        lambda data, to: fastdata.subset(data, to, indices=[0]),
        lambda data, to: fastdata.view(data.paths[0], to.with_suffix(".html")),
        lambda data, to: data.shards,
    ],
    ids=["export", "pack", "subset", "view", "shards"],
)
def test_what_needs_shards_is_refused(
    jpegs: Path, tmp_path: Path, do: Callable[[Any, Path], Any]
) -> None:
    with pytest.raises(OptionError, match=f"needs a packed dataset.*fastdata pack {jpegs}"):
        do(fastdata.open(jpegs), tmp_path / "out.lmdb")


def test_packed_and_unpacked_are_not_added(folder: tuple[Path, Path]) -> None:
    with pytest.raises(OptionError, match="not loaded as one: pack the files too"):
        fastdata.loader(ConcatDataset([fastdata.open(path) for path in folder]))


def test_options_of_sources_are_for_files_that_are_not_packed(
    folder: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="channels is for files that are not packed"):
        fastdata.open(folder[1], channels=1)
    for split in ("train", "val"):
        image_folder(tmp_path / "splits" / split, 4)
    assert len(fastdata.open(tmp_path / "splits")) == 8
    one = fastdata.open(tmp_path / "splits", source_options={"split": "val"})
    assert list(one.schema) == ["image", "label"]
    assert len(one) == 4
    with pytest.raises(
        OptionError, match=r"fastdata pack \S+splits splits.lmdb --option split=val"
    ):
        _ = one.shards
    with pytest.raises(OptionError, match="no option 'splitt'"):
        fastdata.open(tmp_path / "splits", format="folder", source_options={"splitt": "val"})


def test_folders_that_are_no_class_folders_are_refused_by_their_format(tmp_path: Path) -> None:
    (tmp_path / "images" / "ant").mkdir(parents=True)
    with pytest.raises(SourceError, match="no image in ant"):
        fastdata.open(tmp_path / "images")


def test_what_was_meant_to_be_packed_or_lists_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("bread\nbutter\n")
    with pytest.raises(SourceError, match="no image is called like 'bread'"):
        fastdata.open(tmp_path / "notes.txt")
    image_folder(tmp_path / "shards", 4)
    (tmp_path / "shards" / "manifest.json").write_text("{}")
    with pytest.raises(FormatError, match="not the manifest of a fastdata dataset"):
        fastdata.open(tmp_path / "shards")


def test_a_dataset_is_read_wherever_the_process_has_gone(
    jpegs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(jpegs.parent)
    dataset = fastdata.open(jpegs.name)
    monkeypatch.chdir("/")
    assert dataset[0].image.shape[0] == 3


def test_importing_and_opening_a_pack_imports_no_converter(
    folder: tuple[Path, Path], warm_python: WarmPython
) -> None:
    code = (
        "import sys, fastdata; fastdata.open(sys.argv[1]); fastdata.loader(sys.argv[1]).close();"
        "print([m for m in sys.modules if m.startswith(('fastdata.conv', 'fastdata.unpacked'))])"
    )
    done = warm_python.run(code, folder[1])
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_commands_that_measure_take_files_as_they_lie(jpegs: Path) -> None:
    from fastdata.cli.target import choose, loader_of

    target = choose(str(jpegs), crop=16)
    with loader_of(target, batch_size=4, num_workers=0) as loader:
        assert next(iter(loader)).image.shape == (4, 3, 16, 16)
    assert choose(str(jpegs)).transform == ()  # all are of one small size
    (jpegs / "ant" / "large.png").write_bytes(pil_file(photo(30, 300), "PNG"))
    crop, _ = choose(str(jpegs)).transform
    assert crop.size == (224, 224)
    report = fastdata.profile(
        fastdata.loader(jpegs, batch_size=4, transform=CROP, num_workers=0), seconds=0.2
    )
    assert report.verdict


# -- rows from Python ----------------------------------------------------------------------


@pytest.mark.parametrize("as_bytes", [False, True])
def test_rows_of_python_are_loaded_as_their_pack_is(tmp_path: Path, as_bytes: bool) -> None:
    files = sorted(image_folder(tmp_path / "images", 8).rglob("*.jpg"))
    rows = [
        {"image": path.read_bytes() if as_bytes else str(path), "label": path.parent.name}
        for path in files
    ]
    fastdata.pack(rows, tmp_path / "x.lmdb", codec="keep", num_workers=0, progress=False)
    packed, opened = fastdata.open(tmp_path / "x.lmdb"), fastdata.open(rows)
    assert opened.schema == packed.schema
    assert list(opened.keys) == list(packed.keys)
    for how in WORKERS.values():
        for mine, theirs in zip(
            fastdata.loader(rows, 3, True, transform=CROP, **how),
            fastdata.loader(packed, 3, True, transform=CROP, **how),
            strict=True,
        ):
            assert torch.equal(mine.image, theirs.image)
            assert torch.equal(mine.label, theirs.label)
    with pytest.raises(OptionError, match=r'Pack it: fastdata.pack\(rows, "rows.lmdb"\)'):
        opened.shards  # noqa: B018


def test_rows_whose_files_are_missing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none of its first 1 images is there"):
        fastdata.open([{"image": str(tmp_path / "gone.jpg")}])


def test_a_list_of_paths_is_locations_not_rows(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        fastdata.open([tmp_path / "a.jpg", tmp_path / "b.jpg"])
