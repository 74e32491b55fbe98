"""Thin pictures, which are huge once their short side is enlarged: little memory, or a reason."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples import pil_encode

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.codecs.bilinear import resize_bilinear, resize_bilinear_window
from fastdata.converters.packing import chunk, sizes
from fastdata.errors import MachineError, OptionError

Array = np.ndarray[Any, Any]


def photo(height: int, width: int) -> Array:
    """Return noise: `samples.photo` makes a square of the longer side first."""
    return np.random.default_rng(0).integers(90, 160, (height, width, 3), np.uint8)


QUICK: dict[str, Any] = {"num_workers": 0, "progress": False, "overwrite": True}


@given(
    rows=st.integers(1, 90),
    columns=st.integers(1, 90),
    target=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    factor=st.sampled_from([1, 2, 4, 8]),
    part=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_a_window_of_a_resize_is_that_of_the_whole(
    rows: int, columns: int, target: tuple[int, int], factor: int, part: tuple[float, ...]
) -> None:
    pixels = photo(-(-rows // factor), -(-columns // factor))
    height, width = (1 + int(p * (n - 1)) for p, n in zip(part[:2], target, strict=True))
    top, left = (
        int(p * (n - m)) for p, n, m in zip(part[2:], target, (height, width), strict=True)
    )
    window = top, left, height, width
    found = resize_bilinear_window(pixels, target, window, (rows, columns), factor)
    whole = resize_bilinear(pixels, target, (rows, columns), factor)
    assert np.array_equal(found, whole[top : top + height, left : left + width])


def _jpeg(pixels: Array, orientation: int = 1) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, "JPEG", quality=95, exif=exif)
    return file.getvalue()


def _cropped(folder: Path, samples: list[dict[str, Any]], **options: Any) -> fastdata.Dataset:
    path = folder / "a.lmdb"
    report = fastdata.pack(samples, path, codec="raw", size=24, resize="crop", **QUICK, **options)
    assert not report.rejects, report.rejects
    return fastdata.open(path)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("height", "width"), [(3, 80), (90, 4), (1, 400), (40, 2000)])
def test_a_thin_picture_has_the_pixels_and_boxes_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, height: int, width: int, orientation: int
) -> None:
    size = (width, height) if orientation > 4 else (height, width)
    samples = [
        {
            "image": _jpeg(photo(height, width), orientation),
            "mask": photo(*size)[:, :, 0],
            "boxes": np.array([[0, 0, size[1] / 2, size[0]]], np.float32),
        }
    ]
    for filter in ("bilinear", "bicubic", "lanczos"):
        options: dict[str, Any] = {"fields": {"mask": "mask"}, "filter": filter}
        found = _cropped(tmp_path / filter, samples, **options)[0]
        with monkeypatch.context() as patched:
            patched.setattr(sizes, "_THIN", 1 << 40)
            expected = _cropped(tmp_path / "whole", samples, **options)[0]
        difference = np.abs(np.asarray(found.image).astype(int) - np.asarray(expected.image))
        assert difference.max() <= (0 if filter == "bilinear" else 1)
        assert np.array_equal(found.mask, expected.mask)
        assert np.array_equal(found.boxes, expected.boxes)


SIZES = {"first/a.png": (300, 300), "thin/b.png": (2, 1000), "thin/c.png": (20000, 1)}
_PACK = """
import sys
import fastdata
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) >> 10
source, destination = sys.argv[1:3]
options = dict(num_workers=0, size=224, resize="crop", format="flat", progress=False)
fastdata.pack(f"{source}/first", f"{destination}/first.lmdb", **options)
before = peak()
report = fastdata.pack(f"{source}/thin", f"{destination}/a.lmdb", **options)
print(report.num_samples, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_thin_picture_is_cut_before_it_is_enlarged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name, size in SIZES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(pil_encode(photo(*size), "PNG"))
        (source / f"{name}.jpg").write_bytes(pil_encode(photo(*size), "JPEG"))
    done = subprocess.run(
        [sys.executable, "-c", _PACK, source, tmp_path], capture_output=True, text=True, check=True
    )
    count, megabytes = map(int, done.stdout.split())
    assert count == 4
    assert megabytes < 40  # 112,000 x 224 pixels take 75 MB


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_picture_that_would_become_too_large_is_rejected(
    tmp_path: Path, kind: str, num_workers: int
) -> None:
    samples = [{"image": photo(30, 40)}, {"image": pil_encode(photo(2, 20000), kind)}]
    options = {**QUICK, "num_workers": num_workers}
    for codec in ("auto", "raw", "png"):
        report = fastdata.pack(
            samples, tmp_path / "a.lmdb", size=224, enlarge=True, codec=codec, **options
        )
        (reject,) = report.rejects
        assert "20000 x 2 pixels would be resized to 2240000 x 224" in reject.reason
        assert "(max_pixels)" in reject.reason


def test_a_picture_of_max_pixels_is_packed(tmp_path: Path) -> None:
    samples = [{"image": pil_encode(photo(20, columns), "PNG")} for columns in (30, 31)]
    report = fastdata.pack(samples, tmp_path / "a.lmdb", max_pixels=600, **QUICK)
    assert [reject.key for reject in report.rejects] == ["00000001"]


def test_the_size_that_is_asked_for_is_not_limited(tmp_path: Path) -> None:
    samples = [{"image": photo(20, 30)}]
    for resize in ("exact", "crop"):
        path = tmp_path / f"{resize}.lmdb"
        report = fastdata.pack(samples, path, size=64, resize=resize, max_pixels=1000, **QUICK)
        assert report.num_samples == 1


@pytest.mark.parametrize("error", ["MemoryError", "cv2.error"])
def test_a_pack_outlives_a_picture_for_which_memory_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import cv2

    def fail(*args: Any) -> Any:
        if args[1][1] > 10_000:
            if error == "MemoryError":
                raise MemoryError
            raise cv2.error("OpenCV: error: (-4:Insufficient memory) Failed to allocate")
        return resized(*args)

    resized = chunk.resize_bilinear
    monkeypatch.setattr(chunk, "resize_bilinear", fail)
    samples = [{"image": photo(30, 40)}, {"image": pil_encode(photo(2, 1000), "PNG")}]
    options = {**QUICK, "size": 224, "enlarge": True}
    report = fastdata.pack(samples, tmp_path / "a.lmdb", **options)
    (reject,) = report.rejects
    expected = "there is not enough memory for it: 1000 x 2 pixels, which become 112000 x 224"
    assert reject.reason == expected


def test_a_small_picture_is_not_rejected_for_lack_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(chunk, "resize_bilinear", fail)
    with pytest.raises(MachineError, match="not enough memory"):
        fastdata.pack([{"image": photo(30, 40)}], tmp_path / "a.lmdb", size=20, **QUICK)


def test_a_loader_refuses_to_enlarge_a_thin_picture_without_limit(tmp_path: Path) -> None:
    images = [{"image": photo(*size)} for size in [(30, 40), (20000, 2), (40, 30)]]
    path = tmp_path / "a.lmdb"
    fastdata.pack(images, path, resize="none", codec="raw", **QUICK)
    transform = [T.Resize(224), T.CenterCrop(224)]

    def batches(**options: Any) -> Any:
        with fastdata.loader(path, batch_size=3, num_workers=0, **options) as loader:
            return list(loader)

    with pytest.raises(OptionError, match=r"501,760,000 pixels of sample 1, which has 20000 x 2 "):
        batches(transform=transform)
    for random in (
        T.RandomShortestSize(224),
        T.RandomResize(224, 225),
        [T.Resize((30000, 30)), T.RandomRotation((45, 45), expand=True)],
    ):
        with pytest.raises(OptionError, match=r"[0-9],[0-9]{3},[0-9]{3} pixels of sample .* limit"):
            batches(transform=random, image_lists=True)
    short = [T.Resize(64, max_size=4000), T.CenterCrop(64)]
    assert batches(transform=short)[0].image.shape == (3, 3, 64, 64)
