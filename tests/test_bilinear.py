"""The resize of packing: the same bytes with and without the compiled library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from resize_reference import resize_reference
from samples import photo, psnr

from fastdata.codecs import bilinear
from fastdata.codecs.bilinear import resize_bilinear

SIDES = st.integers(1, 90)


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numpy":
        monkeypatch.setattr(bilinear, "loaded_library", lambda: None)
    elif bilinear.loaded_library() is None:
        pytest.skip("the compiled library is not here")


@pytest.mark.usefixtures("way")
def test_resizing_is_that_of_plain_python() -> None:
    @settings(max_examples=80, deadline=None)
    @given(SIDES, SIDES, SIDES, SIDES, st.sampled_from([1, 1, 2, 4, 8]), st.sampled_from([1, 3]))
    def check(height: int, width: int, rows: int, columns: int, factor: int, channels: int) -> None:
        shape = -(-height // factor), -(-width // factor), channels
        pixels = np.random.default_rng(height).integers(0, 256, shape, np.uint8)
        whole, size = (height, width), (rows, columns)
        expected = resize_reference(
            pixels, size, antialias=True, factor=factor, window=(0, 0, *whole)
        )
        before = pixels.copy()
        np.testing.assert_array_equal(resize_bilinear(pixels, size, whole, factor), expected)
        np.testing.assert_array_equal(pixels, before)

    check()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", [(65535, 2), (2, 65535)], ids=str)
def test_the_longest_images_are_resized(shape: tuple[int, int]) -> None:
    pixels = np.full((*shape, 1), 251, np.uint8)
    for size in ((1, 1), (7, 300)):
        assert (resize_bilinear(pixels, size, shape) == 251).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("size", [(256, 341), (97, 64), (500, 611)], ids=str)
def test_it_is_pils_filter(size: tuple[int, int]) -> None:
    pixels = photo(430, 571)
    expected = np.array(Image.fromarray(pixels).resize(size[::-1], Image.Resampling.BILINEAR))
    found = resize_bilinear(pixels, size, pixels.shape[:2])
    # PIL rounds to 8 bits between the two directions.
    assert abs(found.astype(int) - expected).max() <= 1
    assert psnr(found, expected) >= 50


def test_nothing_is_copied_where_nothing_changes() -> None:
    pixels = photo(40, 50)
    assert resize_bilinear(pixels, (40, 50), (40, 50)) is pixels


PACK = """
import sys
import fastdata
options = {"size": 40, "codec": "jpeg", "num_workers": 2, "format": "folder"}
print(fastdata.pack(sys.argv[1], sys.argv[2], **options).digest)
assert "torch" not in sys.modules, "it takes longer to import than to pack a hundred images"
"""


def test_a_pack_is_the_same_without_the_compiled_library_and_imports_no_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "images" / "a"
    folder.mkdir(parents=True)
    sizes = [(90, 131), (130, 77), (41, 40), (500, 611), (30, 20), (40, 60)]
    for number, size in enumerate(sizes):
        for kind, options in (("JPEG", {"quality": 92, "subsampling": number % 3}), ("PNG", {})):
            options: dict[str, Any] = dict(options)
            if kind == "JPEG":
                options["exif"] = _exif(1 + number)
            Image.fromarray(photo(*size, seed=number)).save(
                folder / f"{number}.{kind.lower()}", kind, **options
            )
    digests = []
    for native in ("0", "1"):
        monkeypatch.setenv("FASTDATA_NATIVE", native)
        command = [sys.executable, "-c", PACK, str(tmp_path / "images"), f"{tmp_path}/{native}.h5"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        digests.append(done.stdout.strip())
    assert digests[0] == digests[1]


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
