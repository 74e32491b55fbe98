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
        (lambda x: {"x": torch.nn.Parameter(x.float()), "y": LABELS}, {"scale": 1}),
    ],
)
def test_every_container_gives_the_same_samples(
    pixels: torch.Tensor, tmp_path: Path, shape: Any, options: dict[str, Any]
) -> None:
    path = save(tmp_path / "a.pt", shape(pixels))
    report = pack(path, tmp_path / "a.lmdb", **options)
    assert report.num_rejected == 0
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels.numpy())
    assert labels_of(tmp_path / "a.lmdb") == LABELS.tolist()


def test_a_single_tensor_has_images_alone(pixels: torch.Tensor, tmp_path: Path) -> None:
    pack(save(tmp_path / "a.pt", pixels[..., 0]), tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image"]
    assert np.array_equal(stored(tmp_path / "a.lmdb")[..., 1], pixels[..., 0].numpy())


@pytest.mark.parametrize(
    "samples",
    [
        lambda x: list(zip(x, LABELS, strict=True)),
        lambda x: tuple(zip(x, LABELS, strict=True)),
        lambda x: [{"img": p, "class": k} for p, k in zip(x, LABELS, strict=True)],
        lambda x: {"x": list(x), "y": list(LABELS)},
        list,
        lambda x: [x[0], x[1]],
        lambda x: [torch.frombuffer(bytearray(b"\xff\xd8\xff"), dtype=torch.uint8)] * 9,
    ],
)
def test_a_list_of_samples_is_refused_with_a_remedy(
    pixels: torch.Tensor, tmp_path: Path, samples: Any
) -> None:
    path = save(tmp_path / "a.pt", samples(pixels))
    with pytest.raises(OptionError, match=r"a list of samples\. .*fastdata.pack\(torch.load"):
        find_source(path)


def test_a_file_from_before_torch_1_6_is_refused_with_a_remedy(
    pixels: torch.Tensor, tmp_path: Path
) -> None:
    path = save(tmp_path / "a.pt", (pixels, LABELS), _use_new_zipfile_serialization=False)
    with pytest.raises(SourceError, match=r"before torch 1.6.* Save it anew: torch.save"):
        find_source(path)


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


def test_what_would_run_code_is_refused_and_not_run(pixels: torch.Tensor, tmp_path: Path) -> None:
    content = {"images": pixels, "more": Evil(str(tmp_path / "made"))}
    path = save(tmp_path / "a.pt", content)
    with pytest.raises(SourceError, match=r"without running code.*mkdir"):
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


def test_a_tensor_that_claims_more_than_the_file_has_is_refused(
    pixels: torch.Tensor, tmp_path: Path
) -> None:
    path = save(tmp_path / "a.pt", pixels)
    data = path.read_bytes()
    # 40 and 48, as the pickle has small numbers, become 255 each.
    assert data.count(b"K\x28K0K\x03") == 1
    path.write_bytes(data.replace(b"K\x28K0K\x03", b"K\xffK\xffK\x03"))
    with pytest.raises(SourceError, match="cannot be read"):
        find_source(path)


def test_the_file_is_mapped_and_not_read(pixels: torch.Tensor, tmp_path: Path) -> None:
    source: Any = find_source(save(tmp_path / "a.pt", pixels))
    mapped = Path("/proc/self/maps").read_text()
    assert str(tmp_path / "a.pt") in mapped
    assert source.num_samples == COUNT


def test_rows_that_the_file_does_not_have_are_refused(tmp_path: Path) -> None:
    expanded = torch.zeros((1, 8, 8, 3), dtype=torch.uint8).expand(2**40, 8, 8, 3)
    path = save(tmp_path / "a.pt", expanded)
    with pytest.raises(OptionError, match="claims 211,106,232,532,992 bytes"):
        find_source(path)
