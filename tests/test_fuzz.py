"""Random damage to shards and manifests: `FastdataError`, or the data that was written.

Two kinds of it.  *Accidents* change bytes anywhere: whatever is still read must be
what was written.  *Attacks* change the header, columns or images and make every
checksum anew, so that the content may be anything; but reading it must not do anything
but raise `FastdataError`.

All of it runs in a forked child, so that a crash of the interpreter, or a loop
without end, fails a test and names the seed, instead of ending pytest.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from click.testing import CliRunner
from samples import (
    EVERY_KIND,
    SUFFIXES,
    forge,
    forge_manifest,
    header_of,
    make_records,
    put_blob,
    write_shard,
    write_shards,
)

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.cli import main
from fastdata.cli.options import EXPORT_FORMATS
from fastdata.errors import FastdataError
from fastdata.verifying import verify

EXAMPLES = int(os.environ.get("FASTDATA_FUZZ_EXAMPLES", "300"))
CHILD_SECONDS = 60 + EXAMPLES // 4
MEMORY_BYTES = 1 << 30
"""How much a child may take beyond what it has at first."""
BY_DEFAULT = 20
"""Seeds of each test in the default run."""


def seeds(examples: int = EXAMPLES) -> pytest.MarkDecorator:
    """Parametrize a test with the seeds of the default run, and with the others, marked `fuzz`."""
    first, others = range(min(BY_DEFAULT, examples)), range(BY_DEFAULT, examples)
    rest = pytest.param(others, marks=pytest.mark.fuzz, id="other seeds")
    return pytest.mark.parametrize("seeds", [pytest.param(first, id="first seeds"), rest])


def fingerprint(sample: Any) -> int:
    """Hash everything in a sample."""
    total = xxhash.xxh3_64()
    for value in sample:
        if hasattr(value, "numpy"):
            total.update(f"{value.dtype} {tuple(value.shape)}".encode())
            total.update(value.numpy().tobytes())
        else:
            total.update(repr(value).encode())
    return total.intdigest()


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A shard in each container and a directory of shards, all of the same samples."""
    folder = tmp_path_factory.mktemp("originals")
    codecs = ("jpeg", "png", "raw", "file")
    records = make_records(EVERY_KIND, 6, codecs)
    paths = [
        write_shard(folder / f"fuzz{suffix}", records, EVERY_KIND) for suffix in SUFFIXES.values()
    ]
    parts = [records[:4], records[4:]]
    return [*paths, write_shards(folder / "fuzz", parts, EVERY_KIND, "hdf5")]


