"""Write photo-like JPEGs in class folders, for trying and measuring without real photographs.

What a loader costs depends on what is in the pictures: flat noise compresses
badly and decodes slowly, smooth gradients the other way round.  These pictures
follow the statistics of photographs that JPEG cares about: an amplitude
spectrum near 1/f, channels that mostly agree, sharp edges where one thing
hides another, blur behind the plane of focus, soft light and sensor grain.

The model is dead leaves (Lee, Mumford and Huang, "Occlusion models for natural
images", 2001): opaque shapes whose radii have density r^-3 fall on one
another.  Each leaf carries a 1/f texture and a shade.  A class has its own
palette and mix of shapes, so that a small network has something to learn.

The same seed and library versions give the same bytes, with any number of
workers.  The destination appears when it is complete, or not at all.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

Planes = npt.NDArray[np.float32]
"""3 x H x W, RGB in linear light.  Planes, since NumPy is slow over an innermost axis of 3."""

TEXTURE_SIZE = 1024
TEXTURE_COUNT = 8
SMALLEST_RADIUS, LARGEST_RADIUS = 3.5, 150.0
BYTES_WANTED = (60_000, 120_000)


@dataclass(frozen=True, slots=True)
class Look:
    """What the pictures of one class have in common."""

    hues: npt.NDArray[np.float64]
    saturation: float
    elongation: float
    lobes: int
    lobe_depth: float
    leaf_count: int
    texture_first: int


def look_of_class(label: int, seed: int) -> Look:
    """Draw the palette and the shapes of class `label`."""
    rng = np.random.default_rng([seed, 1, label])
    return Look(
        hues=(rng.random() + rng.normal(0.0, 0.09, 4)) % 1.0,
        saturation=float(rng.uniform(0.15, 0.55)),
        elongation=float(rng.uniform(1.0, 3.5)),
        lobes=int(rng.integers(2, 7)),
        lobe_depth=float(rng.uniform(0.0, 0.35)),
        leaf_count=int(rng.integers(220, 520)),
        texture_first=int(rng.integers(TEXTURE_COUNT)),
    )


@cache
def textures(seed: int) -> list[Planes]:
    """Return periodic RGB fields of zero mean: half of them isotropic, half with a grain."""
    rng = np.random.default_rng([seed, 2])
    fy = np.fft.fftfreq(TEXTURE_SIZE)[:, None]
    fx = np.fft.rfftfreq(TEXTURE_SIZE)[None, :]
    radius = np.hypot(fx, fy)
    radius[0, 0] = np.inf
    angle = np.arctan2(fy, fx)

    def field(amplitude: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        noise = np.fft.rfft2(rng.standard_normal((TEXTURE_SIZE, TEXTURE_SIZE)))
        out = np.fft.irfft2(noise * amplitude, s=(TEXTURE_SIZE, TEXTURE_SIZE))
        return np.asarray(out / out.std())

    fields = []
    for number in range(TEXTURE_COUNT):
        # Flat below 1/200 of a pixel: wider features would only shift a leaf's mean.
        amplitude = (radius**2 + 0.005**2) ** (-0.5 * rng.uniform(0.65, 1.1))
        if number % 2:
            # Fur, grass and bark: energy in a wedge of orientations.
            amplitude = amplitude * (0.15 + np.cos(angle - rng.uniform(0, math.pi)) ** 6)
        light = field(amplitude)
        # Colour changes more slowly than brightness, and by a fraction of it.
        red, blue = field(amplitude / radius**0.4), field(amplitude / radius**0.4)
        planes = [light + 0.22 * red, light - 0.05 * (red + blue), light + 0.22 * blue]
        fields.append(np.stack(planes).astype(np.float32))
    return fields


def colours(rng: np.random.Generator, look: Look, count: int) -> npt.NDArray[np.float32]:
    """Draw `count` x 3 colours of the class's palette, now and then of another."""
    hue = np.where(rng.random(count) < 0.8, rng.choice(look.hues, count), rng.random(count))
    saturation = np.clip(look.saturation * rng.uniform(0.3, 1.5, count), 0.0, 0.85)
    # Brightness of things in the world is close to log-normal.
    value = np.clip(np.exp(rng.normal(-1.35, 0.85, count)), 0.01, 1.0)
    # Each channel is full within a sixth of the hue circle from its own hue, and falls from there.
    away = np.abs((hue[:, None] - np.array([0.0, 1 / 3, 2 / 3]) + 0.5) % 1.0 - 0.5)
    full = np.clip(2.0 - 6.0 * away, 0.0, 1.0)
    return np.asarray(value[:, None] * (1 - saturation[:, None] * (1 - full)), np.float32)


