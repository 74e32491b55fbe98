"""The same photographs in every loader's own format, made once and kept.

Nearly everything is derived from one folder of original JPEG files:

    originals/     links to them, each as often as it takes
    frames/        five frames of each original, where there are fewer than 1,000
    sheets/        50 files of 2000 x 1600 pixels, of 20 photographs each
    packed.lmdb    packed by fastdata: short side 256, JPEG quality 90
    packed.h5
    files/         the images of packed.lmdb as files, byte for byte (fastdata export)
    tars/          the same files in tar shards, in random order
    sorted_tars_64/  the same, class by class, in shards of some 64 MB
    litdata_64/    LitData's chunks of the same files, class by class
    mds_64/        MosaicML Streaming's shards of them
    images.lance   Lance's dataset of them
    images.array_record  grain's file of them
    shards/        the originals packed as packed.lmdb, class by class, in shards of 1 GB
    jpg.beton      FFCV's, from files/: the same sizes, encoded a second time
    raw.lmdb       the pixels of files/
    raw.h5
    raw.beton      the same pixels
    squares.lmdb   the originals, raw, all of one size
    squares.h5
    crops.lmdb     frames, raw, all of one size; crops.npy has the same pixels
    noise.lmdb     50,000 raw images of 32 x 32 pixels, of no photographs
    noise.h5
    pixels/        50,000 files of 32 x 32 pixels, seeded noise in ten class folders; the peers'
                   files of them are in small/
Beside each lies NAME.json, which tells of what it was made; what has the same
settings is used again.  Remove the folder after a change of the format.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from harness import REPOSITORY, ContenderFailedError, last_line, say
from peers import HERE, peer_python

SUFFIXES = {".jpg", ".jpeg", ".rgb"}
"""``.rgb``: 3,072 bytes, the pixels of 32 x 32, as `pixel_files` writes them."""
SIZE, QUALITY = 256, 90
TAR_SAMPLES = 500
TAR_OVERHEAD = 1792
"""Bytes of a sample beside its JPEG: two heads, the label's block, and half a block of filling."""
NOISE_SAMPLES = 50_000
DISTINCT = 1000
"""Pictures that a figure of pixels is taken over."""
FRAME, FRAME_QUALITY = 0.9, 95
"""Of a frame, its part of a photograph's height and width."""


def find_images(given: Path | None) -> Path:
    """Return the folder given, else the one that the environment names, else quickstart's."""
    named = os.environ.get("FASTDATA_BENCH_IMAGES")
    folder = given or (Path(named) if named else REPOSITORY / ".quickstart" / "photos")
    if not folder.is_dir():
        raise SystemExit(
            f"there is no folder {folder}: give --images DIR, "
            "or run scripts/quickstart first, which makes pictures"
        )
    return folder.resolve()


def list_images(images: Path) -> list[Path]:
    """Return the JPEG files in class folders of `images`, sorted."""
    files = sorted(path for path in images.rglob("*") if path.suffix.lower() in SUFFIXES)
    files = [path for path in files if path.parent != images]
    if not files:
        raise SystemExit(f"{images} has no JPEG files in class folders")
    return files


def link_samples(images: Path, folder: Path, samples: int) -> int:
    """Fill `folder` with links to the files of `images`, each as often as it takes.

    Returns the bytes of all samples.
    """
    files = list_images(images)
    shutil.rmtree(folder, ignore_errors=True)
    total = 0
    for number, path in enumerate(islice(cycle(files), samples)):
        label = folder / path.relative_to(images).parts[0]
        label.mkdir(parents=True, exist_ok=True)
        os.symlink(path, label / f"{path.stem}_{number // len(files):04d}{path.suffix}")
        total += path.stat().st_size
    return total


