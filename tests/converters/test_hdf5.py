"""What is special to HDF5: layouts, names, what is not followed, and damage."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from cases import Picture, make_pictures

import fastdata
from fastdata.converters import hdf5_arrays
from fastdata.converters.finding import find_source
from fastdata.converters.hdf5_arrays import BlockRow
from fastdata.converters.reading.arrays import array_source
from fastdata.converters.reading.deferred import ValueSpan
from fastdata.converters.reading.spans import FileSpan, close_files
from fastdata.errors import OptionError, SourceError


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(8)


@pytest.fixture(scope="module")
def pixels(pictures: list[Picture]) -> np.ndarray[Any, Any]:
    return np.stack([p.pixels for p in pictures])


def write(path: Path, **arrays: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name.replace("__", "/")] = array
    return path


def pack(location: Path, path: Path, codec: str = "raw", **options: Any) -> Any:
    report = fastdata.pack(
        location,
        path,
        codec=codec,
        resize="none",
        num_workers=0,
        progress=False,
        source_options=options,
    )
    return report


def stored(path: Path) -> np.ndarray[Any, Any]:
    """Return the pixels of a dataset that was packed raw."""
    return np.stack([sample.image.permute(1, 2, 0).numpy() for sample in fastdata.open(path)])


def files_of(path: Path) -> list[bytes]:
    """Return the image files of a dataset that were kept as they were."""
    (shard,) = fastdata.open(path).shards
    return [bytes(shard.blob("image", index)) for index in range(len(shard))]


@pytest.mark.parametrize("shape", ["nhwc", "nchw", "nhw"])
def test_each_layout_gives_the_same_pixels(
    pixels: np.ndarray[Any, Any], tmp_path: Path, shape: str
) -> None:
    turned = {"nhwc": pixels, "nchw": pixels.transpose(0, 3, 1, 2), "nhw": pixels[..., 0]}[shape]
    path = write(tmp_path / "a.h5", images=turned)
    pack(path, tmp_path / "a.lmdb")
    wanted = np.repeat(pixels[..., :1], 3, axis=3) if shape == "nhw" else pixels
    assert np.array_equal(stored(tmp_path / "a.lmdb"), wanted)


def test_what_has_no_channels_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "b.h5", images=np.zeros((4, 8, 8, 5), np.uint8))
    with pytest.raises(SourceError, match=r"1, 3 or 4 channels.*--option arrays=image=ARRAY"):
        find_source(tmp_path / "b.h5")


def test_arrays_of_one_dataset_are_told_from_another_by_their_names(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    labels = np.arange(8)
    path = write(
        tmp_path / "a.h5",
        train_set_x=pixels,
        train_set_y=labels,
        list_classes=np.array([b"cat", b"dog"] * 4),
        meta__weights=np.ones((3, 4)),
    )
    source = find_source(path)
    assert [f"{name}" for name in source.schema] == ["image", "label"]
    assert source.schema.classes == ("cat", "dog") * 4
    assert any("left out: meta/weights" in note for note in source.notes)
    both = write(tmp_path / "b.h5", train_x=pixels, train_y=labels, test_x=pixels, test_y=labels)
    with pytest.raises(OptionError, match=r"not clear which.*train_x: uint8.*arrays=image=ARRAY"):
        find_source(both)
    pack(both, tmp_path / "b.lmdb", arrays="image=test_x,label=test_y")
    assert [int(sample.label) for sample in fastdata.open(tmp_path / "b.lmdb")] == list(range(8))


def test_other_arrays_and_masks_become_fields(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    masks = (pixels[..., 0] > 100).astype(np.int32)
    path = write(tmp_path / "a.h5", g__images=pixels, g__masks=masks, g__angle=np.arange(8.0))
    pack(path, tmp_path / "a.lmdb", arrays="image=g/images,mask=g/masks,angle=g/angle")
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert [float(sample.angle) for sample in dataset] == list(np.arange(8.0))
    found = np.stack([sample.mask.numpy()[0] for sample in dataset])
    assert np.array_equal(found, masks)


def test_an_array_that_is_not_there_is_named_with_those_that_are(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.h5", images=pixels)
    with pytest.raises(OptionError, match=r"no array 'y' for the field 'label'.*images: uint8"):
        find_source(path, options={"arrays": "image=images,label=y"})
    with pytest.raises(OptionError, match="names no image"):
        find_source(path, options={"arrays": "label=images"})


def test_other_pixels_are_refused_unless_scaled(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.h5", images=(pixels / 255).astype(np.float32))
    report = pack(path, tmp_path / "a.lmdb")
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels)
    assert "field 'image' has floats, which are stored times 255, as uint8" in report.notes
    for numbers, factor in ((pixels.astype(np.uint16), 1), (pixels / np.float32(127), 127)):
        path = write(tmp_path / f"{factor}.h5", images=numbers)
        with pytest.raises(SourceError, match=f"{numbers.dtype}.*--option scale=FACTOR"):
            find_source(path)
        pack(path, tmp_path / f"{factor}.lmdb", scale=factor)
        assert np.array_equal(stored(tmp_path / f"{factor}.lmdb"), pixels)
    limit = int(np.sort(pixels.reshape(8, -1).max(axis=1))[4])
    brighter = pixels.astype(np.int16) + (256 - limit)
    report = pack(write(tmp_path / "b.h5", images=brighter), tmp_path / "b.lmdb", scale=1)
    beyond = [index for index, p in enumerate(brighter) if p.max() > 255]
    assert report.num_rejected == len(beyond) > 0
    assert "are not all from 0 to 255" in report.rejects[0].reason


def test_text_labels_become_classes(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    names = ["wasp", "ant", "bee", "ant"] * 2
    path = write(tmp_path / "a.h5", images=pixels, labels=[" wasp", *names[1:]])
    pack(path, tmp_path / "a.lmdb")
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dataset.schema.classes == ("ant", "bee", "wasp")
    assert [dataset.schema.classes[int(sample.label)] for sample in dataset] == names


def test_a_label_array_of_another_length_is_refused(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.h5", images=pixels, labels=np.arange(7))
    with pytest.raises(SourceError, match="'images' has 8, 'labels' has 7"):
        find_source(path)


def test_links_are_not_followed(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    write(tmp_path / "other.h5", images=pixels)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/images")
        file["out"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
        file["x"] = h5py.SoftLink("/out/images")
        file["loop"] = h5py.SoftLink("/loop")
        file["group/back"] = file["/"]
    for name in ("images", "x", "loop"):
        with pytest.raises(OptionError, match="a link, which is not followed"):
            find_source(tmp_path / "a.h5", options={"arrays": f"image={name}"})
    with pytest.raises(OptionError, match="no array 'out/images'"):
        find_source(tmp_path / "a.h5", options={"arrays": "image=out/images"})


def test_external_and_virtual_arrays_are_refused(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(pixels.tobytes())
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = [(str(secret), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("images", pixels.shape, "uint8", external=space)
    with pytest.raises(OptionError, match=r"other files \('.*secret.bin'\), which are not opened"):
        find_source(tmp_path / "a.h5")
    write(tmp_path / "other.h5", images=pixels)
    layout = h5py.VirtualLayout(pixels.shape, "uint8")
    layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "images", pixels.shape)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_virtual_dataset("images", layout)
    with pytest.raises(OptionError, match="may be in other files, which are not opened"):
        find_source(tmp_path / "b.h5")


def test_fastdatas_own_shards_are_refused(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    pack(write(tmp_path / "a.h5", images=pixels), tmp_path / "b.h5")
    with pytest.raises(SourceError, match=r"dataset of fastdata's already.*--format fastdata"):
        find_source(tmp_path / "b.h5", format="hdf5")


def test_a_filter_that_is_not_there_is_named(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", data=pixels, chunks=(1, 40, 48, 3), compression="lzf")
    data = (tmp_path / "a.h5").read_bytes()
    # A filter's number stands before the length of its name, flags, count of values and name.
    at = data.index(b"lzf\0") - 8
    assert data[at : at + 2] == (32000).to_bytes(2, "little")
    data = data[:at] + (32123).to_bytes(2, "little") + data[at + 2 :]
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(OptionError, match="compressed by filter 32123"):
        find_source(tmp_path / "a.h5")


def test_a_damaged_block_costs_its_own_samples(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset(
            "images", data=pixels, chunks=(2, 40, 48, 3), compression="gzip", fletcher32=True
        )
        info = made.id.get_chunk_info_by_coord((4, 0, 0, 0))
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(info.byte_offset + 20)
        raw.write(bytes(16))
    report = pack(tmp_path / "a.h5", tmp_path / "a.lmdb")
    assert [reject.key for reject in report.rejects] == ["a.h5:images[4]", "a.h5:images[5]"]
    assert f"the block at byte {info.byte_offset:,} is damaged" in report.rejects[0].reason
    assert np.array_equal(stored(tmp_path / "a.lmdb"), pixels[[0, 1, 2, 3, 6, 7]])


def test_a_claimed_shape_without_data_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", (2**40, 40, 48, 3), "uint8", chunks=(1, 40, 48, 3))
    with pytest.raises(SourceError, match="but 0 of its 1,099,511,627,776 blocks"):
        find_source(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("images", (4, 2**20, 2**20, 3), "uint8", chunks=(1, 64, 64, 3))
    with pytest.raises(SourceError, match=r"blocks are there|at most"):
        find_source(tmp_path / "b.h5")


def test_blocks_that_were_never_written_are_said(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset(
            "images", pixels.shape, "uint8", chunks=(2, 40, 48, 3), fillvalue=7
        )
        made[:4] = pixels[:4]
    report = pack(tmp_path / "a.h5", tmp_path / "a.lmdb")
    assert any(
        "'images': 2 blocks are missing, which means that they are all 7" in n for n in report.notes
    )
    assert (stored(tmp_path / "a.lmdb")[4:] == 7).all()


def test_a_damaged_length_of_a_variable_row_is_not_allocated(
    pictures: list[Picture], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("images", (8,), h5py.vlen_dtype(np.uint8))
        for index, picture in enumerate(pictures[:7]):
            made[index] = np.frombuffer(picture.data, np.uint8)
        offset = made.id.get_offset()
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.seek(offset + 16 * 2)
        raw.write(b"\xff" * 4)
        raw.seek(offset + 16 * 5 + 4)
        raw.write(b"\x10" + bytes(7))
    report = pack(tmp_path / "a.h5", tmp_path / "a.lmdb", codec="keep")
    assert [reject.key for reject in report.rejects] == [f"a.h5:images[{k}]" for k in (2, 5, 7)]
    reasons = [reject.reason for reject in report.rejects]
    assert "to 4,294,967,295 bytes in object 3 of the heap" in reasons[0]
    assert "no heap of objects at byte 16" in reasons[1]
    assert "nothing was ever written" in reasons[2]


def test_workers_are_sent_places_where_the_file_has_them(
    pictures: list[Picture], pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    plain = find_source(write(tmp_path / "a.h5", images=pixels))
    first = next(iter(plain)).values.values[0]
    assert isinstance(first, ValueSpan)
    assert np.array_equal(first.read(), pixels[0])
    with h5py.File(tmp_path / "b.h5", "w", userblock_size=512) as file:
        made = file.create_dataset("images", (8,), h5py.vlen_dtype(np.uint8))
        for index, picture in enumerate(pictures):
            made[index] = np.frombuffer(picture.data, np.uint8)
    spans = [sample.values.values[0] for sample in find_source(tmp_path / "b.h5")]
    assert all(isinstance(span, FileSpan) for span in spans)
    assert [span.read() for span in spans] == [p.data for p in pictures]
    close_files()


def test_variable_rows_with_compressed_references_are_read_all_the_same(
    pictures: list[Picture], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.vlen_dtype(np.uint8)
        made = file.create_dataset("images", (8,), kind, chunks=(3,), compression="gzip")
        for index, picture in enumerate(pictures):
            made[index] = np.frombuffer(picture.data, np.uint8)
    pack(tmp_path / "a.h5", tmp_path / "a.lmdb", codec="keep")
    assert files_of(tmp_path / "a.lmdb") == [p.data for p in pictures]


def test_a_dataset_an_image_is_refused_with_what_is_there(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.h5", **{f"photos__{k}": p for k, p in enumerate(pixels)})
    with pytest.raises(OptionError, match="not clear which array has the images"):
        find_source(path)


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({}, True),
        ({"compression": "gzip"}, True),
        ({"compression": "gzip", "shuffle": True, "fletcher32": True}, True),
        ({"fletcher32": True}, False),
        ({"compression": "lzf", "shuffle": True}, False),
    ],
)
@pytest.mark.parametrize("dtype", ["u1", ">i4", "<f8"])
def test_workers_undo_the_filters_that_hdf5_always_has(
    pixels: np.ndarray[Any, Any],
    tmp_path: Path,
    options: dict[str, Any],
    places: bool,
    dtype: str,
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        shape, block = pixels.shape, (3, *pixels.shape[1:])
        made = file.create_dataset("images", shape, dtype, chunks=block, fillvalue=9, **options)
        made[:6] = pixels[:6]  # the last block is never written
    source = find_source(tmp_path / "a.h5", options={} if dtype == "u1" else {"scale": 1})
    firsts = [sample.values.values[0] for sample in source]  # type: ignore[union-attr]
    assert [isinstance(value, BlockRow) for value in firsts] == [places] * 6 + [False] * 2
    pack(tmp_path / "a.h5", tmp_path / "a.lmdb", **({} if dtype == "u1" else {"scale": 1}))
    wanted = np.concatenate([pixels[:6], np.full_like(pixels[6:], 9)])
    assert np.array_equal(stored(tmp_path / "a.lmdb"), wanted)


def test_a_bomb_in_a_block_is_not_inflated(pixels: np.ndarray[Any, Any], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        block = (1, *pixels.shape[1:])
        made = file.create_dataset("images", pixels.shape, "u1", chunks=block, compression="gzip")
        made[:] = pixels
        made.id.write_direct_chunk((2, 0, 0, 0), zlib.compress(bytes(64 << 20), 9))
    report = pack(tmp_path / "a.h5", tmp_path / "a.lmdb")
    assert [reject.key for reject in report.rejects] == ["a.h5:images[2]"]
    assert "has 5,765 bytes, not 5,760" in report.rejects[0].reason


def test_it_is_read_while_it_is_open_in_this_process(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "a.h5", images=pixels, labels=np.arange(8))
    with h5py.File(path, "r"):
        assert pack(path, tmp_path / "a.lmdb").num_samples == 8


def test_a_block_is_inflated_once_for_its_rows(
    pixels: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in (("images", pixels), ("labels", np.arange(8))):
            file.create_dataset(name, data=array, chunks=(4, *array.shape[1:]), compression="gzip")
    hdf5_arrays._block.cache_clear()
    pack(tmp_path / "a.h5", tmp_path / "a.lmdb")
    assert hdf5_arrays._block.cache_info().misses == 2


def test_a_large_block_is_inflated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is gone from the file once its first rows have been read."""
    monkeypatch.setattr(array_source, "_READ_BYTES", 1 << 20)
    rows = np.arange(1200, dtype=np.uint8)[:, None, None, None]
    images = np.broadcast_to(rows, (1200, 64, 64, 3))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        # Blocks in two directions: both have a part of all rows.
        options: dict[str, Any] = {"compression": "gzip", "compression_opts": 1}
        made = file.create_dataset("images", data=images, chunks=(1200, 32, 64, 3), **options)
        places = [(i.byte_offset, i.size) for i in map(made.id.get_chunk_info, range(2))]
    source = find_source(path)
    samples = iter(source)
    next(samples)
    with open(path, "r+b") as damaged:
        for offset, size in places:
            damaged.seek(offset)
            damaged.write(bytes(size))
    left = list(samples)
    assert len(left) == 1199
    for number, sample in enumerate(left, 1):
        (image,) = sample.values.load()
        assert (image == number % 256).all()


def test_blocks_that_are_too_large_to_keep_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "images", (300, 4096, 4096), np.uint8, chunks=(300, 2048, 128), compression="gzip"
        )[:, :1, :1] = 1
    with pytest.raises(OptionError, match=r"5,033,164,800 bytes.*h5repack -l .*CHUNK=1x4096x4096"):
        find_source(path)
