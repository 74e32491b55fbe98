"""`pack` as a whole: report, rejects, shards, order, and what is at the destination."""

from __future__ import annotations

import csv
import itertools
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pack_helpers import QUICK, digest_of, image_folder, pil_file, png, rejects_of, two_broken
from samples import photo

import fastdata
from fastdata.converters.base import IndexedSource, Sample
from fastdata.converters.packing import driver, packer
from fastdata.errors import (
    DestinationExistsError,
    OptionError,
    RejectedError,
    SourceError,
)
from fastdata.formats.manifest import Manifest
from fastdata.schema import ImageField, Schema, StringField


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return two_broken(tmp_path / "images")


REASONS = {
    "ant/00008.jpg": "the file is empty",
    "bee/00021.jpg": "not an image of a known format: it begins with b'<html>'",
}


# -- the report ----------------------------------------------------------------------


@pytest.mark.parametrize("container", ["lmdb", "hdf5"])
def test_the_report_says_what_was_done(folder: Path, tmp_path: Path, container: Any) -> None:
    path = tmp_path / "out" / "made" / "x"
    (folder / "ant" / "readme.txt").write_text("")
    report = fastdata.pack(folder, path, **QUICK, container=container)
    dataset = fastdata.open(path)
    assert report.path == path
    assert report.digest == dataset.digest == digest_of(path)
    assert (report.num_samples, report.num_rejected, report.num_shards) == (38, 2, 1)
    assert report.file_bytes == path.stat().st_size
    assert (report.resumed_at, len(dataset)) == (0, 38)
    assert report.notes == ("1 files without an image suffix left out: 1 .txt",)
    assert dict(report.rejects) == REASONS
    text = str(report)
    assert text.startswith(f"{path}: 38 images, 0.")
    assert "2 rejected" in text
    assert text.endswith(f'  loader = fastdata.loader("{path}", batch_size=256, shuffle=True)')
    document = report.to_json()
    assert document["digest"] == report.digest
    assert document["rejects_path"] == str(path) + ".rejects.csv"
    assert [p.name for p in path.parent.iterdir()] == ["x", "x.rejects.csv"] or {
        p.name for p in path.parent.iterdir()
    } == {"x", "x.rejects.csv"}


def test_rejects_are_listed_with_their_place_key_and_reason(folder: Path, tmp_path: Path) -> None:
    report = fastdata.pack(folder, tmp_path / "x.lmdb", **QUICK)
    assert report.rejects_path == tmp_path / "x.lmdb.rejects.csv"
    with open(report.rejects_path, newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["index", "key", "reason"],
        ["4", "ant/00008.jpg", REASONS["ant/00008.jpg"]],
        ["30", "bee/00021.jpg", REASONS["bee/00021.jpg"]],
    ]
    keys = list(fastdata.open(tmp_path / "x.lmdb").keys)
    assert not set(keys) & set(REASONS)


def test_reasons_of_any_form_survive_the_list(tmp_path: Path) -> None:
    odd = ['a "quote", a comma', "two\nlines", "ümlaut", "\udcff lone", ""]

    class Source:
        def __len__(self) -> int:
            return len(odd) + 1

        def __getitem__(self, index: int) -> Any:
            if index:
                raise ValueError(odd[index - 1])
            return photo(20, 20)

    report = fastdata.pack(Source(), tmp_path / "x.lmdb", **QUICK)
    assert [r.reason for r in report.rejects] == [text.replace("\udcff", "\\udcff") for text in odd]