@dataclass(frozen=True)
class Datasets:
    """Makes the datasets when they are first asked for.

    Parameters
    ----------
    images : Path
        Folder of class folders of original JPEG files.
    work : Path
        Where the datasets are kept.
    samples : int
        Of every dataset; files are repeated until there are so many.
    small : bool
        Whether `images` are files of 32 x 32 pixels, not JPEGs.
    """

    images: Path
    work: Path
    samples: int
    small: bool = False

    def made(self, name: str, settings: dict[str, Any], make: Callable[[Path], object]) -> Path:
        """Return the file or folder `name`, made by `make` unless it is there already."""
        files = list_images(self.images)
        wanted = {
            "images": str(self.images),
            "files": len(files),
            "file_bytes": sum(path.stat().st_size for path in files),
            "samples": self.samples,
            **settings,
        }
        path, stamp = self.work / name, self.work / f"{name}.json"
        if path.exists() and stamp.exists() and json.loads(stamp.read_text()) == wanted:
            return path
        say(f"making {path}")
        self.work.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        make(path)
        stamp.write_text(json.dumps(wanted))
        return path

    def originals(self) -> Path:
        """Return the folder of links to the original files."""
        return self.made("originals", {}, lambda to: link_samples(self.images, to, self.samples))

    def distinct(self) -> Datasets:
        """Return these, or where there are fewer than 1,000 photographs, of frames of each."""
        files = list_images(self.images)
        if len(files) >= DISTINCT:
            return self
        settings = {"frame": FRAME, "quality": FRAME_QUALITY}
        frames = self.made("frames", settings, lambda to: write_frames(files, to))
        return replace(self, images=frames, work=self.work / "framed")

    def sheets(self) -> Path:
        """Return a folder of large files: 20 photographs each, side by side, of seeded choice."""
        return self.made("sheets", {}, lambda to: write_sheets(list_images(self.images), to))

    def packed(self, suffix: str) -> Path:
        """Return the originals packed by fastdata as JPEG to ``.lmdb`` or ``.h5``."""
        import fastdata

        settings: dict[str, Any] = {"size": SIZE, "codec": "jpeg", "quality": QUALITY}
        originals = self.originals()
        return self.made(
            f"packed{suffix}", settings, lambda to: fastdata.pack(originals, to, **settings)
        )

    def plain_lmdb(self) -> Path:
        """Return an LMDB with a key for each image, as many training repositories write it.

        That is fastdata's own of JPEGs; it stores small raw images otherwise.
        """
        if not self.small:
            return self.packed(".lmdb")
        return self.made("plain.lmdb", {}, lambda to: write_lmdb(labelled(self.images), to))

    def files(self) -> Path:
        """Return the folder of the packed JPEGs as files, in class folders."""
        from fastdata.converters.exporting.export import export

        if self.small:
            return self.images
        packed = self.packed(".lmdb")
        settings = {"of": packed.name, "size": SIZE, "quality": QUALITY}
        return self.made("files", settings, lambda to: export(packed, to))

    def raw(self, suffix: str) -> Path:
        """Return the pixels of the packed JPEGs, packed raw by fastdata."""
        import fastdata

        if self.small:
            return self.noise(suffix)
        # The manifest, not the folder, so that samples keep their order.
        manifest = self.files() / "manifest.csv"
        settings: dict[str, Any] = {"codec": "raw", "resize": "none"}
        return self.made(
            f"raw{suffix}", settings, lambda to: fastdata.pack(manifest, to, **settings)
        )

    def squares(self, suffix: str, side: int) -> Path:
        """Return the originals packed raw at one size: short side resized, centre cut out."""
        import fastdata

        settings: dict[str, Any] = {"codec": "raw", "resize": "crop", "size": side}
        originals = self.originals()
        return self.made(
            f"squares{suffix}", settings, lambda to: fastdata.pack(originals, to, **settings)
        )

    def crops(self, side: int) -> tuple[Path, Path]:
        """Return squares of the images, packed raw, and the same pixels as an array of NumPy."""
        import fastdata

        settings: dict[str, Any] = {"codec": "raw", "resize": "crop", "size": side}
        settings |= {"enlarge": True, "limit": self.samples}
        pack = self.made(
            "crops.lmdb", settings, lambda to: fastdata.pack(self.images, to, **settings)
        )

        def write(path: Path) -> None:
            images = [sample[0].permute(1, 2, 0).numpy() for sample in fastdata.open(pack)]
            np.save(path, np.stack(images))

        return pack, self.made("crops.npy", settings, write)

    def noise(self, suffix: str) -> Path:
        """Return 50,000 images of CIFAR's size, raw: seeded noise, as pixels are only moved."""
        import fastdata

        settings: dict[str, Any] = {"codec": "raw", "resize": "none"}
        generator = np.random.default_rng(0)
        samples = (
            (generator.integers(0, 256, (32, 32, 3), np.uint8), index % 10)
            for index in range(NOISE_SAMPLES)
        )
        return self.made(
            f"noise{suffix}", settings, lambda to: fastdata.pack(samples, to, **settings)
        )

    def tars(self) -> Path:
        """Return the folder of tar shards for WebDataset."""
        files = self.files()
        settings = {"of": files.name, "samples_a_tar": TAR_SAMPLES}

        def write(folder: Path) -> None:
            samples = labelled(files)
            random.Random(0).shuffle(samples)
            write_tars(samples, folder, TAR_SAMPLES)

        return self.made("tars", settings, write)

    def shards(self) -> Path:
        """Return the originals packed by fastdata as JPEG, class by class, in shards of 1 GB."""
        import fastdata

        settings: dict[str, Any] = {"size": SIZE, "codec": "jpeg", "quality": QUALITY}
        settings["shard_size"] = "1GB"
        originals = self.originals()
        return self.made("shards", settings, lambda to: fastdata.pack(originals, to, **settings))

    def sorted_tars(self, megabytes: int) -> Path:
        """Return the folder of tar shards of some size, class by class, for WebDataset."""
        files = self.files()
        settings = {"of": files.name, "megabytes": megabytes}

        def write(folder: Path) -> None:
            samples = labelled(files)
            mean = sum(path.stat().st_size for path, _ in samples) / len(samples) + TAR_OVERHEAD
            write_tars(samples, folder, round(megabytes * 1e6 / mean))

        return self.made(f"sorted_tars_{megabytes}", settings, write)

    def stored(self, peer: str, megabytes: int) -> Path:
        """Return the folder of shards of some size of ``litdata`` or ``mds``, class by class."""
        return self.written(f"{peer}_{megabytes}", peer, f"remote_{peer}.py", shard_mb=megabytes)

    def written(self, name: str, peer: str, script: str, **settings: object) -> Path:
        """Return the file or folder `name` that a peer writes of the files, class by class.

        Raises
        ------
        ContenderFailedError
            If the peer could not write it.
        """
        options = {"files": str(self.files()), **settings}
        return self.made(
            name,
            {"of": self.files().name, **settings},
            lambda to: run_writer(peer, script, {**options, "destination": str(to)}),
        )

    def beton(self, mode: str) -> Path:
        """Return FFCV's file, of mode ``jpg`` or ``raw``.

        Raises
        ------
        ContenderFailedError
            If FFCV could not write it.
        """
        options = {
            "images": str(self.files()),
            "workers": 2,
            "quality": QUALITY,
            "max_resolution": None,
            "write_mode": mode,
            "chunk": 100,
        }

        def write(path: Path) -> None:
            run_writer("ffcv", "pack_ffcv.py", {**options, "destination": str(path)})

        return self.made(f"{mode}.beton", options, write)


