"""What pyproject.toml cannot say: the compiled library is of no Python in particular.

It is plain C that ctypes loads (fastdata/native/library.py).  setuptools takes it for an extension
module of the Python that builds it, and would name the file, tag the wheel, and choose compiler
flags as of that alone.
"""

import os
import shlex
import sys
import sysconfig

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class BuildLibrary(build_ext):
    """Call the file ``_native.so``, whatever Python builds it."""

    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"

    def build_extensions(self) -> None:
        # Python's own flags have folders of the machine that built it, and may not suit the
        # processor that CC compiles for.
        if sys.platform == "linux":
            compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
            flags = shlex.split(os.environ.get("CFLAGS", ""))
            linking = shlex.split(os.environ.get("LDFLAGS", ""))
            self.compiler.set_executables(
                compiler_so=[*compiler, "-fPIC", *flags],
                linker_so=[*compiler, "-shared", *flags, *linking],
            )
        super().build_extensions()


class AnyPythonWheel(bdist_wheel):
    """Tag the wheel as of any Python 3, on this system and processor."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": BuildLibrary, "bdist_wheel": AnyPythonWheel})
