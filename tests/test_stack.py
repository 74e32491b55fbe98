"""Windows and flips of stacked images: against plain loops, and against `render`."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata import transforms as T  # noqa: N812
from fastdata.random import Draws
from fastdata.transforms import render as render_module
from fastdata.transforms.geometry import Geometry
from fastdata.transforms.render import StackPlan, render, render_stack, stack_plan

sides = st.integers(1, 9)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    images = np.random.default_rng(seed).integers(1, 256, shape, np.uint8)
    images.flags.writeable = False
    return images


def by_pixel(image: np.ndarray, top: int, left: int, size: Any, flip: bool) -> np.ndarray:
    """One pixel after another: the definition."""
    rows, columns, channels = image.shape
    out = np.zeros((*size, channels), np.uint8)
    for y in range(size[0]):
        for x in range(size[1]):
            v, u = top + y, left + (size[1] - 1 - x if flip else x)
            if 0 <= v < rows and 0 <= u < columns:
                out[y, x] = image[v, u]
    return out


@given(
    shape=st.tuples(st.integers(1, 12), sides, sides, st.sampled_from([1, 3])),
    size=st.tuples(sides, sides),
    reach=st.sampled_from([0, 4, 20, 10**12]),
    chunk=st.sampled_from([1, 300, 1 << 19]),
    seed=st.integers(0, 2**32),
)
def test_pixels_are_those_of_a_loop_and_of_render(
    shape: tuple[int, ...], size: tuple[int, int], reach: int, chunk: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    images = noise(*shape, seed=seed)
    count, rows, columns, channels = shape
    top = rng.integers(-reach, max(0, rows - size[0]) + reach + 1, count)
    left = rng.integers(-reach, max(0, columns - size[1]) + reach + 1, count)
    flip = rng.random(count) < rng.choice([0, 0.5, 1])
    out = np.full((count, *size, channels), 77, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render_module, "CHUNK_BYTES", chunk)
        render_stack(images, StackPlan(top, left, size, flip), out)
    geometry = Geometry.of(np.full(count, rows), np.full(count, columns))
    # Flips come last, as in a geometry.
    programs = geometry.window(top, left, *size).mirror(flip).programs()
    for k in range(count):
        expected = by_pixel(images[k], int(top[k]), int(left[k]), size, bool(flip[k]))
        np.testing.assert_array_equal(out[k], expected)
        one = np.full_like(out[k], 78)
        render(programs[k], images[k], one)
        np.testing.assert_array_equal(one, expected)


def test_nothing_beside_the_output_is_written() -> None:
    out = np.full((6, 5, 4, 3), 77, np.uint8)
    zeros = np.zeros(4, np.int64)
    plan = StackPlan(zeros, zeros, (5, 4), np.ones(4, np.bool_))
    render_stack(noise(4, 5, 4, 3), plan, out[1:5])
    assert (out[[0, 5]] == 77).all()
    np.testing.assert_array_equal(out[1:5], noise(4, 5, 4, 3)[:, :, ::-1])


def test_no_images_are_no_work() -> None:
    none = np.empty(0, np.int64)
    out = np.empty((0, 4, 4, 3), np.uint8)
    render_stack(noise(0, 8, 8, 3), StackPlan(none, none, (4, 4), none.astype(np.bool_)), out)


def test_threads_do_not_share_scratch() -> None:
    images = noise(600, 16, 16, 3)
    rng = np.random.default_rng(1)
    top, left = rng.integers(-4, 5, (2, 600))
    flip = rng.random(600) < 0.5
    outs = np.zeros((4, 600, 16, 16, 3), np.uint8)

    def work(number: int) -> None:
        for _ in range(5):
            turn = np.arange(600) if number % 2 else np.arange(600)[::-1]
            plan = StackPlan(top[turn], left[turn], (16, 16), flip[turn])
            render_stack(images[turn], plan, outs[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [by_pixel(images[k], top[k], left[k], (16, 16), flip[k]) for k in range(600)]
    for number in range(4):
        np.testing.assert_array_equal(outs[number], expected if number % 2 else expected[::-1])


SQUARES = Geometry.of(np.full(20, 32), np.full(20, 40))
FLIP = np.arange(20) % 3 == 0


@pytest.mark.parametrize(
    "geometry",
    [
        SQUARES,
        SQUARES.mirror(FLIP),
        SQUARES.window(np.arange(20) - 4, np.arange(20) - 4, 32, 40).mirror(FLIP),
        SQUARES.mirror(FLIP).window(np.arange(20), 3, 8, 9),
        SQUARES.window(1, 2, 20, 20).window(3, np.arange(20) % 4, 9, 7),
        SQUARES.mirror(FLIP).mirror_vertically(~FLIP).window(-2, np.arange(20), 9, 7),
    ],
    ids=["identity", "flip", "padded", "flip-first", "folded", "both-flips"],
)
def test_a_stackable_geometry_renders_as_its_programs(geometry: Geometry) -> None:
    images = noise(20, 32, 40, 3)
    found = stack_plan(geometry)
    assert found is not None
    assert found.size == (geometry.height[0], geometry.width[0])
    out = np.zeros((20, *found.size, 3), np.uint8)
    render_stack(images, found, out)
    for program, image, row in zip(geometry.programs(), images, out, strict=True):
        one = np.zeros_like(row)
        render(program, image, one)
        np.testing.assert_array_equal(row, one)


def test_the_crop_of_cifar_training_is_stackable() -> None:
    geometry, draws = Geometry.of([32] * 50, [32] * 50), Draws(0, 0, 1, np.arange(50))
    for transform in (T.RandomCrop(32, padding=4), T.RandomHorizontalFlip()):
        geometry = transform.plan(geometry, draws)
    found = stack_plan(geometry)
    assert found is not None
    assert found.size == (32, 32)
    assert (found.flip == geometry.flip).all()
    assert found.top.min() < 0 < found.top.max()


@pytest.mark.parametrize(
    "geometry",
    [
        SQUARES.resize(16, 16),
        SQUARES.window(0, 0, 16, 16).resize(8, 8),
        SQUARES.window(-1, 0, 32, 40).window(-1, 0, 32, 40),
        SQUARES.window(0, 0, np.arange(20) % 2 + 7, 8),
        SQUARES.window(0, 0, 8, np.arange(20) % 2 + 7),
        Geometry.of([32, 32, 31], [32, 32, 32]),
        Geometry.of([32, 32, 32], [32, 32, 31]),
        Geometry.of([32, 32, 31], [32, 32, 32]).window(0, 0, 8, 8),
        Geometry.of([32, 32, 32], [32, 32, 31]).window(0, 0, 8, 8),
        SQUARES.turn(np.arange(20) % 2),
        Geometry.of([], []),
    ],
    ids=lambda geometry: f"{len(geometry)}-{len(geometry.steps)}",
)
def test_other_geometry_is_not_stackable(geometry: Geometry) -> None:
    assert stack_plan(geometry) is None