def run_in_child(seeds: Iterable[int], run: Callable[[int], None]) -> None:
    """Call `run` with every seed in a forked child; fail with the seed where it goes wrong."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, resource.RLIM_INFINITY))
            for seed in seeds:
                os.write(send, f"\nseed {seed}: ".encode())
                run(seed)
            status = 0
        except BaseException:
            os.write(send, traceback.format_exc().encode()[-20_000:])
        finally:
            os._exit(status)
    os.close(send)
    said, deadline = b"", time.monotonic() + CHILD_SECONDS
    while True:
        if not select.select([receive], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            said += b"it did not end in time"
            break
        block = os.read(receive, 65536)
        if not block:
            break
        said = (said + block)[-40_000:]
    os.close(receive)
    _, status = os.waitpid(child, 0)
    last = said.decode("utf-8", "replace").rpartition("\nseed ")[2]
    assert status == 0, f"child ended with status {status} in seed {last}"


def copy_of(original: Path, folder: Path) -> tuple[Path, list[Path]]:
    """Copy a dataset; return the copy and its files."""
    copy = folder / original.name
    if original.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(original, copy)
        return copy, sorted(copy.iterdir())
    shutil.copy(original, copy)
    return copy, [copy]


def damage(data: bytearray, random: np.random.Generator) -> bytes:
    """Return the bytes with one accident."""

    def place(most: int = len(data)) -> slice:
        start = int(random.integers(len(data)))
        return slice(start, start + 1 + int(random.integers(min(most, len(data)))))

    kind = random.integers(8)
    if kind <= 2:
        for _ in range(1 + int(random.integers(3)) ** 3):
            data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
    elif kind == 3:
        del data[int(random.integers(len(data))) :]
    elif kind == 4:
        del data[place(100)]
    elif kind == 5:
        part = place(5000)
        data[part] = random.bytes(len(data[part]))
    elif kind == 6:
        part = place(5000)
        data[part] = bytes(len(data[part]))
    else:
        data[place(100)] = data[place(100)]
    return bytes(data)


@seeds()
def test_accidents_never_give_wrong_data(
    originals: list[Path], tmp_path: Path, seeds: range
) -> None:
    expected = [fingerprint(sample) for sample in fastdata.open(originals[0])]
    keys = list(fastdata.open(originals[0]).keys)

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        path, files = copy_of(originals[seed % len(originals)], tmp_path)
        victim = files[int(random.integers(len(files)))]
        victim.write_bytes(damage(bytearray(victim.read_bytes()), random))
        try:
            intact = verify(path, progress=False).intact
        except FastdataError:
            intact = False
        read = 0
        with contextlib.suppress(FastdataError):
            dataset = fastdata.open(path)
            assert len(dataset) == len(expected)
            for index in range(len(dataset)):
                with contextlib.suppress(FastdataError):
                    assert fingerprint(dataset[index]) == expected[index], f"sample {index}"
                    read += 1
                with contextlib.suppress(FastdataError):
                    assert dataset.keys[index] == keys[index], f"key {index}"
            repr(dataset)
        assert read == len(expected) or not intact, "verify did not find the damage"

    run_in_child(seeds, run)


def strange_number(random: np.random.Generator) -> int:
    """Return a number around which arithmetic breaks."""
    limits = [0, 1, 2**7, 2**8, 2**15, 2**16, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30]
    return limits[int(random.integers(len(limits)))] + int(random.integers(-2, 3))


def mutate(value: Any, random: np.random.Generator) -> Any:
    """Return a JSON document with one place changed."""
    if isinstance(value, dict | list) and value and random.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = keys[int(random.integers(len(keys)))]
        if random.random() < 0.1:
            del value[key]
        else:
            value[key] = mutate(value[key], random)
        return value
    choices: list[Any] = [
        strange_number(random),
        -strange_number(random),
        float(random.normal()),
        float("nan"),
        float("inf"),
        -0.0,
        None,
        True,
        "",
        "\ud800 \0 é",
        [],
        {},
        [value],
        {"name": value},
        str(value),
    ]
    return choices[int(random.integers(len(choices)))]


def attack(path: Path, random: np.random.Generator) -> None:
    """Change a shard so that all of its checksums are right."""
    header = header_of(path)
    kind = random.integers(3)
    if kind == 0:
        forge(path, header=lambda document: mutate(document, random))
    elif kind == 1:

        def change(column: np.ndarray[Any, Any]) -> None:
            view = column.reshape(-1).view(np.uint8)
            if view.size and random.random() < 0.5:
                view[int(random.integers(view.size))] ^= 1 << int(random.integers(8))
            elif column.size and column.dtype.kind == "u":
                row = int(random.integers(column.size))
                limit = 2 ** (8 * column.dtype.itemsize)
                column.reshape(-1)[row] = strange_number(random) % limit

        names = list(header["columns"])
        forge(path, columns={str(name): change for name in random.choice(names, 2)})
    else:
        field = str(random.choice(list(EVERY_KIND.images)))
        (reader,) = fastdata.open(path).shards
        index = int(random.integers(len(reader)))
        blob = damage(bytearray(reader.blob(field, index)), random)
        codec = reader.column(f"{field}.codec")[index]
        if random.random() < 0.2:
            codec = random.integers(5)
        put_blob(path, index, blob, field, codec=int(codec))


def read_images(dataset: fastdata.Dataset, name: str) -> None:
    """Read some images the way that a loader does."""
    with contextlib.suppress(FastdataError):
        images = dataset._images(name, range(min(len(dataset), 20)))
        images.read_ahead()
        for place, (height, width) in enumerate(
            zip(images.heights.tolist(), images.widths.tolist(), strict=True)
        ):
            with contextlib.suppress(FastdataError):
                images.read(place)
            if height > 2 and width > 2:
                with contextlib.suppress(FastdataError):
                    images.window(place, (1, 1, height // 2, width // 2))


def load(path: Path, number: int, *, check: bool) -> None:
    """Load an epoch, in one of several ways, with damaged samples skipped or not."""
    crop = T.RandomResizedCrop(12)
    ways: list[dict[str, Any]] = [
        {"transform": crop},
        {},
        {"transform": [T.RandomHorizontalFlip(), T.RandomCrop((8, 8), padding=4)]},
        {"transform": [crop, T.PerSample(lambda sample: sample)]},
        {"transform": T.Resize(9)},
        {"transform": crop, "cache": "device"},
        {"transform": crop, "cache": "ram"},
        {"transform": [crop, T.ToDtype(torch.float32)], "decoder": "simplejpeg"},
        {"transform": T.Views(2, [crop])},
    ]
    skip = "skip" if number // len(ways) % 2 else "raise"
    with contextlib.suppress(FastdataError):
        dataset = fastdata.open(path, check=check, max_pixels=1 << 20)[:20]
        options = ways[number % len(ways)]
        with fastdata.loader(
            dataset, batch_size=3, num_workers=0, on_corrupt=skip, pin_memory=False, **options
        ) as loader:
            for _ in loader:
                pass


def use(path: Path, *, check: bool) -> None:
    """Do everything that there is to do with a dataset."""
    with contextlib.suppress(FastdataError):
        verify(path, progress=False)
    with contextlib.suppress(FastdataError):
        dataset = fastdata.open(path, check=check)
        for index in range(min(len(dataset), 20)):
            with contextlib.suppress(FastdataError):
                dataset[index]
            with contextlib.suppress(FastdataError):
                assert isinstance(dataset.keys[index], str)
        for name in dataset.schema:
            if name in dataset.schema.images:
                read_images(dataset, name)
            else:
                with contextlib.suppress(FastdataError):
                    dataset._gather(name, range(len(dataset)))
        assert isinstance(dataset.digest, str)
        repr(dataset)


@seeds()
@pytest.mark.parametrize("check", [True, False], ids=["check", "no check"])
def test_attacks_raise_nothing_but_fastdata_errors(
    originals: list[Path], tmp_path: Path, check: bool, seeds: range
) -> None:
    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        path, files = copy_of(originals[seed % len(originals)], tmp_path)
        if path.is_dir():
            if random.random() < 0.5:
                forge_manifest(path, lambda document: mutate(document, random))
            else:
                attack(files[1], random)
        else:
            attack(path, random)
        use(path, check=check)
        for number in range(3):
            load(path, seed * 3 + number, check=check)

    run_in_child((1000 + seed for seed in seeds), run)


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A shard in each container, with images of one size, so that all transforms get on."""
    folder = tmp_path_factory.mktemp("alike")
    records = make_records(EVERY_KIND, 6, ("jpeg", "png", "raw", "file"), size=(24, 40))
    return [write_shard(folder / f"a{suffix}", records, EVERY_KIND) for suffix in SUFFIXES.values()]