def test_a_list_of_rejects_goes_when_there_are_none_any_more(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.lmdb"
    assert fastdata.pack(folder, path, **QUICK).num_rejected == 2
    for key in REASONS:
        (folder / key).unlink()
    report = fastdata.pack(folder, path, **QUICK, overwrite=True)
    assert (report.num_rejected, report.rejects_path, report.rejects) == (0, None, [])
    assert rejects_of(path) == ""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_on_error_stop_stops_at_the_first(folder: Path, tmp_path: Path, num_workers: int) -> None:
    path = tmp_path / "x.lmdb"
    options = {**QUICK, "num_workers": num_workers}
    with pytest.raises(RejectedError, match=r"^ant/00008\.jpg: the file is empty\. Go on with"):
        fastdata.pack(folder, path, **options, on_error="stop")
    assert not path.exists()
    assert rejects_of(path) == ""
    report = fastdata.pack(folder, path, **options)  # what it says one can do
    assert dict(report.rejects) == REASONS


def test_on_error_stop_keeps_what_came_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 3)
    with pytest.raises(RejectedError, match=r"00008\.jpg"):
        fastdata.pack(folder, tmp_path / "x.lmdb", **QUICK, on_error="stop")
    assert fastdata.pack(folder, tmp_path / "x.lmdb", **QUICK).resumed_at == 3


@pytest.mark.parametrize("options", [{}, {"shards": 3}, {"container": "hdf5"}, {"shuffle": True}])
def test_when_all_are_rejected_they_are_listed_and_nothing_is_left(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    root, path = image_folder(tmp_path / "images", 6), tmp_path / "x"
    for file in root.rglob("*.jpg"):
        file.write_bytes(b"no image")
    message = r"all 6 samples were rejected, the first, .*\.jpg, since: not an image .* listed in"
    with pytest.raises(SourceError, match=message):
        fastdata.pack(root, path, **QUICK, **options)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "x.rejects.csv"]
    assert rejects_of(path).count("not an image") == 6
    image_folder(root, 6)  # mended: it can be packed at once
    assert fastdata.pack(root, path, **QUICK, **options).num_samples == 6
    assert rejects_of(path) == ""


@pytest.mark.parametrize(
    ("options", "files"),
    [({"shards": 4}, [2, 3]), ({"shard_size": 10}, [1, 2, 3]), ({"shards": 40}, [4])],
)
def test_shards_without_a_good_sample_leave_no_file(
    tmp_path: Path, options: dict[str, Any], files: list[int]
) -> None:
    root, path = image_folder(tmp_path / "images", 40, classes=["ant"]), tmp_path / "x"
    for number, file in enumerate(sorted(root.rglob("*.jpg"))):
        good = number >= 20 if options == {"shards": 4} else number >= 10
        if options == {"shards": 40}:
            good = number == 4
        if not good:
            file.write_bytes(b"")
    report = fastdata.pack(root, path, format="folder", **QUICK, **options)
    assert [shard.file for shard in Manifest.read(path).shards] == [
        f"shard-{number:05}.lmdb" for number in files
    ]
    assert report.num_shards == len(files)
    assert len(fastdata.open(path)) == report.num_samples == 40 - report.num_rejected


# -- what decides the content ----------------------------------------------------------------------


def test_containers_shards_and_workers_do_not_show_in_the_digest(
    folder: Path, tmp_path: Path
) -> None:
    forms: list[dict[str, Any]] = [
        {},
        {"container": "hdf5"},
        {"num_workers": 1},
        {"num_workers": 3},
        {"shards": 3},
        {"shard_size": 11},
        {"shard_size": "9"},
        {"shard_size": "4kB"},
        {"shard_size": "4 KB", "container": "hdf5", "num_workers": 2},
        {"shards": 40},
        {"quality": 90, "seed": 5},
    ]
    digests, orders = set(), set()
    for number, form in enumerate(forms):
        report = fastdata.pack(folder, tmp_path / f"x{number}", **{**QUICK, **form})
        digests.add(report.digest)
        orders.add(tuple(fastdata.open(tmp_path / f"x{number}").keys))
        assert dict(report.rejects) == REASONS
    assert len(digests) == len(orders) == 1