def surface(
    rng: np.random.Generator, look: Look, seed: int, size: tuple[int, int], contrast: float
) -> Planes:
    """Return a patch of one of the class's textures, around 1, lit from a random side."""
    height, width = size
    fields = textures(seed)
    field = fields[(look.texture_first + int(rng.integers(3))) % len(fields)]
    top = int(rng.integers(TEXTURE_SIZE - height + 1))
    left = int(rng.integers(TEXTURE_SIZE - width + 1))
    patch = contrast * field[:, top : top + height, left : left + width]
    patch += 1.0
    angle, strength = rng.uniform(0, 2 * math.pi), rng.uniform(0.0, 1.2)
    y = (strength * math.sin(angle) / height) * (np.arange(height, dtype=np.float32) - height / 2)
    x = (strength * math.cos(angle) / width) * (np.arange(width, dtype=np.float32) - width / 2)
    patch *= y[:, None] + (x + 1.0)
    return patch


def outline(rng: np.random.Generator, look: Look, radius: float) -> npt.NDArray[np.float64]:
    """Return the corners of a leaf around the origin, N x 2."""
    angles = np.arange(0, 2 * math.pi, 2 * math.pi / (12 + 2 * int(radius / 2)))
    kind, lobe_phase, wave_phase, stretch, turn = rng.random(5)
    if kind < 0.15:
        angles = angles[:: len(angles) // (3 + int(kind * 20))]  # some have corners
    waves = 1.0 + look.lobe_depth * np.cos(look.lobes * angles + 2 * math.pi * lobe_phase)
    waves += 0.08 * np.cos((look.lobes + 3) * angles + 2 * math.pi * wave_phase)
    stretch = math.sqrt(1.0 + (look.elongation - 1.0) * stretch)
    shape = radius * waves * np.exp(1j * angles)
    shape = (shape.real * stretch + 1j * shape.imag / stretch) * np.exp(1j * math.pi * turn)
    return np.stack([shape.real, shape.imag], axis=1)


def drop_leaf(
    canvas: Planes,
    rng: np.random.Generator,
    look: Look,
    seed: int,
    *,
    radius: float,
    colour: npt.NDArray[np.float32],
    contrast: float,
) -> None:
    """Paint one leaf over what is there."""
    height, width = canvas.shape[1:]
    corners = outline(rng, look, radius) + rng.random(2) * (width, height)
    pad = 2 + int(radius * 0.15)
    left, top = (max(0, int(low) - pad) for low in corners.min(axis=0))
    right, bottom = (int(high) + pad for high in corners.max(axis=0))
    box = canvas[:, top:bottom, left:right]
    h, w = box.shape[1:]
    if h < 2 or w < 2:
        return
    mask = np.zeros((h, w), np.uint8)
    # Coordinates in sixteenths of a pixel: outlines do not snap to the grid.
    points = np.round((corners - (left, top)) * 16).astype(np.int32)
    cv2.fillPoly(mask, [points], 255, lineType=cv2.LINE_AA, shift=4)
    if radius > 25:
        # The leaf's own soft shadow on what lies behind it.
        small = cv2.resize(mask, (max(2, w // 4), max(2, h // 4)), interpolation=cv2.INTER_AREA)
        small = cv2.GaussianBlur(small, (0, 0), max(0.8, radius / 40))
        shadow = cv2.resize(small, (w, h), interpolation=cv2.INTER_LINEAR)
        box *= 1.0 - np.float32(0.45 / 255) * shadow
    paint = surface(rng, look, seed, (h, w), contrast)
    paint *= colour[:, None, None]
    paint -= box
    paint *= mask * np.float32(1 / 255)
    box += paint


def paint_scene(rng: np.random.Generator, look: Look, seed: int, height: int, width: int) -> Planes:
    """Return a scene in linear light: background, blurred far leaves, sharp near ones."""
    count = int(look.leaf_count * rng.uniform(0.6, 1.6))
    roughness = rng.uniform(0.6, 2.2)
    contrasts = np.clip(roughness * rng.exponential(0.2, count + 1), 0.02, 0.5)
    palette = colours(rng, look, count + 1)
    # Radii of density r^-3 between the limits, by inversion of their distribution.
    lowest = SMALLEST_RADIUS * rng.uniform(1.0, 2.5)
    radii = (lowest**-2 + rng.random(count) * (LARGEST_RADIUS**-2 - lowest**-2)) ** -0.5
    radii[:3] = rng.uniform(30, LARGEST_RADIUS, 3)
    rng.shuffle(radii)
    far = int(count * rng.uniform(0.2, 0.7))

    canvas = surface(rng, look, seed, (height, width), contrasts[count])
    canvas *= palette[count][:, None, None]
    for number in range(count):
        if number == far:
            blur = rng.uniform(0.6, 2.5)
            canvas = np.stack([cv2.GaussianBlur(plane, (0, 0), blur) for plane in canvas])
        drop_leaf(
            canvas,
            rng,
            look,
            seed,
            radius=radii[number],
            colour=palette[number],
            contrast=contrasts[number],
        )
    return canvas


def develop(scene: Planes, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Light and expose the scene as a camera does; return H x W x 3 bytes."""
    height, width = scene.shape[1:]
    coarse = np.exp(0.25 * rng.standard_normal((4, 4))).astype(np.float32)
    light = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    warmth = np.array([1.0 + rng.normal(0, 0.06), 1.0, 1.0 + rng.normal(0, 0.06)], np.float32)
    scene = scene * light * warmth[:, None, None]
    scene *= 0.20 / max(float(scene.mean()), 1e-3)
    # The lens blurs a little, and the camera sharpens.
    lens, sharpen = rng.uniform(0.4, 0.6), rng.uniform(0.2, 1.0)
    grain = cv2.GaussianBlur(rng.standard_normal((height, width), dtype=np.float32), (0, 0), 0.5)
    grain = np.float32(rng.uniform(1.5, 5.0)) * grain
    planes = []
    for plane in scene:
        plane = cv2.GaussianBlur(np.clip(plane, 0.0, None), (0, 0), lens)
        # A shoulder for the highlights, then the display's gamma.
        plane = 255.0 * (1.25 * plane / (1.0 + 0.45 * plane)) ** np.float32(1 / 2.2)
        plane += sharpen * (plane - cv2.GaussianBlur(plane, (0, 0), 1.0))
        # Grain common to the channels, as demosaicing leaves it.
        planes.append(np.clip(np.rint(plane + grain), 0, 255).astype(np.uint8))
    return np.asarray(cv2.merge(planes), np.uint8)


def encode(image: npt.NDArray[np.uint8], quality: int) -> bytes:
    """Encode as JPEG, moving `quality` where the file would be outside `BYTES_WANTED`."""
    smallest, largest = BYTES_WANTED
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    while True:
        blob = bytes(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1])
        if len(blob) < smallest and quality < 97:
            quality += 2 if len(blob) > 0.8 * smallest else 4
            quality = min(quality, 97)
        elif len(blob) > largest and quality > 75:
            # Overshoot cannot loop: from 60-120 kB one step is far less than a factor of two.
            quality -= 2 if len(blob) < 1.25 * largest else 5
        else:
            return blob


def write_photo(index: int, *, folder: Path, classes: int, seed: int) -> int:
    """Make picture `index` and return its size in bytes."""
    label = index % classes
    rng = np.random.default_rng([seed, 3, index])
    look = look_of_class(label, seed)
    long_side, short_side = int(rng.integers(460, 501)), int(rng.integers(400, 441))
    height, width = (short_side, long_side) if rng.random() < 0.75 else (long_side, short_side)
    image = develop(paint_scene(rng, look, seed, height, width), rng)
    blob = encode(image, int(rng.integers(91, 97)))
    path = folder / f"class_{label:02d}" / f"photo_{index:06d}.jpg"
    path.write_bytes(blob)
    return len(blob)


def start_worker(seed: int) -> None:
    """Prepare a worker process: one thread each, textures made once."""
    cv2.setNumThreads(0)
    textures(seed)


def make_photos(
    destination: Path, *, count: int, classes: int, seed: int, workers: int
) -> list[int]:
    """Write `count` pictures into `classes` folders under `destination`; return their sizes."""
    # Made beside the destination and renamed: a stopped run leaves nothing that looks complete.
    unfinished = destination.with_name(f".{destination.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for label in range(classes):
        (unfinished / f"class_{label:02d}").mkdir(parents=True)
    task = partial(write_photo, folder=unfinished, classes=classes, seed=seed)
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=start_worker, initargs=(seed,)
    ) as pool:
        made = pool.map(task, range(count), chunksize=8)
        sizes = list(tqdm(made, total=count, unit="picture", leave=False, disable=None))
    unfinished.rename(destination)
    return sizes


def main(arguments: list[str] | None = None) -> int:
    """Read the command line and make the pictures."""
    summary = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("destination", type=Path, help="folder to make; it must not exist")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--classes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=available_cores())
    options: Any = parser.parse_args(arguments)
    if options.destination.exists():
        parser.error(f"{options.destination} exists; remove it or choose another folder")
    options.destination.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    sizes = make_photos(
        options.destination,
        count=options.count,
        classes=options.classes,
        seed=options.seed,
        workers=options.workers,
    )
    seconds = time.perf_counter() - started
    print(
        f"{len(sizes)} pictures in {options.classes} classes, mean {np.mean(sizes) / 1000:.0f} kB "
        f"({min(sizes) / 1000:.0f}-{max(sizes) / 1000:.0f} kB), in {seconds:.0f} s: "
        f"{options.destination}"
    )
    return 0


def available_cores() -> int:
    """Return the cores that this process may use, which a container may have limited."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
