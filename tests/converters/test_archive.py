"""Archives of class folders are read like the extracted folder, and others are refused."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from case_archive import write_zip
from case_webdataset import write_tar
from cases import Picture, make_pictures
from pack_helpers import digest_of

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ScalarField

SUFFIXES = ("tar", "tar.gz", "tgz", "zip", "deflated.zip")


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(8)


def write(path: Path, members: list[tuple[str, bytes]]) -> Path:
    """Write an archive as its suffix says."""
    if path.suffix == ".zip":
        method = zipfile.ZIP_DEFLATED if "deflated" in path.name else zipfile.ZIP_STORED
        return write_zip(path, members, method)
    return write_tar(path, members, "w" if path.suffix == ".tar" else "w:gz", tarfile.GNU_FORMAT)


def extracted(archive: Path, to: Path) -> Path:
    """Extract an archive by Python's own readers."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as found:
            found.extractall(to)
    else:
        with tarfile.open(archive) as found:
            found.extractall(to, filter="data")
    return to


def pack(location: Any, path: Path, **options: Any) -> Any:
    quiet = {"codec": "keep", "resize": "none", "num_workers": 0, "progress": False}
    return fastdata.pack(location, path, **{**quiet, **options})


def named(pictures: list[Picture], *names: str) -> list[tuple[str, bytes]]:
    return [(name, p.data) for name, p in zip(names, pictures, strict=False)]


LAYOUTS = {
    # In the order of class folders: "cat-x" comes before "cat/a" among paths, not among classes.
    "classes": ("cat/1.JPG", "cat/2.jpg", "cat-x/0.jpg", "dog/3.jpg", "dog/4.jpg"),
    "folders in classes": ("cat/a/2.jpg", "cat-x/a/0.jpg", "dog/a/3.jpg", "dog/a/4.jpg"),
    "splits": ("train/ant/0.jpg", "train/bee/1.jpg", "val/bee/2.jpg", "val/cat/3.jpg"),
    "one top folder": ("ant/7.jpg", "ant/8.jpg", "bee/7.jpg"),
}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_what_the_extracted_folder_is(
    layout: str, suffix: str, tmp_path: Path, pictures: list[Picture]
) -> None:
    top = "photos/" if layout == "one top folder" else ""
    members = named(pictures, *(top + name for name in LAYOUTS[layout]))
    if layout == "classes":
        members += [("cat/readme.txt", b"a"), ("__MACOSX/cat/._1.jpg", b"a"), ("cat/._1.JPG", b"a")]
    if "gz" not in suffix:  # these are read from the front, in any order that they have
        members.reverse()
    archive = write(tmp_path / f"a.{suffix}", members)
    (tmp_path / "out").mkdir()
    folder = extracted(archive, tmp_path / "out") / top
    for path in [*folder.rglob("._*"), *folder.glob("__MACOSX/cat"), *folder.glob("__MACOSX")]:
        path.rmdir() if path.is_dir() else path.unlink()
    source, wanted = find_source(archive), find_source(folder)
    assert (source.name, wanted.name) == ("archive", "folder")
    assert dict(source.schema) == dict(wanted.schema)
    assert source.num_samples == wanted.num_samples
    pack(archive, tmp_path / "a.lmdb")
    pack(folder, tmp_path / "b.lmdb")
    here, there = fastdata.open(tmp_path / "a.lmdb"), fastdata.open(tmp_path / "b.lmdb")
    assert list(here.keys) == list(there.keys)
    assert digest_of(tmp_path / "a.lmdb") == digest_of(tmp_path / "b.lmdb")


def test_one_split_is_taken(tmp_path: Path, pictures: list[Picture]) -> None:
    archive = write(tmp_path / "a.zip", named(pictures, *LAYOUTS["splits"]))
    source = find_source(archive, options={"split": "val"})
    # The numbers are those of all splits.
    assert dict(source.schema)["label"] == ScalarField(classes=("ant", "bee", "cat"))
    assert [s.key for s in source] == ["val/bee/2.jpg", "val/cat/3.jpg"]  # type: ignore[union-attr]
    as_classes = find_source(archive, options={"split": "none"})
    assert dict(as_classes.schema)["label"] == ScalarField(classes=("train", "val"))
    with pytest.raises(OptionError, match=r"split=test: no such folder in .* has train, val"):
        find_source(archive, options={"split": "test"})