def test_the_chunk_size_does_not_show_either(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = set()
    for samples in (1, 7, 100):
        monkeypatch.setattr(packer, "CHUNK_SAMPLES", samples)
        digests.add(fastdata.pack(folder, tmp_path / f"x{samples}", **QUICK, shards=2).digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadPoolExecutor(3),
        lambda: ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")),
    ],
    ids=["threads", "processes"],
)
def test_any_executor_gives_the_same(
    folder: Path, tmp_path: Path, make: Callable[[], Executor]
) -> None:
    class Pictures:
        def __len__(self) -> int:
            return 70

        def __getitem__(self, index: int) -> Any:
            if index == 40:
                raise KeyError("forty")
            return np.full((30, 70, 3), index, np.uint8), index

    for number, source in enumerate((folder, Pictures())):
        alone = fastdata.pack(source, tmp_path / f"alone{number}", **QUICK)
        with make() as executor:
            report = fastdata.pack(source, tmp_path / f"x{number}", **QUICK, executor=executor)
            assert executor.submit(len, "not shut down").result() == 13
        assert report.digest == alone.digest
        assert report.rejects == alone.rejects


def test_shuffled_order_depends_on_the_seed_alone(folder: Path, tmp_path: Path) -> None:
    def order(name: str, **options: Any) -> tuple[str, ...]:
        report = fastdata.pack(folder, tmp_path / name, **{**QUICK, "shuffle": True, **options})
        dataset = fastdata.open(tmp_path / name)
        assert dict(report.rejects) == REASONS or "limit" in options
        for key, sample in zip(dataset.keys, dataset, strict=True):
            assert dataset.classes is not None
            assert dataset.classes[sample.label] == key.split("/")[0]
        return tuple(dataset.keys)

    first = order("a")
    assert first == order("b", num_workers=3) == order("c", container="hdf5", shards=3)
    assert first != order("d", seed=1)
    assert sorted(first) == sorted(order("e", shuffle=False))
    assert first != order("f", shuffle=False)
    expected = np.random.Generator(np.random.PCG64(0)).permutation(40)
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*.jpg"))
    assert list(first) == [files[k] for k in expected if files[k] not in REASONS]
    # A limit takes from the shuffled order, so that all classes are in it.
    some = order("g", limit=10)
    assert some == first[: len(some)]


def test_only_what_can_be_indexed_can_be_shuffled(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="shuffle needs a source that can be indexed; 'iterable'"):
        fastdata.pack(iter([png()]), tmp_path / "x.lmdb", shuffle=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [1, 5, 33, 40, 1000])
def test_a_limit_counts_samples_good_or_bad(folder: Path, tmp_path: Path, limit: int) -> None:
    report = fastdata.pack(folder, tmp_path / "x.lmdb", **QUICK, limit=limit)
    assert report.num_samples + report.num_rejected == min(limit, 40)
    assert report.num_rejected == (limit > 4) + (limit > 30)


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ({"shards": 1}, None),
        ({"shards": 2}, [20, 20]),
        ({"shards": 3}, [13, 13, 14]),
        ({"shards": 3, "limit": 7}, [2, 2, 3]),
        ({"shard_size": 16}, [16, 16, 8]),
        ({"shard_size": 40}, [40]),
        ({"shard_size": 41}, [40]),
        ({"shard_size": "16"}, [16, 16, 8]),
    ],
)
def test_shards_hold_as_many_as_was_asked_for(
    tmp_path: Path, options: dict[str, Any], samples: list[int] | None
) -> None:
    root, path = image_folder(tmp_path / "images", 40), tmp_path / "x"
    report = fastdata.pack(root, path, **QUICK, **options)
    if samples is None:
        assert path.is_file()
        return
    manifest = Manifest.read(path)
    assert [shard.num_samples for shard in manifest.shards] == samples
    assert report.num_shards == len(samples)
    assert report.file_bytes == sum(
        (path / shard.file).stat().st_size == shard.file_bytes and shard.file_bytes
        for shard in manifest.shards
    )
    assert sorted(p.name for p in path.iterdir()) == [
        "manifest.json",
        *(shard.file for shard in manifest.shards),
    ]


