"""Pack files that were changed at random, of every format, and see that nothing bad comes of it.

    python scripts/fuzzing/inputs.py --files 24000

Sources of every format, and class folders of every image format, are written once.  Then one
of their files is changed, and the source is packed.  Either `fastdata.pack` raises a
`FastdataError`, or the new dataset is intact and every sample of it can be read.  It is a mistake
if anything else is raised, if a process starts, if a pack takes more than 10 seconds or 2 GiB, or
if the process dies.  The changed source of a mistake is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features
from tqdm import tqdm

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "converters")]

from cases import Case, Picture, all_cases, make_pictures  # noqa: E402
from test_fuzz import damage  # noqa: E402

import fastdata  # noqa: E402
from fastdata.errors import FastdataError  # noqa: E402
from fastdata.verifying import verify  # noqa: E402

SECONDS = 10
MEMORY_BYTES = 2 << 30
PICTURES = 12
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.fork", "os.forkpty")
KINDS = {
    "png": {},
    "webp": {"quality": 80},
    "tiff": {"compression": "tiff_lzw"},
    "bmp": {},
    "jpg": {"progressive": True},
}


def folder_of(suffix: str, mode: str) -> Case:
    """Return a case of class folders with images of one kind."""

    def write(folder: Path, pictures: Sequence[Picture]) -> Path:
        for picture in pictures:
            path = folder / f"class{picture.label}" / f"{picture.name}.{suffix}"
            path.parent.mkdir(exist_ok=True)
            image = Image.fromarray(picture.pixels)
            if mode == "I;16":
                image = Image.fromarray(picture.pixels[..., 0].astype(np.uint16) * 257)
            elif mode != "RGB":
                image = image.convert(mode)
            image.save(path, **KINDS[suffix])
        return folder

    return Case(f"{suffix}-{mode}", "folder", write)


def cases() -> list[Case]:
    """Return the cases of all formats, and class folders of all kinds of images."""
    kinds = [
        folder_of(suffix, "RGB") for suffix in KINDS if suffix != "webp" or features.check("webp")
    ]
    modes = [
        ("png", "L"),
        ("png", "P"),
        ("png", "RGBA"),
        ("png", "I;16"),
        ("tiff", "CMYK"),
        ("jpg", "CMYK"),
    ]
    return [*all_cases(), *kinds, *(folder_of(*one) for one in modes)]


def changed(data: bytes, random: np.random.Generator) -> bytes:
    """Return a file with an accident, or with its first or last bytes attacked."""
    if random.random() < 0.5:
        return damage(bytearray(data), random)
    new = bytearray(data)
    reach = min(len(new), int(random.choice([64, 512, len(new)])))
    for _ in range(int(random.integers(1, 5))):
        place = int(random.integers(reach))
        place = len(new) - 1 - place if random.random() < 0.5 else place
        width = int(random.choice([1, 1, 4, 8]))
        value = int(random.choice([0, 0xFF, 0x7F, int(random.integers(256))]))
        new[place : place + width] = bytes([value]) * len(new[place : place + width])
    return bytes(new)


def try_one(case: Case, location: Any, files: list[Path], number: int, out: Path) -> str:
    """Pack a changed source; return what came of it."""
    random = np.random.default_rng([number, sum(case.name.encode())])
    file = files[int(random.integers(len(files)))]
    whole = file.read_bytes()
    file.write_bytes(changed(whole, random))
    codec = str(random.choice(["keep", "jpeg", "png", "raw"]))
    options: dict[str, Any] = {"source_options": dict(case.options), "num_workers": 0}
    try:
        report = fastdata.pack(
            location,
            out,
            format=case.format,
            codec=codec,
            overwrite=True,
            progress=False,
            **options,
        )
    except FastdataError:
        return "refused"
    else:
        assert verify(out, progress=False).intact, "the new dataset is not intact"
        for _ in fastdata.open(out):
            pass
        return "rejects" if report.num_rejected else "packed"
    finally:
        file.write_bytes(whole)
        shutil.rmtree(f"{out}.partial", ignore_errors=True)


def run_child(case: Case, location: Any, files: list[Path], numbers: range, send: int) -> None:
    """Try a range of changes; write a line for each to a pipe."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, resource.RLIM_INFINITY))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

    def forbid(event: str, _: object) -> None:
        if event in STARTS:
            os.write(send, f"{event}\n".encode())
            os._exit(3)

    sys.addaudithook(forbid)
    with tempfile.TemporaryDirectory(prefix="fastdata-fuzz-out-") as out:
        for number in numbers:
            try:
                said = try_one(case, location, files, number, Path(out) / "a.lmdb")
            except BaseException:
                said = "raised " + traceback.format_exc()[-3000:].replace("\n", "\\n")
            os.write(send, f"{said}\n".encode())