def test_webdataset_stays_webdataset(tmp_path: Path, pictures: list[Picture]) -> None:
    pairs = [
        (f"class{k % 2}/{k}.{suffix}", p.data if suffix == "jpg" else b"1")
        for k, p in enumerate(pictures)
        for suffix in ("cls", "jpg")
    ]
    assert find_source(write(tmp_path / "a.tar", pairs)).name == "webdataset"
    assert find_source(write(tmp_path / "a.tgz", pairs)).name == "webdataset"
    flat = write(tmp_path / "b.tar", named(pictures, "0.jpg", "./1.jpg", "2.jpg"))
    assert find_source(flat).name == "webdataset"


def test_what_fastdata_exported_stays_webdataset(tmp_path: Path, pictures: list[Picture]) -> None:
    pack(write(tmp_path / "a.zip", named(pictures, *LAYOUTS["classes"])), tmp_path / "a.lmdb")
    fastdata.export(tmp_path / "a.lmdb", tmp_path / "out", format="webdataset")
    assert find_source(tmp_path / "out").name == "webdataset"


@pytest.mark.parametrize("suffix", ["tar", "tgz", "zip"])
@pytest.mark.parametrize(
    ("names", "match"),
    [
        (("data/images/0.jpg", "data/masks/0.png"), "images, masks are named like images"),
        (("photos/0.jpg", "photos/1.jpg"), "only one folder, 'photos'"),
        (("train/0.jpg", "val/1.jpg"), "train, val are splits by name"),
        (("train/a/0.jpg", "train/b/0.jpg", "val/1.jpg"), "(?s)are splits.*--option split=train"),
        (("a/0.jpg", "b/1.jpg", "labels/0.txt"), "no image in labels"),
        (("a/0.jpg", "b/1.jpg", "c/"), "no image in c"),
    ],
)
def test_other_layouts_are_refused(
    names: tuple[str, ...], match: str, suffix: str, tmp_path: Path, pictures: list[Picture]
) -> None:
    members = [
        (n, b"" if n.endswith("/") else p.data) for n, p in zip(names, pictures, strict=False)
    ]
    archive = write(tmp_path / f"a.{suffix}", members)
    with pytest.raises(SourceError, match=match) as raised:
        find_source(archive)
    assert "fastdata pack" in str(raised.value)


def test_what_may_be_either_is_refused_with_both_commands(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    names = [f"{'ab'[k % 2]}/{k:03}.jpg" for k in range(70)]
    members = [(name, pictures[0].data) for name in names] + [("b/001.bin", b"1")]
    with pytest.raises(SourceError, match=r"--format webdataset.*pack the folder"):
        find_source(write(tmp_path / "a.tar", members))
    zipped = write(tmp_path / "a.zip", members)  # WebDataset has no zip files
    with pytest.raises(SourceError, match=r"b/001.bin may describe the images"):
        find_source(zipped)
    source = find_source(zipped, format="archive")
    assert source.num_samples == 70
    assert any("1 files without an image suffix" in note for note in source.notes)


def test_flat_zip_files_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    with pytest.raises(SourceError, match=r"(?s)no class folders.*unzip"):
        find_source(write(tmp_path / "a.zip", named(pictures, "0.jpg", "1.jpg")))


def test_several_archives_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    for name in ("train.tar", "val.tar"):
        write(tmp_path / name, named(pictures, *LAYOUTS["classes"]))
    with pytest.raises(SourceError, match=r"2 archives \(train.tar, val.tar\)"):
        find_source(tmp_path)


def test_an_archive_beside_images_is_not_taken(tmp_path: Path, pictures: list[Picture]) -> None:
    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "0.jpg").write_bytes(pictures[0].data)
    write(tmp_path / "in" / "backup.zip", named(pictures, *LAYOUTS["classes"]))
    assert find_source(tmp_path / "in").name == "folder"