def test_shards_of_so_many_bytes_are_about_that_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_SAMPLES", 4)
    images = [np.full((50, 40, 3), k, np.uint8) for k in range(60)]  # 6,000 bytes each
    fastdata.pack(images, tmp_path / "x", codec="raw", shard_size="0.05MB", num_workers=0)
    counts = [shard.num_samples for shard in Manifest.read(tmp_path / "x").shards]
    assert counts == [12] * 5  # 72,000 bytes: the first multiple of 4 images beyond 50,000


def test_an_iterable_of_unknown_length_can_be_cut_by_size_only(tmp_path: Path) -> None:
    images = [png(k) for k in range(20)]
    with pytest.raises(OptionError, match="shards=2 needs a source of known length"):
        fastdata.pack(iter(images), tmp_path / "x", shards=2)
    assert list(tmp_path.iterdir()) == []
    assert fastdata.pack(iter(images), tmp_path / "x", shard_size=9, num_workers=0).num_shards == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0 is not an integer from 1"),
        ({"size": (1, 2, 3)}, "neither an int nor"),
        ({"size": 2.5}, "neither an int nor"),
        ({"size": (20, 30)}, "takes one size"),
        ({"resize": "shorter"}, "resize='shorter' is not one of 'short'"),
        ({"filter": "area"}, "filter='area' is not one of 'bilinear'"),
        ({"codec": "webp"}, "codec='webp' is not one of"),
        ({"quality": 101}, "quality=101 is not an integer from 1 to 100"),
        ({"channels": 4}, "channels=4 is neither 3 nor 1"),
        ({"container": "zip"}, "container='zip' is not one of 'lmdb', 'hdf5'"),
        ({"shards": 0}, "shards=0 is not an integer from 1"),
        ({"shards": 41}, "shards=41 are more than the source's 40 samples"),
        ({"shards": 2, "shard_size": 5}, "shards= and shard_size= exclude each other"),
        ({"shard_size": "5 apples"}, "shard_size='5 apples' is neither"),
        ({"shard_size": 2.5}, "shard_size=2.5 is neither"),
        ({"shard_size": "2.5"}, "shard_size='2.5' is neither"),
        ({"shard_size": 0}, "shard_size=0 is not an integer from 1"),
        ({"shard_size": "0"}, "shard_size=0 is not an integer from 1"),
        ({"shard_size": "0.1B"}, "shard_bytes=0 is not an integer from 1"),
        ({"limit": 0}, "limit=0 is not an integer from 1"),
        ({"seed": -1}, "seed=-1 is not an integer from 0"),
        ({"num_workers": -1}, "num_workers=-1 is not an integer from 0"),
        ({"on_error": "ignore"}, "on_error='ignore' is neither"),
        ({"max_pixels": 0}, "max_pixels=0 is not an integer from 1"),
        ({"format": "tar"}, "format 'tar' is not one of"),
    ],
)
def test_options_are_checked_before_anything_is_written(
    folder: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.pack(folder, tmp_path / "x.lmdb", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize("destination", ["", ".", "..", "a/.."])
def test_a_destination_has_a_name(folder: Path, destination: str) -> None:
    with pytest.raises(OptionError, match="cannot be the name of a dataset"):
        fastdata.pack(folder, destination)


@pytest.mark.parametrize(
    ("name", "container"),
    [("a.lmdb", "lmdb"), ("a.h5", "hdf5"), ("a.HDF5", "hdf5"), ("a", "lmdb")],
)
def test_the_suffix_chooses_the_container(
    folder: Path, tmp_path: Path, name: str, container: str
) -> None:
    fastdata.pack(folder, tmp_path / name, **QUICK, limit=3)
    assert next(fastdata.open(tmp_path / name).shards).header.container == container


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.lmbd", "x.mdb"])
def test_a_suffix_of_another_kind_of_file_is_asked_about(
    folder: Path, tmp_path: Path, name: str
) -> None:
    remedy = r"\.lmdb, \.h5, \.hdf5.*--container"
    with pytest.raises(OptionError, match=remedy) as caught:
        fastdata.pack(folder, tmp_path / name, **QUICK)
    assert ("Did you mean '.lmdb'?" in str(caught.value)) == (name in ("x.lmbd", "x.mdb"))
    assert [p.name for p in tmp_path.iterdir()] == ["images"]
    fastdata.pack(folder, tmp_path / name, **QUICK, limit=3, container="lmdb")
    fastdata.pack(folder, tmp_path / f"many-{name}", **QUICK, limit=4, shards=2)
    assert (tmp_path / f"many-{name}").is_dir()


# -- what is at the destination ------------------------------------------------------------------


@pytest.mark.parametrize("what", ["dataset", "directory", "file", "link"])
def test_what_is_there_is_left_alone(folder: Path, tmp_path: Path, what: str) -> None:
    path = tmp_path / "x.lmdb"
    if what == "dataset":
        fastdata.pack(folder, path, **QUICK, limit=3)
    elif what == "directory":
        path.mkdir()
    elif what == "file":
        path.write_text("mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = path.lstat()
    with pytest.raises(DestinationExistsError, match=r"already exists\. Choose another"):
        fastdata.pack(folder, path, **QUICK)
    assert path.lstat() == before
    assert not (tmp_path / "x.lmdb.partial").exists()


def test_a_file_that_is_no_dataset_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(b"somebody's work")
    with pytest.raises(DestinationExistsError, match=r"b\.tar is a file, not a dataset"):
        fastdata.pack(folder, path, **QUICK, container="lmdb", overwrite=True)
    assert path.read_bytes() == b"somebody's work"
    cut = tmp_path / "cut.lmdb"
    fastdata.pack(folder, cut, **QUICK)
    cut.write_bytes(cut.read_bytes()[:-64])
    assert fastdata.pack(folder, cut, **QUICK, overwrite=True).num_samples == 38


@pytest.mark.parametrize("new", [{"shards": 1}, {"shards": 2}])
@pytest.mark.parametrize("old", [{"shards": 1}, {"shards": 3}])
def test_overwriting_keeps_the_old_until_the_new_is_complete(
    folder: Path, tmp_path: Path, old: dict[str, Any], new: dict[str, Any], monkeypatch: Any
) -> None:
    path = tmp_path / "x"
    before = fastdata.pack(folder, path, **QUICK, **old, limit=9).digest
    reader = fastdata.open(path)
    assert len(reader[3]) == 2
    seen = []
    finish = packer.Packer._finish

    def watched(self: Any) -> str:
        seen.append(digest_of(path))
        return finish(self)

    monkeypatch.setattr(packer.Packer, "_finish", watched)
    report = fastdata.pack(folder, path, **QUICK, **new, overwrite=True)
    assert seen == [before]
    assert report.digest == digest_of(path) != before
    assert len(reader[3].image) == 3  # one who has it open still reads the old one
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "x", "x.rejects.csv"]


def test_a_source_within_what_would_be_replaced_is_kept(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "shards"
    fastdata.pack(folder, whole, **QUICK, shards=2)
    inside = folder.rename(whole / "images")
    files = sorted(inside.rglob("*.jpg"))
    (tmp_path / "link").symlink_to(whole)
    for source in (inside, tmp_path / "link" / "images"):
        with pytest.raises(DestinationExistsError, match=r"contains the source .* Choose another"):
            fastdata.pack(source, whole, **QUICK, shards=2, overwrite=True)
    assert sorted(inside.rglob("*.jpg")) == files


@pytest.mark.parametrize("failure", ["source", "stop"])
def test_overwriting_in_vain_keeps_the_old(folder: Path, tmp_path: Path, failure: str) -> None:
    path = tmp_path / "x"
    before = fastdata.pack(folder, path, **QUICK, limit=3).digest
    if failure == "stop":
        with pytest.raises(RejectedError, match="the file is empty"):
            fastdata.pack(folder, path, **QUICK, overwrite=True, on_error="stop")
    else:
        for file in folder.rglob("*.jpg"):
            file.write_bytes(b"")
        with pytest.raises(SourceError, match="nothing to pack"):
            fastdata.pack(folder, path, **QUICK, overwrite=True)
    assert digest_of(path) == before


def test_a_source_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        fastdata.pack(tmp_path / "nowhere", tmp_path / "x.lmdb")
    assert list(tmp_path.iterdir()) == []


# -- progress ----------------------------------------------------------------------


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_progress_is_silent_unless_there_is_a_terminal_or_a_wish(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], progress: Any, shown: bool
) -> None:
    fastdata.pack(folder, tmp_path / "x.lmdb", **QUICK, progress=progress)
    out, err = capfd.readouterr()
    assert out == ""
    assert (err != "") == shown
    if shown:
        assert "packing x.lmdb" in err
        assert "40/40" in err
        assert "img/s" in err


def test_odd_names_and_duplicates_are_packed(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(png(1))
    (tmp_path / "l.csv").write_text("path,label\n" + "a b.png,1\n" * 5)
    fastdata.pack(tmp_path / "l.csv", tmp_path / "x y'\".lmdb", num_workers=0)
    dataset = fastdata.open(tmp_path / "x y'\".lmdb")
    assert list(dataset.keys) == ["a b.png"] * 5


def test_sources_of_other_people_cannot_break_a_pack(tmp_path: Path, monkeypatch: Any) -> None:
    """What a sample holds is checked in the worker, whoever made it."""

    class Sloppy(IndexedSource):
        name = "sloppy"
        schema = Schema({"image": ImageField(), "text": StringField()})

        def __init__(self, location: Any = None, **options: Any) -> None:
            self.notes = []
            self.num_samples = 7

        @classmethod
        def recognises(cls, location: Any) -> bool:
            return False

        def __getitem__(self, index: int) -> Sample:
            good = pil_file(photo(30, 30), "PNG")
            if index == 6:
                raise RuntimeError("six")
            return [
                Sample("good", (good, "text")),
                Sample("surrogate key \udcff", (good, "text")),
                Sample("surrogate text", (good, "\ud800")),
                Sample("number", (good, 7)),
                Sample("too few", (good,)),
                Sample("no image", (None, "text")),
            ][index]

        def key_at(self, index: int) -> str:
            return "six \udcff"

    monkeypatch.setattr(driver, "find_source", lambda source, **options: source)
    report = fastdata.pack(Sloppy(), tmp_path / "x.lmdb", num_workers=1)
    assert list(fastdata.open(tmp_path / "x.lmdb").keys) == ["good"]
    assert [reject.key for reject in report.rejects] == [
        "surrogate key \\udcff",
        "surrogate text",
        "number",
        "too few",
        "no image",
        "six \\udcff",
    ]


def test_a_destination_inside_of_what_is_packed_is_refused(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images")
    with pytest.raises(SourceError, match="choose a destination outside of"):
        fastdata.pack(folder, folder / "x.lmdb", num_workers=0)
    assert sorted(os.listdir(folder)) == ["ant", "bee"]


def test_large_images_are_not_held_by_the_dozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "CHUNK_BYTES", 100_000)
    sizes: list[int] = []
    take = packer.Packer._take

    def noted(self: packer.Packer, result: Any) -> None:
        sizes.append(len(result))
        take(self, result)

    monkeypatch.setattr(packer.Packer, "_take", noted)
    large = (np.zeros((150, 150, 3), np.uint8) for _ in range(7))  # 67,500 bytes each
    small = (np.zeros((5, 5, 3), np.uint8) for _ in range(40))
    fastdata.pack(itertools.chain(large, small), tmp_path / "x.lmdb", num_workers=0)
    assert sizes == [2, 2, 2, 32, 9]
