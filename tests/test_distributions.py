"""What `scripts/build` makes is complete, and installs where there is no compiler."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pack_helpers import image_folder

import fastdata
from fastdata.native.library import VERSION

REPOSITORY = Path(__file__).parents[1]
PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
MISSING = [
    *(n for n in ("auditwheel", "build", "pip", "setuptools") if not importlib.util.find_spec(n)),
    *(["patchelf"] if shutil.which("patchelf", path=PATH) is None else []),
]
COMPILER = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("FASTDATA_", "PYTHON", "PIP_"))
}

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed, of the extra `build`: {MISSING}"),
    pytest.mark.timeout(300),
]


class Built(NamedTuple):
    """The files that were made."""

    sdist: Path
    wheel: Path
    arm_wheel: Path | None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build all, without a network."""
    folder = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "build_distributions.py", folder / "dist"],
        env={**os.environ, "CC": str(COMPILER)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    (sdist,) = folder.glob("dist/*.tar.gz")
    (wheel,) = folder.glob(f"dist/*{platform.machine()}.whl")
    others = {*folder.glob("dist/*aarch64.whl")} - {wheel}
    return Built(sdist, wheel, others.pop() if others else None)


def tracked() -> set[str]:
    """Return what git tracks."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a checkout of git")
    listed = subprocess.check_output(["git", "-C", REPOSITORY, "ls-files", "-z"], text=True)
    return {name for name in listed.split("\0") if name and (REPOSITORY / name).exists()}


def test_the_source_distribution_has_what_git_tracks(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert tracked() - files == set()
    # What setuptools adds, and nothing that lay about.
    added = {name for name in files - tracked() if ".egg-info/" not in name}
    assert added == {"PKG-INFO", "setup.cfg"}
    assert {"LICENSE", "converters/base.py", "fastdata/native/resize_avx2.h", "tests"} <= names


def test_the_wheel_has_every_module_and_one_library_for_any_python(built: Built) -> None:
    names = zipfile.ZipFile(built.wheel).namelist()
    package = re.compile(r"(fastdata|converters)/.*(\.py|\.jinja|py\.typed|doctor/advice\.md)")
    wanted = {
        re.sub("^converters/", "fastdata/converters/", name)
        for name in tracked()
        if package.fullmatch(name)
    }
    made = {name for name in names if name.startswith("fastdata/") and not name.endswith("/")}
    assert made == {*wanted, "fastdata/native/_native.so"}
    assert f"fastdata_vision-{fastdata.__version__}.dist-info/licenses/LICENSE" in names
    assert is_tagged(built.wheel, platform.machine())


def is_tagged(wheel: Path, processor: str) -> bool:
    """Return whether it is for any Python 3 and any Linux of the last ten years."""
    name = rf"fastdata_vision-{re.escape(fastdata.__version__)}-py3-none"
    tag = rf"manylinux2014_{processor}\.manylinux_2_17_{processor}"
    return bool(re.fullmatch(rf"{name}-{tag}", wheel.stem))


def test_the_wheel_for_arm_is_the_same_but_for_the_library(built: Built) -> None:
    if built.arm_wheel is None:
        pytest.skip("there is no aarch64-linux-gnu-gcc, or this is AArch64")
    assert is_tagged(built.arm_wheel, "aarch64")
    here, there = zipfile.ZipFile(built.wheel), zipfile.ZipFile(built.arm_wheel)
    assert sorted(here.namelist()) == sorted(there.namelist())
    other = {n for n in here.namelist() if here.read(n) != there.read(n)}
    library = "fastdata/native/_native.so"
    info = f"fastdata_vision-{fastdata.__version__}.dist-info"
    assert other == {library, f"{info}/WHEEL", f"{info}/RECORD"}
    header = there.read(library)
    assert (header[:4], int.from_bytes(header[18:20], "little")) == (b"\x7fELF", 183)  # EM_AARCH64


CODE = """
import json, sys
from importlib.metadata import distribution
import fastdata
from fastdata.native import library

images, packed = sys.argv[1:]
fastdata.pack(images, packed, codec="jpeg", num_workers=0, progress=False)
batches = {}
for decoder in ("native", "simplejpeg"):
    if decoder == "native" and not library.compiled():
        continue
    with fastdata.loader(packed, batch_size=64, num_workers=1, decoder=decoder) as loader:
        batches[decoder] = [images for images, labels in loader]
first, *others = batches.values()
points = distribution("fastdata-vision").entry_points.select(group="fastdata.converters")
print(json.dumps({
    "file": fastdata.__file__,
    "library": str(library.FILE),
    "compiled": library.compiled(),
    "batches": {name: [list(batch.shape) for batch in made] for name, made in batches.items()},
    "equal": all(a.equal(b) for other in others for a, b in zip(first, other, strict=True)),
    "formats": {point.name: point.load().__module__ for point in points},
}))
"""


def said(*command: object, folder: Path, path: object) -> str:
    """Return what a command prints that finds no compiler and nothing of this environment."""
    done = subprocess.run(
        [str(word) for word in command],
        env={**CLEAN, "CC": "false", "PATH": str(path)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_works_where_there_is_no_compiler(built: Built, tmp_path: Path) -> None:
    programs = tmp_path / "new" / "bin"
    venv.create(tmp_path / "new", symlinks=True)
    python, command = programs / "python", programs / "fastdata"
    here = partial(said, folder=tmp_path, path=programs)
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    here(*pip, "--no-index", "--no-deps", "--no-cache-dir", built.wheel)
    (site,) = tmp_path.glob("new/lib/python*/site-packages")
    # The dependencies are those of this Python; what is installed there comes before them.
    (site / "dependencies.pth").write_text("\n".join(filter(None, sys.path)) + "\n")

    assert here(command, "--version") == f"fastdata {fastdata.__version__}\n"
    images = image_folder(tmp_path / "images")
    found = json.loads(here(python, "-c", CODE, images, tmp_path / "packed.lmdb"))
    library = ctypes.CDLL(str(site / "fastdata" / "native" / "_native.so"))
    assert library.fd_version() == VERSION
    assert found["file"] == str(site / "fastdata" / "__init__.py")
    assert found["library"] == str(site / "fastdata" / "native" / "_native.so")
    assert found["compiled"] == bool(library.fd_is_fast())  # not without AVX2
    assert set(found["batches"]) == {"simplejpeg", *(["native"] if found["compiled"] else [])}
    assert found["equal"]

    formats = {
        name: f"fastdata.converters.{path.stem}"
        for path in (REPOSITORY / "converters").glob("*.py")
        for name in re.findall(r'^    name = "(\w+)"$', path.read_text(encoding="utf-8"), re.M)
    }
    assert len(formats) > 20
    assert found["formats"] == formats
    listed = here(command, "formats")
    assert [name for name in formats if not re.search(rf"^ *{name}\b", listed, re.M)] == []

    # Python started in a checkout imports what lies there, not what is installed.
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path / "sources", filter="data")
    (checkout,) = (tmp_path / "sources").iterdir()
    there = partial(said, folder=checkout, path=programs)
    code = """if True:
        import fastdata, fastdata.converters
        fastdata.pack(IMAGES, "there.lmdb", codec="jpeg", num_workers=0, progress=False)
        assert len(list(fastdata.loader("there.lmdb", batch_size=64, num_workers=0)))
        print(fastdata.__file__, fastdata.converters.__file__, sep="\\n")
    """.replace("IMAGES", repr(str(images)))
    assert there(python, "-c", code).split() == [
        str(checkout / "fastdata" / "__init__.py"),
        str(checkout / "converters" / "__init__.py"),
    ]
