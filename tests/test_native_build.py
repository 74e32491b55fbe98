"""The compiled library is there where it must be, and refused where it does not fit."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastdata.native import library as native

pytestmark = pytest.mark.build

SOURCES = Path(__file__).parents[1] / "fastdata" / "native"
LOOK_IN = "native.FILE = native.FILE.__class__({!r}) / native.FILE.name\n"


def said_by(code: str, **environment: str) -> str:
    """Return what the code prints, warnings included, in a new process that has loaded nothing."""
    kept = {name: value for name, value in os.environ.items() if name != "FASTDATA_NATIVE"}
    code = f"from fastdata.native import library as native\n{code}"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code],
        env={**kept, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def built() -> None:
    """Skip where there is no build that can be used; the first test says where there must be."""
    if not said_by("print(native.library())").startswith("<CDLL"):
        pytest.skip("the compiled library is not here (no C compiler, or no AVX2 nor NEON)")


@pytest.mark.smoke
@pytest.mark.skipif(
    os.environ.get("FASTDATA_REQUIRE_NATIVE") != "1",
    reason="FASTDATA_REQUIRE_NATIVE=1 demands it; scripts/test sets that where a compiler works",
)
def test_compiled_library_is_there_where_it_is_demanded() -> None:
    # Not library() is asked, but the file: a processor without AVX2 has it and does not use it.
    assert native.FILE.exists(), (
        "FASTDATA_REQUIRE_NATIVE=1, and the compiled library was not built. Why is in "
        ".cache/build.log, or is shown by `pip install -v -e .`"
    )
    assert ctypes.CDLL(str(native.FILE)).fd_version() == native.VERSION


@pytest.mark.usefixtures("built")
def test_library_is_of_the_version_that_python_expects() -> None:
    code = "print(native.library().fd_version(), native.library() is native.library())"
    assert said_by(code) == f"{native.VERSION} True\n"


@pytest.mark.smoke
def test_version_of_the_sources_is_that_of_python() -> None:
    found = re.search(r"^#define VERSION (\d+)$", (SOURCES / "crops.c").read_text(), re.M)
    assert found is not None
    assert int(found[1]) == native.VERSION


@pytest.mark.usefixtures("built")
def test_build_of_another_version_is_refused_with_one_warning() -> None:
    said = said_by("native.VERSION += 1\nprint(native.library(), native.library())")
    version = native.VERSION
    assert said.endswith("None None\n")
    assert said.count("RuntimeWarning") == 1
    assert f"its version is {version}, not {version + 1}" in said
    assert "pip install -e ." in said


def test_file_that_is_no_library_is_refused_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / native.FILE.name).write_bytes(b"of another machine")
    said = said_by(LOOK_IN.format(str(tmp_path)) + "print(native.library(), native.library())")
    assert said.endswith("None None\n")
    assert said.count("RuntimeWarning") == 1
    assert "does not fit" in said
    assert "pip install -e ." in said


def test_install_without_the_compiled_library_says_nothing(tmp_path: Path) -> None:
    said = said_by(LOOK_IN.format(str(tmp_path)) + "print(native.library())")
    assert said == "None\n"


@pytest.mark.smoke
def test_environment_turns_it_off() -> None:
    assert said_by("print(native.library())", FASTDATA_NATIVE="0") == "None\n"


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("value", ["1", ""])
def test_environment_leaves_it_on(value: str) -> None:
    assert said_by("print(native.library())", FASTDATA_NATIVE=value).startswith("<CDLL")


@pytest.mark.usefixtures("built")
def test_threads_that_come_at_once_and_a_fork_have_it() -> None:
    code = """
import os, threading
found, ready = [], threading.Barrier(8)
def load():
    ready.wait()
    found.append(native.library().fd_version())
threads = [threading.Thread(target=load) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
child = os.fork()
if not child: os._exit(native.library().fd_version())
print(set(found), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert said_by(code) == f"{{{native.VERSION}}} {native.VERSION}\n"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_sources_compile_without_a_warning(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not here")
    flags = ["-std=c11", "-O2", "-fwrapv", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [compiler, *flags, *map(str, sorted(SOURCES.glob("*.c")))], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
