"""Processes of scripts that are only tried, as the parent has them."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import MAGIC_NUMBER
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from fastdata.doctor.messages import OWN, Ended, Ran, Request, Run, Watched
from fastdata.errors import FastdataError, OptionError
from fastdata.processes.groups import kill_group
from fastdata.processes.protection import Way, best_way, cache_folders
from fastdata.processes.resources import RESERVE_BYTES, available_bytes, format_bytes

__all__ = ["ScriptFailedError", "ScriptProcess", "scratch_folder"]

_TICK_SECONDS = 0.1
_ROOT = Path(__file__).resolve().parents[2]

_START = """
import json, sys
path, (root, *limits) = list(sys.path), json.loads(sys.argv.pop(1))
del path[: not getattr(sys.flags, "safe_path", False)]  # the script's comes later
sys.path[:] = [root, *path]
import fastdata.processes.protection  # before torch is imported, which starts threads
fastdata.processes.protection.contain(int(sys.argv[1]), *limits)
import fastdata.doctor.session
sys.path[:] = path
with fastdata.doctor.session.connected() as session:
    session.request.script.run()
"""

MOST_OUTPUT, MOST_LINES = 2000, 12
"""Characters and lines of a script's own output that are shown if it failed."""

ENDING_SECONDS = 10.0


class ScriptFailedError(FastdataError, RuntimeError):
    """A script has failed, ended too early, or cannot be measured.

    `watched` has the facts that were seen by then, and `output` the end of its output.
    """

    def __init__(
        self,
        message: str,
        watched: Watched | None = None,
        output: str = "",
        *,
        raised: bool = False,
    ) -> None:
        super().__init__(message)
        self.watched, self.output, self.raised = watched, output, raised

    def explained(self, script: str) -> str:
        """Return the message for users, with the end of the output."""
        if self.raised:  # as Python itself prints it
            return "\n\n".join(filter(None, (f"{script} failed:", self.output, str(self))))
        printed = f"\n\nThe end of what it printed:\n{self.output}" if self.output else ""
        return f"{script}: {self}.{printed}"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder for all that scripts write, which is removed in the end."""
    prefix = "fastdata-doctor-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(os.path.realpath(folder))


class ScriptProcess:
    """A script in its own process and process group; a context.

    All of the group ends with the context and with this process, however that ends.
    """

    def __init__(self, request: Request, environment: Mapping[str, str] | None = None) -> None:
        self._scratch = Path(request.scratch)
        self._scratch.mkdir(parents=True)  # a link that an earlier script made is no folder
        common = str(self._scratch.parent)  # of all processes: caches of compilers, numbers
        request = replace(
            request,
            protection=_protection(request),
            writable={OWN: common, **cache_folders(os.environ, request.script.name)},
        )
        self._output = self._scratch / "output.txt"
        code = request.script.within(_START) or compile(_START, "<string>", "exec")
        self._connection, theirs = Pipe()
        variables = {
            **os.environ,
            "TMPDIR": request.scratch,
            "TORCHINDUCTOR_CACHE_DIR": f"{common}/inductor",
            "TRITON_CACHE_DIR": f"{common}/triton",
            "CUDA_CACHE_PATH": f"{common}/cuda",
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        program = self._scratch / "script.pyc"
        program.write_bytes(MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
        limits = request.scratch, [*request.writable.values()], request.protection
        guard = json.dumps([str(_ROOT), *limits])
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, program, guard, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=variables,
                start_new_session=True,  # a Ctrl-C of the terminal is not for it
            )
        theirs.close()
        self._connection.send(request)

    def __enter__(self) -> ScriptProcess:
        return self

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def watched(self, seconds: float) -> Watched:
        """Return the facts that were seen; a script that is measured waits for `ask` then."""
        answer = self._answer(seconds)
        assert isinstance(answer, Watched), "it comes first"
        return answer

    def watched_to_end(self, seconds: float) -> Watched:
        """Return the facts of a script that runs until it ends, or for `seconds`."""
        try:
            return self.watched(seconds)
        except ScriptFailedError as error:
            if error.raised or error.watched is None or not error.watched.steps:
                raise
            return error.watched

    def ask(self, command: Run, seconds: float) -> Ran:
        """Have the script run some steps; return how long they took."""
        self._connection.send(command)
        answer = self._answer(seconds)
        assert isinstance(answer, Ran), "it follows"
        return answer

    def _answer(self, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        try:
            while not self._connection.poll(_TICK_SECONDS):
                # Other processes of the script may keep its end of the connection open.
                if self._process.poll() is not None and not self._connection.poll():
                    raise EOFError
                if time.monotonic() > deadline:
                    raise self._failed(f"the script made no step within {seconds:.0f} s")
                if (free := available_bytes()) < RESERVE_BYTES // 2:
                    raise self._failed(f"it took memory until {format_bytes(free)} were left")
            answer = self._connection.recv()
        except (EOFError, OSError):
            code = self._process.wait()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise self._failed(f"the script's process {how}") from None
        if isinstance(answer, Ended):
            raise self._failed(answer.why, answer.watched, raised=answer.failed)
        return answer

    def _failed(
        self, why: str, watched: Watched | None = None, *, raised: bool = False
    ) -> ScriptFailedError:
        with open(self._output, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_OUTPUT))
            lines = file.read().decode(errors="replace").splitlines()  # also of progress bars
        output = "\n".join([line for line in lines if line.strip()][-MOST_LINES:])
        return ScriptFailedError(why, watched, output, raised=raised)

    def close(self, *_: object) -> None:
        """End the process, and all that it has started.  Idempotent."""
        if self._connection.closed:
            return
        self._connection.close()  # the first process of the script ends all others then
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            kill_group(self._process.pid)
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    __exit__ = close


def _protection(request: Request) -> Way:
    """Return how the user's files are protected; `OptionError` if they cannot be."""
    way: Way = "none" if request.unprotected else best_way()
    if way == "none" and not request.unprotected:
        raise OptionError(
            "this system cannot keep programs from writing: it has neither Landlock (Linux 5.13) "
            "nor namespaces for users. With --unprotected, files that Python opens are protected, "
            "but not those that libraries in C and other programs write"
        )
    return way