def run_writer(peer: str, script: str, options: dict[str, Any]) -> None:
    """Have a peer write its own format."""
    done = subprocess.run(
        [peer_python(peer), str(HERE / "contenders" / script), json.dumps(options)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ContenderFailedError(f"{peer} did not write its data: {last_line(done.stderr)}")


def write_frames(paths: list[Path], folder: Path) -> None:
    """Write five frames of each photograph, its corners and its centre, sampled as its file is."""
    from PIL import Image, JpegImagePlugin

    for path in paths:
        photograph = Image.open(path)
        sampling = JpegImagePlugin.get_sampling(photograph)
        width, height = (int(side * FRAME) for side in photograph.size)
        right, bottom = photograph.width - width, photograph.height - height
        corners = [(0, 0), (right, 0), (0, bottom), (right, bottom), (right // 2, bottom // 2)]
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        for number, (left, top) in enumerate(corners):
            frame = photograph.convert("RGB").crop((left, top, left + width, top + height))
            file = folder / path.parent.name / f"{path.stem}_{number}.jpg"
            frame.save(file, quality=FRAME_QUALITY, subsampling=max(sampling, 0))


def write_sheets(paths: list[Path], folder: Path) -> None:
    """Write sheets of 5 x 4 photographs of 400 x 400 pixels, as cameras write JPEGs."""
    from PIL import Image, ImageOps

    choice = random.Random(0)
    (folder / "sheets").mkdir(parents=True)
    for number in range(50):
        sheet = Image.new("RGB", (2000, 1600))
        for place in range(20):
            photograph = Image.open(choice.choice(paths)).convert("RGB")
            corner = place % 5 * 400, place // 5 * 400
            sheet.paste(ImageOps.fit(photograph, (400, 400)), corner)
        file = folder / "sheets" / f"{number}_0000.jpg"
        sheet.save(file, quality=QUALITY, subsampling="4:2:0")


def mnist_like(work: Path, samples: int) -> Path:
    """Return grey images of 28 x 28, raw in an LMDB: seeded noise, as pixels are only moved."""
    import fastdata

    path = work / f"noise_28_{samples}.lmdb"
    if not path.exists():  # a file that is there is whole
        say(f"making {path}")
        work.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(0)
        images = (
            (generator.integers(0, 256, (28, 28, 1), np.uint8), index % 10)
            for index in range(samples)
        )
        fastdata.pack(images, path, codec="raw", resize="none", channels=1)
    return path


def pixel_files(work: Path) -> Path:
    """Return 50,000 files of 32 x 32 pixels in ten class folders: seeded noise."""
    folder = work / "pixels"
    if not folder.exists():  # a folder that is there is whole
        say(f"making {folder}")
        part = work / "pixels.part"
        shutil.rmtree(part, ignore_errors=True)
        generator = np.random.default_rng(0)
        for number in range(NOISE_SAMPLES):
            path = part / str(number % 10) / f"{number:05}.rgb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(generator.bytes(32 * 32 * 3))
        part.rename(folder)
    return folder


def labelled(files: Path) -> list[tuple[Path, int]]:
    """Return the files of class folders, sorted, with the numbers of their classes."""
    paths = list_images(files)
    names = [path.relative_to(files).parts[0] for path in paths]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    return list(zip(paths, map(numbers.__getitem__, names), strict=True))


def write_lmdb(samples: list[tuple[Path, int]], path: Path) -> None:
    """Write files and labels under the keys of fastdata's JPEGs."""
    import lmdb

    options: dict[str, Any] = {"subdir": False, "map_size": 1 << 30, "lib_version": 0}
    with lmdb.open(str(path), **options) as environment, environment.begin(write=True) as writing:
        for number, (file, _) in enumerate(samples):
            writing.put(b"image/%010d" % number, file.read_bytes())
        labels = np.array([label for _, label in samples], "<i8")
        writing.put(b"column/label", labels.tobytes())


def write_tars(samples: list[tuple[Path, int]], folder: Path, samples_a_tar: int) -> None:
    """Write JPEG files and labels as WebDataset's tar shards, in their order."""
    folder.mkdir()
    for start in range(0, len(samples), samples_a_tar):
        with tarfile.open(folder / f"{start // samples_a_tar:05}.tar", "w") as tar:
            for number, (path, label) in enumerate(samples[start : start + samples_a_tar], start):
                tar.add(path, f"{number:08}.{'rgb' if path.suffix == '.rgb' else 'jpg'}")
                text = str(label).encode()
                member = tarfile.TarInfo(f"{number:08}.cls")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
