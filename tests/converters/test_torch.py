"""What is special to files of torch.save: containers, what would run code, damage."""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError

COUNT = 6


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(COUNT)


@pytest.fixture(scope="module")
def pixels(pictures: list[Picture]) -> torch.Tensor:
    return torch.from_numpy(np.stack([p.pixels for p in pictures]))


def save(path: Path, content: Any, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def pack(location: Path, path: Path, codec: Any = "raw", **options: Any) -> Any:
    return fastdata.pack(
        location,
        path,
        codec=codec,
        resize="none",
        num_workers=0,
        progress=False,
        source_options=options,
    )


def stored(path: Path) -> np.ndarray[Any, Any]:
    return np.stack([sample.image.permute(1, 2, 0).numpy() for sample in fastdata.open(path)])


def labels_of(path: Path) -> list[int]:
    return [int(sample.label) for sample in fastdata.open(path)]


LABELS = torch.arange(COUNT) % 3


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (lambda x: (x, LABELS), {}),
        (lambda x: (LABELS, x), {}),
        (lambda x: [x, LABELS], {}),
        (lambda x: collections.OrderedDict(data=x, targets=LABELS), {}),
        (lambda x: {"images": x.permute(0, 3, 1, 2), "labels": LABELS.tolist()}, {}),
        (lambda x: {"train": (x, LABELS)}, {"arrays": "image=train/0,label=train/1"}),
        (lambda x: [(p, int(k)) for p, k in zip(x, LABELS, strict=True)], {}),
        (lambda x: [{"img": p, "class": k} for p, k in zip(x, LABELS, strict=True)], {}),
        (lambda x: {"x": list(x), "y": list(LABELS)}, {}),
        (lambda x: {"x": torch.nn.Parameter(x.float()), "y": LABELS}, {"scale": 1}),
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_every_container_gives_the_same_samples(
    pixels: torch.Tensor, tmp_path: Path, shape: Any, options: dict[str, Any], legacy: bool
) -> None:
    path = save(tmp_path / "a.pt", shape(pixels), _use_new_zipfile_serialization=not legacy)
    report = pack(path, tmp_path / "a.lmdb", **options)
    assert report.num_rejected == 0
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels.numpy())
    assert labels_of(tmp_path / "a.lmdb") == LABELS.tolist()
    assert any("cannot be memory-mapped" in note for note in report.notes) == legacy