@seeds(EXAMPLES // 6)
def test_columns_of_any_content_raise_nothing_but_fastdata_errors(
    alike: list[Path], tmp_path: Path, seeds: range
) -> None:
    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        path, _ = copy_of(alike[seed % 2], tmp_path)

        def change(column: np.ndarray[Any, Any]) -> None:
            view = column.reshape(-1)
            for _ in range(int(random.integers(1, 4)) if view.size else 0):
                at = int(random.integers(view.size))
                if column.dtype.kind == "u":
                    view[at] = strange_number(random) % 2 ** (8 * column.dtype.itemsize)
                else:
                    view[at : at + 1].view(np.uint8)[-1] ^= 0xFF

        names = random.choice(list(header_of(path)["columns"]), int(random.integers(1, 6)), False)
        forge(path, columns={str(name): change for name in names})
        use(path, check=seed % 4 < 2)
        for number in range(4):
            load(path, seed * 4 + number, check=seed % 4 < 2)

    run_in_child((3000 + seed for seed in seeds), run)


@seeds()
def test_damaged_images_without_checks_do_no_harm(
    originals: list[Path], tmp_path: Path, seeds: range
) -> None:
    """With ``check=False`` the decoders see the damage themselves."""

    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        path, _ = copy_of(originals[seed % 2], tmp_path)
        (reader,) = fastdata.open(path).shards
        data = bytearray(path.read_bytes())
        for field in EVERY_KIND.images:
            starts, lengths = (reader.column(f"{field}.{part}") for part in ("offset", "length"))
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
                for _ in range(1 + int(random.integers(4))):
                    data[start + int(random.integers(length))] = int(random.integers(256))
        path.write_bytes(data)
        dataset = fastdata.open(path, check=False)
        for index in range(len(dataset)):
            with contextlib.suppress(FastdataError):
                dataset[index]

    run_in_child((2000 + seed for seed in seeds), run)


def commands(path: Path, sound: Path, out: Path) -> list[list[list[Any]]]:
    """Return all that is done with a dataset: ways of each command, which write to `out`."""
    quick = ["--workers", 0, "--quiet"]
    return [
        [["info", path], ["info", path, "--json"]],
        [["verify", path, "--quiet"]],
        [["view", path, "--html", out / "view.html", "--quiet"]],
        [["export", path, out / form, "--format", form, "-q"] for form in EXPORT_FORMATS[:2]],
        [["export", path, out / form, "--format", form, "-q"] for form in EXPORT_FORMATS[2:]],
        [
            ["merge", path, out / "merged.lmdb", "--quiet"],
            ["merge", sound, path, out / "both.h5", "--on-error", "report", "--quiet"],
        ],
        [
            ["subset", path, out / "some.lmdb", "--indices", "0:3", "--quiet"],
            ["subset", path, out / "class.h5", "--classes", "bee", "--quiet"],
            ["subset", path, out / "parts", "--divide", "a=0.5", "--divide", "b=0.5", "--quiet"],
        ],
        [
            ["pack", path, out / "again.lmdb", "--size", 8, *quick],
            ["pack", path, out / "kept.h5", "--resize", "none", "--codec", "keep", *quick],
        ],
        [["append", path, sound, *quick], ["append", shutil.copy(sound, out), path, *quick]],
    ]


def run_commands(path: Path, sound: Path, out: Path, number: int) -> None:
    """Run every command on a dataset, by one of its ways; none may be surprised."""
    out.mkdir()
    for ways in commands(path, sound, out):
        words = [str(word) for word in ways[number % len(ways)]]
        done = CliRunner().invoke(main, [*words, "--traceback"])
        assert "This is likely a bug" not in done.stderr, (words, done.stderr)
        assert done.exit_code in (0, 1, 2, 3), (words, done.exit_code, done.stderr)
    shutil.rmtree(out)


def forge_one(original: Path, folder: Path, random: np.random.Generator) -> Path:
    """Copy a dataset, and change it in one to three places; all checksums are right."""
    path, files = copy_of(original, folder)
    for _ in range(int(random.integers(1, 4))):
        if path.is_dir() and random.random() < 0.5:
            forge_manifest(path, lambda document: mutate(document, random))
        else:
            with contextlib.suppress(FastdataError, LookupError, TypeError, ValueError):
                attack(files[-1], random)
    return path


@pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, EXAMPLES // 3), marks=pytest.mark.fuzz)]
)
def test_no_command_is_surprised_by_forged_datasets(
    originals: list[Path], tmp_path: Path, seeds: range
) -> None:
    def run(seed: int) -> None:
        random = np.random.default_rng(seed)
        path = forge_one(originals[seed % len(originals)], tmp_path, random)
        run_commands(path, originals[seed // 3 % 2], tmp_path / "out", seed)
        load(path, seed, check=True)

    run_in_child((4000 + seed for seed in seeds), run)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda seed: os.kill(os.getpid(), signal.SIGKILL), "status 9 in seed 5"),
        (lambda seed: 1 // 0, "status 256 in seed 5: .*ZeroDivisionError"),
        (lambda seed: bytearray(4 * MEMORY_BYTES), "seed 5: .*MemoryError"),
    ],
    ids=["crash", "exception", "memory"],
)
def test_the_child_reports_what_goes_wrong(run: Callable[[int], None], message: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        run_in_child(range(5, 9), run)


@pytest.mark.fuzz
def test_changed_sources_are_packed_or_refused(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "scripts" / "fuzzing" / "inputs.py"
    command = [sys.executable, script, "--files", "130", "--failed", tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout
