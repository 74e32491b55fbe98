"""Sizes that a shard claims: beyond the limit, or other than its images', they take no memory."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import pickle
import shutil
import struct
import tempfile
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import EVERY_KIND, forge, make_records, photo, pil_encode, put_blob, write_shard

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.codecs.blobs import encode_jpeg
from fastdata.errors import FastdataError, OptionError, ShardCorruptError
from fastdata.formats.layout import CODECS
from fastdata.schema import ImageField, Schema, StringField
from fastdata.verifying import verify
from fastdata.viewing.page import view

HAS_DALI = importlib.util.find_spec("nvidia") is not None and bool(
    importlib.util.find_spec("nvidia.dali")
)
SIDE = 65500
COUNT, BAD = 12, (0, 5)
SIZE = 24, 32


def _jpeg(height: int, width: int) -> bytes:
    """Return a small JPEG that claims this size."""
    data = encode_jpeg(photo(*SIZE))
    start = data.index(b"\xff\xc0") + 5
    return data[:start] + struct.pack(">HH", height, width) + data[start + 4 :]


def _png(height: int, width: int) -> bytes:
    data = pil_encode(photo(*SIZE), "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


BOMBS = {"jpeg": _jpeg(SIDE, SIDE), "png": _png(SIDE, SIDE), "file": _jpeg(SIDE, SIDE)}


@functools.cache
def _sound(suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = write_shard(Path(folder) / f"a{suffix}", make_records(count=COUNT, size=SIZE))
        return path.read_bytes()


def _shard(path: Path, data: bytes, codec: str, size: tuple[int, int]) -> Path:
    """Write a shard in which two samples are this image, and the columns say this size."""
    path.write_bytes(_sound(path.suffix))
    for index in BAD:
        number = CODECS.index(codec)
        put_blob(path, index, data, codec=number, height=size[0], width=size[1])
    return path


def _options() -> dict[str, dict[str, Any]]:
    crop = [T.RandomResizedCrop(16)]
    return {
        "as they are": {},
        "crops": {"transform": crop},
        "flips": {"transform": [T.RandomHorizontalFlip()]},
        "resized": {"transform": [T.Resize((12, 20))]},
        "short side": {"transform": [T.Resize(12)]},
        "crops beyond the image": {"transform": [T.RandomCrop((8, 8), padding=30)]},
        "floats": {"transform": [*crop, T.Normalize((0.5,) * 3, (0.2,) * 3)]},
        "callable": {"transform": T.ImageOnly(lambda image: image)},
        "views": {"transform": T.Views(2, crop)},
        "workers": {"transform": crop, "num_workers": 2, "worker_method": "thread"},
        "cache ram": {"transform": crop, "cache": "ram"},
        "cache device": {"transform": crop, "cache": "device"},
        "cache device, as they are": {"cache": "device"},
        "simplejpeg": {"transform": crop, "decoder": "simplejpeg"},
        "opencv": {"decoder": "opencv"},
        **({"dali": {"transform": crop, "backend": "dali", "num_workers": 1}} if HAS_DALI else {}),
    }


OPTIONS = _options()


@pytest.fixture
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compiled library, or without."""
    if request.param == "not compiled":
        from fastdata.engine import rendering

        monkeypatch.setattr(rendering, "compiled", lambda: False)