def written(case: Case, folder: Path) -> Any:
    """Write a source, apart if its library does not work in forks of a process that has used it."""
    if case.forks:
        return case.write(folder, make_pictures(PICTURES))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(case.write, folder, make_pictures(PICTURES)).result()


def try_many(case: Case, numbers: range, failed: Path, bar: Any) -> Counter[str]:
    """Try changes of one case; children that die or hang are replaced."""
    count: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fastdata-fuzz-") as scratch:
        folder = Path(scratch) / "in"
        folder.mkdir()
        location = written(case, folder)
        whole = {one: one.read_bytes() for one in case.damaged_files(folder)}
        files = [one for one, data in whole.items() if data]
        at = numbers.start
        while at < numbers.stop:
            receive, send = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(receive)
                with contextlib.suppress(BaseException):
                    run_child(case, location, files, range(at, numbers.stop), send)
                os._exit(0)
            os.close(send)
            at, wrong = listen(receive, child, at, numbers.stop, count, bar)
            if wrong:
                count["WRONG"] += 1
                kept = failed / f"{case.name}-{at - 1}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder, kept, symlinks=True)
                (kept / "WHY").write_text(wrong.replace("\\n", "\n"))
                last = wrong.rstrip("\\n").rpartition("\\n")[2]
                tqdm.write(f"{case.name}, change {at - 1}: {last[-200:]}")
            for one, data in whole.items():
                one.write_bytes(data)
    return count


def listen(
    receive: int, child: int, at: int, stop: int, count: Counter[str], bar: Any
) -> tuple[int, str]:
    """Count what a child says; return the next change, and what was wrong with the last one."""
    waiting, wrong = b"", ""
    while at < stop and not wrong:
        if not select.select([receive], [], [], SECONDS)[0]:
            wrong = f"took more than {SECONDS} s"
            break
        block = os.read(receive, 1 << 16)
        if not block:
            wrong = "the process died"
            break
        *lines, waiting = (waiting + block).split(b"\n")
        for line in lines:
            at += 1
            bar.update()
            said = line.decode()
            if said not in ("refused", "rejects", "packed"):
                wrong = said
                break
            count[said] += 1
    if wrong in ("the process died", f"took more than {SECONDS} s"):
        at += 1
        bar.update()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.close(receive)
    _, status = os.waitpid(child, 0)
    return at, f"{wrong} (status {status})" if wrong else ""


def main() -> int:
    """Parse the command line, and print one line at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=2400, help="changed files in all")
    parser.add_argument("--seed", type=int, default=0, help="number of the first change")
    parser.add_argument("--only", help="cases whose names have this in them")
    parser.add_argument("--failed", type=Path, default=Path(".cache/fuzz/inputs.failed"))
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.only or options.only in case.name]
    each = -(-options.files // len(chosen))
    total: Counter[str] = Counter()
    with tqdm(total=each * len(chosen), unit="file", disable=None) as bar:
        for case in chosen:
            total += try_many(case, range(options.seed, options.seed + each), options.failed, bar)
    wrong = total.pop("WRONG", 0)
    outcome = ", ".join(f"{number:,} {name}" for name, number in sorted(total.items()))
    done = f"{each * len(chosen):,} changed files of {len(chosen)} sources"
    print(f"inputs       {done}: {outcome}, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
