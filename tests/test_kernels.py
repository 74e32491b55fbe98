"""Kernels give what plain indexing gives, bit for bit; in Triton's interpreter without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata.kernels import pixels as pixels_module
from fastdata.kernels.pixels import gather_windows, has_kernels, look_up, window_plan
from fastdata.transforms import pixel
from fastdata.transforms.pixel import Normalize, PixelLookup, ToDtype

DTYPES = [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.fixture(params=["plain", "interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU with its kernels; the CPU with them interpreted, and with torch's own indexing."""
    if request.param == "cuda":
        found: torch.device = request.getfixturevalue("cuda")
        assert has_kernels(found), "or the plain way would be tested once more"
        return found
    if request.param == "plain":
        monkeypatch.setattr(pixels_module, "ADDRESSES", 3000)
        return torch.device("cpu")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles here")
    pytest.importorskip("triton")
    monkeypatch.setattr(pixels_module, "KERNEL_DEVICES", {"cpu"})
    assert has_kernels(torch.device("cpu")), "a first try of one works"
    return torch.device("cpu")


def random_table(channels: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(channels)
    return torch.randint(0, 250, (256, channels), generator=generator).to(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *(((3, 7, 5, 3), dtype) for dtype in DTYPES),
        *((shape, torch.bfloat16) for shape in ((1, 1, 1, 1), (2, 70, 41, 3), (5, 9, 8, 4))),
    ],
    ids=str,
)
def test_look_up(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    table = random_table(shape[-1], dtype)
    found = look_up(pixels.to(device), table.to(device)).cpu()
    assert found.dtype == dtype
    assert torch.equal(found, table[pixels.int(), torch.arange(shape[-1])])
    assert look_up(pixels[:0].to(device), table.to(device)).shape == (0, *shape[1:])


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(1, None), (3, None), (3, torch.bfloat16), (4, torch.float32)],
    ids=str,
)
def test_gather_windows(device: torch.device, channels: int, dtype: torch.dtype | None) -> None:
    generator = np.random.default_rng(channels)
    sizes = generator.integers(9, 90, (6, 2))
    images = [generator.integers(0, 256, (*size, channels), np.uint8) for size in sizes]
    store = np.concatenate([image.reshape(-1) for image in images])
    begin = np.cumsum([0, *(image.size for image in images)])[:-1]
    pitch = sizes[:, 1] * channels
    height, width = 11, 91  # not a whole number of what a program makes, and two of its blocks
    top, left = generator.integers(-20, 30, (2, len(images)))
    flip = generator.random(len(images)) < 0.5
    # Beyond these, and not only beyond the image, there is nothing.
    rows = np.full(len(images), 2), sizes[:, 0] - 1
    columns = np.full(len(images), 1), sizes[:, 1] - 2

    wanted = np.zeros((len(images), height, width, channels), np.uint8)
    for at, image in enumerate(images):
        for y in range(height):
            for x in range(width):
                row = y + top[at]
                column = (width - 1 - x if flip[at] else x) + left[at]
                if rows[0][at] <= row < rows[1][at] and columns[0][at] <= column < columns[1][at]:
                    wanted[at, y, x] = image[row, column]
    expected = torch.from_numpy(wanted)
    table = None if dtype is None else random_table(channels, dtype)
    if table is not None:
        expected = table[expected.int(), torch.arange(channels)]

    plan = torch.from_numpy(window_plan(begin, pitch, top, left, rows, columns, flip))
    found = gather_windows(
        torch.from_numpy(store).to(device),
        plan.to(device),
        (height, width, channels),
        None if table is None else table.to(device),
    )
    assert found.dtype == expected.dtype
    assert torch.equal(found.cpu(), expected)


def test_pixel_transforms_by_the_kernel(device: torch.device) -> None:
    """The way a batch goes on a GPU, against the way it goes on the CPU."""
    chain: list[Any] = [ToDtype(torch.bfloat16), Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))]
    images = torch.randint(0, 256, (4, 3, 20, 30), dtype=torch.uint8)
    wanted = PixelLookup(chain)(images)
    table = PixelLookup(chain).on_device(3, device)
    found = pixel._look_up(images.to(device), table)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found.cpu(), wanted)


COMPILE = """
import sys
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fastdata.kernels import triton_kernels

signatures = {
    "look_up": {"values": "*u8", "table": "*bf16", "out": "*bf16", "count": "i32"},
    "gather_windows": {"store": "*u8", "plan": "*i64", "table": "*bf16", "out": "*bf16"},
}
constants = {
    "look_up": {"CHANNELS": 3, "BLOCK": 1024},
    "gather_windows": {
        "HEIGHT": 224, "WIDTH": 224, "CHANNELS": 3, "LOOK_UP": True, "ROWS": 1, "BLOCK": 1024
    },
}
for name, signature in signatures.items():
    source = ASTSource(
        getattr(triton_kernels, name),
        signature | dict.fromkeys(constants[name], "constexpr"),
        constants[name],
    )
    for architecture in (80, 90):
        made = compile(source, target=GPUTarget("cuda", architecture, 32))
        print(name, architecture, len(made.asm["cubin"]) > 0)
"""


def test_kernels_compile_for_gpus(tmp_path: Path) -> None:
    """Triton brings all it takes to compile for a GPU that is not there."""
    pytest.importorskip("triton", minversion="3.2")
    # In a process of its own: in this one they may be interpreted.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    wanted = [f"{n} {a} True" for n in ("look_up", "gather_windows") for a in (80, 90)]
    assert ran.stdout.split("\n")[:-1] == wanted


def test_whether_they_work_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles here")
    pytest.importorskip("triton")
    monkeypatch.setattr(pixels_module, "KERNEL_DEVICES", {"cpu"})
    tries = []
    launch = pixels_module._launch_look_up
    monkeypatch.setattr(
        pixels_module, "_launch_look_up", lambda *given: tries.append(1) or launch(*given)
    )
    pixels_module._work_on.cache_clear()
    assert has_kernels(torch.device("cpu"))
    assert has_kernels(torch.device("cpu"))
    assert len(tries) == 1
    assert caplog.messages == []


def test_where_they_do_not_work_there_is_another_way(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(pixels_module, "KERNEL_DEVICES", {"cpu"})
    monkeypatch.setattr(pixels_module, "_launch_look_up", fail)
    monkeypatch.setattr(pixels_module, "_kernels", lambda: object())
    pixels_module._work_on.cache_clear()
    pixels = torch.randint(0, 256, (2, 3, 4, 3), dtype=torch.uint8)
    table = random_table(3, torch.float32)
    for _ in range(2):
        assert torch.equal(look_up(pixels, table), table[pixels.int(), torch.arange(3)])
    (said,) = caplog.messages
    assert "C compiler" in said
    pixels_module._work_on.cache_clear()


def test_there_are_none_for_the_cpu() -> None:
    assert not has_kernels(torch.device("cpu"))


@pytest.mark.gpu
def test_there_are_kernels_for_a_gpu(cuda: torch.device) -> None:
    assert has_kernels(torch.device("cuda", torch.cuda.current_device()))