def test_links_and_doubles_are_rejects(tmp_path: Path, pictures: list[Picture]) -> None:
    members = named(pictures, "a/0.jpg", "b/1.jpg", "b/2.jpg", "b/2.jpg")
    path = write(tmp_path / "a.tar", members)
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("a/9.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    report = pack(path, tmp_path / "a.lmdb")
    assert report.num_samples == 2
    assert {reject.key: reject.reason for reject in report.rejects} == {
        "b/2.jpg": "the archive has its name twice",
        "a/9.jpg": "a link, which is not read",
    }


def test_names_that_lead_out_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    for name in ("a.tar", "a.zip"):
        path = write(tmp_path / name, named(pictures, "a/0.jpg", "b/1.jpg", "a/../a/3.jpg"))
        with pytest.raises(SourceError, match=r"a/\.\./a/3\.jpg leads out of the archive"):
            find_source(path)


def test_names_of_no_encoding_become_printable(tmp_path: Path, pictures: list[Picture]) -> None:
    path = write(tmp_path / "a.tar", named(pictures, "a/0\udcff.jpg", "b/1.jpg"))
    assert pack(path, tmp_path / "a.lmdb").num_samples == 2
    assert list(fastdata.open(tmp_path / "a.lmdb").keys) == ["a/0\ufffd.jpg", "b/1.jpg"]


def changed(path: Path, signature: bytes, offset: int, value: bytes) -> Path:
    """Change a field of each entry of a zip's directory."""
    data, at = bytearray(path.read_bytes()), -1
    while (at := data.find(signature, at + 1)) >= 0:
        data[at + offset : at + offset + len(value)] = value
    path.write_bytes(data)
    return path


def test_a_name_with_a_zero_byte_is_one_image(tmp_path: Path, pictures: list[Picture]) -> None:
    names = ["a/x0.jpg", "a/y0.jpg", "b/x1.jpg", "b/y1.jpg"]
    path = write(tmp_path / "a.zip", [(n, p.data) for n, p in zip(names, pictures, strict=False)])
    path.write_bytes(path.read_bytes().replace(b"a/x0.jpg", b"a/x\0.jpg"))
    pack(path, tmp_path / "x.lmdb")
    data = fastdata.open(tmp_path / "x.lmdb")
    assert [data.classes[sample.label] for sample in data] == ["a", "a", "b", "b"]


def test_encrypted_and_unknown_members_are_rejects(tmp_path: Path, pictures: list[Picture]) -> None:
    members = named(pictures, "a/0.jpg", "b/1.jpg")
    path = changed(write(tmp_path / "a.zip", members), b"PK\1\2", 8, b"\1\0")
    assert {r.reason for r in find_source(path)} == {"it is encrypted, which is not read"}  # type: ignore[union-attr]
    path = changed(write(tmp_path / "b.zip", members), b"PK\1\2", 10, b"\x0e\0")
    assert all("method 14" in r.reason for r in find_source(path))  # type: ignore[union-attr]


def test_a_bomb_inflates_no_more_than_it_says(tmp_path: Path, pictures: list[Picture]) -> None:
    members = [("a/0.jpg", bytes(1 << 20)), ("b/1.jpg", pictures[0].data)]
    path = write(tmp_path / "a.deflated.zip", members)
    changed(path, b"PK\1\2", 24, struct.pack("<I", 5000))
    with pytest.raises(SourceError, match=r"all 2 samples were rejected.* has not the 5,000 bytes"):
        pack(path, tmp_path / "a.lmdb")
    changed(path, b"PK\1\2", 24, struct.pack("<I", 3 << 30))
    with pytest.raises(SourceError, match="a member claims 3,221,225,472 bytes"):
        find_source(path)


def test_a_changed_byte_of_a_stored_member_is_a_reject(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    path = write(tmp_path / "a.zip", named(pictures, "a/0.jpg", "b/1.jpg"))
    data = bytearray(path.read_bytes())
    data[data.find(pictures[1].data) + 300] ^= 1
    path.write_bytes(data)
    report = pack(path, tmp_path / "a.lmdb")
    assert [reject.key for reject in report.rejects] == ["b/1.jpg"]
    assert "not the checksum" in report.rejects[0].reason


def test_zip64_and_what_stands_before_the_archive(tmp_path: Path, pictures: list[Picture]) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, picture in enumerate(pictures):
            name = f"{'ab'[number % 2]}/{number}.jpg"
            with archive.open(name, "w", force_zip64=True) as member:
                member.write(picture.data)
    (tmp_path / "a.zip").write_bytes(file.getvalue())
    assert pack(tmp_path / "a.zip", tmp_path / "a.lmdb").num_samples == len(pictures)


def test_damage_means_that_the_classes_are_not_known(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    path = write(tmp_path / "a.tar", named(pictures, *LAYOUTS["classes"]))
    data = bytearray(path.read_bytes())
    data[data.find(b"dog/b/3.jpg")] ^= 0xFF
    for name, content in (("b.tar", bytes(data)), ("c.tar", data[: len(data) // 3])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError):
            find_source(tmp_path / name, format="archive")