def test_a_single_tensor_has_images_alone(pixels: torch.Tensor, tmp_path: Path) -> None:
    pack(save(tmp_path / "a.pt", pixels[..., 0]), tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image"]
    assert np.array_equal(stored(tmp_path / "a.lmdb")[..., 1], pixels[..., 0].numpy())


def test_pictures_of_different_sizes_and_image_files_are_read_from_lists(
    pictures: list[Picture], pixels: torch.Tensor, tmp_path: Path
) -> None:
    sizes = [p[: 20 + k, :30] for k, p in enumerate(pixels)]
    pack(save(tmp_path / "a.pt", sizes), tmp_path / "a.lmdb")
    for sample, size in zip(fastdata.open(tmp_path / "a.lmdb"), sizes, strict=True):
        assert torch.equal(sample.image.permute(1, 2, 0), size)
    files = [torch.frombuffer(bytearray(p.data), dtype=torch.uint8) for p in pictures]
    pack(save(tmp_path / "b.pt", {"images": files}), tmp_path / "b.lmdb", codec="keep")
    (shard,) = fastdata.open(tmp_path / "b.lmdb").shards
    assert [bytes(shard.blob("image", k)) for k in range(COUNT)] == [p.data for p in pictures]


def test_names_of_classes_are_kept(pixels: torch.Tensor, tmp_path: Path) -> None:
    content = {"images": pixels, "labels": LABELS, "classes": ["ant", "bee", "cat"]}
    assert find_source(save(tmp_path / "a.pt", content)).schema.classes == ("ant", "bee", "cat")
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    source = find_source(tmp_path / "a.pt", options={"classes": str(tmp_path / "names.txt")})
    assert source.schema.classes == ("x", "y", "z")


def test_several_files_are_one_dataset(pixels: torch.Tensor, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    save(tmp_path / "in/0.pt", (pixels[:4], LABELS[:4]))
    save(tmp_path / "in/1.pt", (pixels[4:], LABELS[4:]))
    pack(tmp_path / "in", tmp_path / "a.lmdb")
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels.numpy())
    save(tmp_path / "in/1.pt", (pixels[4:], LABELS[4:].float()))
    with pytest.raises(SourceError, match="of other kinds than those of the first"):
        find_source(tmp_path / "in")


class Evil:
    """What a pickle can hold: a call of anything."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("legacy", [False, True])
def test_what_would_run_code_is_refused_and_not_run(
    pixels: torch.Tensor, tmp_path: Path, legacy: bool
) -> None:
    content = {"images": pixels, "more": Evil(str(tmp_path / "made"))}
    path = save(tmp_path / "a.pt", content, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(SourceError, match=r"without running what it names.*mkdir"):
        find_source(path)
    assert not (tmp_path / "made").exists()


def test_models_and_programs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"without running.*Linear"):
        find_source(save(tmp_path / "a.pt", torch.nn.Linear(2, 2)))
    with pytest.raises(OptionError, match=r"not clear which.*weight: float32"):
        find_source(save(tmp_path / "b.pt", torch.nn.Linear(2, 2).state_dict()))
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as archive:
        for name in ("c/data.pkl", "c/code/__torch__.py", "c/constants.pkl"):
            archive.writestr(name, b"\x80\x02}q\x00.")
    with pytest.raises(SourceError, match="TorchScript archive"):
        find_source(tmp_path / "c.pt")


def test_other_pickles_and_archives_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"images": [1]}))
    with zipfile.ZipFile(tmp_path / "b.pt", "w") as archive:
        archive.writestr("photos/1.jpg", b"")
    for name in ("a.pt", "b.pt"):
        with pytest.raises(SourceError, match=r"not recognised|only one folder"):
            find_source(tmp_path / name)


def test_tensors_that_cannot_be_read_are_named(pixels: torch.Tensor, tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", {"images": pixels[..., 0].to_sparse(), "labels": LABELS})
    with pytest.raises(
        OptionError,
        match=r"'images' cannot be read: torch.sparse_coo torch.uint8",
    ):
        find_source(path)
    save(tmp_path / "b.pt", {"images": pixels.float() / 100})
    with pytest.raises(SourceError, match=r"float32.*scale=FACTOR"):
        find_source(tmp_path / "b.pt")
    save(tmp_path / "c.pt", {"images": pixels, "labels": LABELS[:4]})
    with pytest.raises(SourceError, match="'images' has 6, 'labels' has 4"):
        find_source(tmp_path / "c.pt")


def test_an_entry_unlike_the_others_costs_itself(pixels: torch.Tensor, tmp_path: Path) -> None:
    content: list[Any] = [(pixels[k % COUNT], k) for k in range(20)]
    content[17] = (pixels[0], "two")
    content[18] = (pixels[0],)
    content[19] = ("no picture", 19)
    report = pack(save(tmp_path / "a.pt", content), tmp_path / "a.lmdb")
    assert [reject.key for reject in report.rejects] == ["a.pt:0[17]", "a.pt:0[18]", "a.pt:0[19]"]
    assert all(reject.reason for reject in report.rejects)
    assert labels_of(tmp_path / "a.lmdb") == list(range(17))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_tensor_that_claims_more_than_the_file_has_is_refused(
    pixels: torch.Tensor, tmp_path: Path, legacy: bool
) -> None:
    path = save(tmp_path / "a.pt", pixels, _use_new_zipfile_serialization=not legacy)
    data = path.read_bytes()
    # 40 and 48, as the pickle has small numbers, become 255 each.
    assert data.count(b"K\x28K0K\x03") == 1
    path.write_bytes(data.replace(b"K\x28K0K\x03", b"K\xffK\xffK\x03"))
    with pytest.raises(SourceError, match=r"cannot be read|claim more bytes"):
        find_source(path)


def test_checksums_are_compared_when_asked_for(pixels: torch.Tensor, tmp_path: Path) -> None:
    path = save(tmp_path / "a.pt", pixels)
    assert find_source(path, options={"check": "yes"}).num_samples == COUNT
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"the checksum of '.*data/0' is wrong"):
        find_source(path, options={"check": "yes"})


def test_the_file_is_mapped_and_not_read(pixels: torch.Tensor, tmp_path: Path) -> None:
    source: Any = find_source(save(tmp_path / "a.pt", pixels))
    mapped = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "a.pt") in mapped
    assert source.num_samples == COUNT


@pytest.mark.parametrize("legacy", [False, True])
def test_rows_that_the_file_does_not_have_are_refused(tmp_path: Path, legacy: bool) -> None:
    expanded = torch.zeros((1, 8, 8, 3), dtype=torch.uint8).expand(2**40, 8, 8, 3)
    path = save(tmp_path / "a.pt", expanded, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(SourceError, match="claims 211,106,232,532,992 bytes"):
        find_source(path)