@pytest.fixture(autouse=True)
def little_memory() -> Any:
    """Fail where much memory was taken: NumPy's arrays are traced, torch's are not."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.fixture(autouse=True)
def little_torch_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def limited(*shape: Any, **options: Any) -> torch.Tensor:
        count = int(np.prod([int(n) for n in np.ravel(shape)], dtype=object))
        assert count < 64 << 20, f"memory was taken for {shape}"
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", limited)


def _load(path: Any, **options: Any) -> int:
    """Return how many samples an epoch has; nothing of it may be missing or undefined."""
    options = {"num_workers": 0, "batch_size": 4, **options}
    with fastdata.loader(path, **options) as loader:
        return sum(len(batch.label) for batch in loader)


EVERY_CODEC = [
    *(("compiled", name) for name in ("as they are", "crops", "callable", "dali")),
    *(("not compiled", name) for name in ("as they are", "crops", "flips", "floats")),
]
"""Ways to load that have code of their own for each codec; the others read as one of these."""


def _ways() -> list[tuple[str, str, str]]:
    codecs = itertools.cycle(BOMBS)
    return [
        *(
            (library, name, codec)
            for library, name in EVERY_CODEC
            if name in OPTIONS
            for codec in BOMBS
        ),
        *(
            ("compiled", name, next(codecs))
            for name in OPTIONS
            if ("compiled", name) not in EVERY_CODEC
        ),
    ]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("library", "name", "codec"), _ways(), indirect=["library"])
def test_what_claims_too_many_pixels_is_corrupt(tmp_path: Path, codec: str, name: str) -> None:
    path = _shard(tmp_path / "a.lmdb", BOMBS[codec], codec, (SIDE, SIDE))
    with pytest.raises(ShardCorruptError, match=r"sample 0 .*than the limit of 178956970"):
        _load(path, **OPTIONS[name])
    assert _load(path, on_corrupt="skip", **OPTIONS[name]) == COUNT


LIES = {
    "taller": ("jpeg", encode_jpeg(photo(*SIZE)), (13000, 13000)),
    "as if turned": ("jpeg", encode_jpeg(photo(*SIZE)), SIZE[::-1]),
    "png": ("png", pil_encode(photo(*SIZE), "PNG"), (13000, 32)),
    "file": ("file", pil_encode(photo(*SIZE), "BMP"), (24, 13000)),
    "raw": ("raw", photo(*SIZE).tobytes(), (13000, 13000)),
    "larger than its columns": ("jpeg", BOMBS["jpeg"], SIZE),
    "larger than its columns, png": ("png", BOMBS["png"], SIZE),
    "larger than its columns, file": ("file", BOMBS["png"], SIZE),
    "none": ("jpeg", encode_jpeg(photo(*SIZE)), (0, 32)),
    "no raw": ("raw", b"", (0, 0)),
}


SOME_LIES = ["taller", "png", "file", "raw", "none"]
LYING = [
    *(("compiled", name, lie) for name in ("as they are", "crops") for lie in LIES),
    *(("compiled", name, lie) for name in ("callable", "dali") for lie in SOME_LIES),
    *(("not compiled", "as they are", lie) for lie in SOME_LIES),
    *(("not compiled", "crops", lie) for lie in LIES),
]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("library", "name", "lie"), [way for way in LYING if way[1] in OPTIONS], indirect=["library"]
)
def test_columns_of_another_size_than_the_image_are_corrupt(
    tmp_path: Path, lie: str, name: str
) -> None:
    codec, data, size = LIES[lie]
    path = _shard(tmp_path / "a.h5", data, codec, size)
    with pytest.raises(ShardCorruptError, match="sample 0 "):
        _load(path, **OPTIONS[name])
    assert _load(path, on_corrupt="skip", **OPTIONS[name]) == COUNT


@pytest.mark.parametrize("lie", LIES)
def test_columns_of_another_size_than_the_image_are_found_by_verify(
    tmp_path: Path, lie: str
) -> None:
    codec, data, size = LIES[lie]
    path = _shard(tmp_path / "a.h5", data, codec, size)
    places = [one.place for one in verify(path, progress=False).damage]
    assert places[1:] == ["'image' of sample 0", "'image' of sample 5"]


@pytest.mark.parametrize("codec", BOMBS)
def test_all_other_ways_to_read_have_the_limit_too(tmp_path: Path, codec: str) -> None:
    path = _shard(tmp_path / "a.lmdb", BOMBS[codec], codec, (SIDE, SIDE))
    dataset = fastdata.open(path)
    with pytest.raises(ShardCorruptError, match="more than the limit of 178956970"):
        dataset[0]
    assert dataset[1].image.shape == (3, *SIZE)
    # It may be so large; but the tests have not made the digest anew.
    assert [one.place for one in verify(path, progress=False).damage] == ["header"]
    view(path, tmp_path / "page.html")
    report = fastdata.pack(path, tmp_path / "b.lmdb", codec="keep", num_workers=0, progress=False)
    assert report.num_rejected == len(BAD)
    assert "limit of 178956970" in report.rejects[0].reason
    report = fastdata.pack(path, tmp_path / "c.lmdb", num_workers=0, progress=False)
    assert report.num_rejected == len(BAD)


def test_raw_pixels_that_are_not_there_are_not_exported(tmp_path: Path) -> None:
    path = _shard(tmp_path / "a.lmdb", b"abc", "raw", (SIDE, SIDE))
    with pytest.raises(FastdataError, match="sample 0 "):
        fastdata.export(path, tmp_path / "out", format="folder", progress=False)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_limit_can_be_chosen(tmp_path: Path, name: str) -> None:
    path = write_shard(tmp_path / "a.lmdb", make_records(count=COUNT, size=SIZE))
    pixels = SIZE[0] * SIZE[1]
    assert _load(path, max_pixels=pixels, **OPTIONS[name]) == COUNT
    for limited in ({"max_pixels": pixels - 1}, {}):
        source = path if limited else fastdata.open(path, max_pixels=pixels - 1)
        with pytest.raises(ShardCorruptError, match=f"more than the limit of {pixels - 1} "):
            _load(source, **limited, **OPTIONS[name])


def test_the_limit_goes_with_the_dataset(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.lmdb", make_records(count=COUNT, size=SIZE))
    dataset = fastdata.open(path, max_pixels=5)
    for part in (dataset, dataset[2:], pickle.loads(pickle.dumps(dataset))):
        with pytest.raises(ShardCorruptError, match="limit of 5 "):
            part[0]
    joined = torch.utils.data.ConcatDataset([fastdata.open(path), dataset])
    with pytest.raises(ShardCorruptError, match="limit of 5 "):
        _load(joined)
    assert _load(dataset, max_pixels=2**62) == COUNT
    with pytest.raises(OptionError, match="max_pixels"):
        fastdata.open(path, max_pixels=0)
    with pytest.raises(OptionError, match="max_pixels"):
        fastdata.loader(path, max_pixels=0)
    with pytest.raises(OptionError, match="max_pixels is for packed data"):
        fastdata.loader([1, 2, 3], max_pixels=5)


def _put(index: Any, value: Any) -> Any:
    return lambda column: column.__setitem__(index, value)


TEXTS = {
    "end before start": {"caption.bounds": _put(3, 2**64 - 1)},
    "end outside": {"caption.bounds": _put(-1, 10**6)},
    "no UTF-8": {"caption.data": _put(slice(None), 0xFF)},
    "extra outside": {"extra.bounds": _put(1, 2**63)},
    "shape too large": {"points.shape": _put((2, 0), 2**32 - 1)},
    "shape other": {"points.shape": _put((2, 1), 3)},
    "shape not of the schema": {"points.shape": _put(1, [1, 4])},
    "huge but empty": {"ragged.shape": _put(2, [0, 2**32 - 1, 2**32 - 1])},
}


SOME_TEXTS = ["end outside", "no UTF-8", "shape too large"]


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schema = Schema({n: f for n, f in EVERY_KIND.items() if n not in ("grey", "mask")})
    path = tmp_path_factory.mktemp("rich") / "a.lmdb"
    return write_shard(path, make_records(schema, COUNT, size=SIZE), schema)


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        *((name, lie) for name in ("crops", "callable") for lie in TEXTS),
        *(
            (name, lie)
            for name in ("cache device", "dali")
            if name in OPTIONS
            for lie in SOME_TEXTS
        ),
    ],
)
def test_values_that_cannot_be_read_are_skipped(
    rich: Path, tmp_path: Path, lie: str, name: str
) -> None:
    path = Path(shutil.copy(rich, tmp_path / "a.lmdb"))
    forge(path, columns=TEXTS[lie])
    options = dict(OPTIONS[name])
    if name == "callable":
        options["transform"] = T.PerSample(lambda sample: sample)
    with pytest.raises(ShardCorruptError):
        _load(path, **options)
    with fastdata.loader(
        path, **{"num_workers": 0, "batch_size": 4, "on_corrupt": "skip", **options}
    ) as loader:
        assert sum(len(batch.label) for batch in loader) == COUNT
        # All texts that are not empty, or one, or two, of which a bound is between.
        assert loader.stats().skipped_samples in ((9, 10, 11) if lie == "no UTF-8" else (1, 2))


def test_a_text_cut_within_a_character_is_skipped(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "text": StringField()})
    records = make_records(schema, 6, size=SIZE)
    records = [r._replace(values=(r.values[0], "é" * 5)) for r in records]
    path = write_shard(tmp_path / "a.lmdb", records, schema)
    forge(path, columns={"text.bounds": _put(3, 31)})
    with fastdata.loader(path, batch_size=6, num_workers=0, on_corrupt="skip") as loader:
        (batch,) = loader
        assert loader.stats().skipped_samples == 2
    assert batch.text == ["é" * 5] * 6
