"""Processes of scripts that are only tried, as the parent has them."""

from __future__ import annotations

import contextlib
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

from fastdata.doctor.messages import Ended, Ran, Request, Watched
from fastdata.doctor.writes import folders_made
from fastdata.errors import FastdataError
from fastdata.measuring.trials import RESERVE_BYTES
from fastdata.processes.resources import available_bytes, format_bytes
from fastdata.processes.starting import kill_group

__all__ = ["ScriptFailedError", "ScriptProcess", "scratch_folder"]

_TICK_SECONDS = 0.1
_ROOT = Path(__file__).resolve().parents[2]

_START = """
import sys
path, root = list(sys.path), sys.argv.pop(1)
sys.path.insert(0, root)
import fastdata.doctor.session
sys.path[:] = path[not getattr(sys.flags, "safe_path", False) :]  # the script's comes later
with fastdata.doctor.session.connected() as session:
    exec(*session.request.script.program())
"""

MOST_OUTPUT, MOST_LINES = 2000, 12
"""Characters and lines of a script's own output that are shown if it failed."""


class ScriptFailedError(FastdataError, RuntimeError):
    """A script has failed, ended too early, or does what cannot be measured.

    `watched` is what was seen until then, and `output` the end of what it printed.
    """

    def __init__(
        self,
        message: str,
        *,
        watched: Watched | None = None,
        output: str = "",
        raised: bool = False,
    ) -> None:
        super().__init__(message)
        self.watched, self.output, self.raised = watched, output, raised

    def explained(self, script: str) -> str:
        """Return the message for users, with the end of what the script printed."""
        if self.raised:  # as Python itself prints it
            return "\n\n".join(filter(None, (f"{script} failed:", self.output, str(self))))
        printed = f"\n\nThe end of what it printed:\n{self.output}" if self.output else ""
        return f"{script}: {self}.{printed}"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give a folder for all that scripts write, which is removed in the end."""
    prefix = "fastdata-doctor-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class ScriptProcess:
    """A script in a process of its own, in an own group; a context that ends all of it.

    It ends with this object's context and with this process, however that ends.
    """

    def __init__(self, request: Request, environment: Mapping[str, str] | None = None) -> None:
        self._scratch = Path(request.scratch)
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._output = self._scratch / "output.txt"
        code = request.script.within(_START)
        request = replace(request, is_main=code is not None)
        ours, theirs = Pipe()
        lifeline_end, lifeline = os.pipe()
        self._connection, self._lifeline = ours, lifeline
        variables = {
            **os.environ,
            "TMPDIR": request.scratch,
            "TORCHINDUCTOR_CACHE_DIR": str(self._scratch.parent / "inductor"),  # one for all
            "TRITON_CACHE_DIR": str(self._scratch.parent / "triton"),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        program = self._scratch / "script.pyc"
        program.write_bytes(
            MAGIC_NUMBER + bytes(12) + marshal.dumps(code or compile(_START, "<string>", "exec"))
        )
        arguments = [str(_ROOT), str(theirs.fileno()), str(lifeline_end)]
        with open(self._output, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(), lifeline_end),
                env=variables,
                start_new_session=True,  # a Ctrl-C of the terminal is not for it
            )
        theirs.close()
        os.close(lifeline_end)
        ours.send(request)

    def __enter__(self) -> ScriptProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_ended(self) -> bool:
        """Whether there is no process any more."""
        return self._process.poll() is not None

    def watched(self, seconds: float) -> Watched:
        """Return what was seen; of a script that is measured, once it waits for `ask`."""
        answer = self._answer(seconds)
        assert isinstance(answer, Watched), "that is what comes first"
        return answer

    def watched_to_end(self, seconds: float) -> Watched:
        """Return what was seen of a script that runs until it ends, or for so many seconds."""
        try:
            return self.watched(seconds)
        except ScriptFailedError as error:
            if error.raised or error.watched is None or not error.watched.steps:
                raise
            return error.watched

    def tell(self, command: object) -> None:
        """Have the script do something that it gives no answer to."""
        self._connection.send(command)

    def ask(self, command: object, seconds: float) -> Ran:
        """Have the script run some steps; return how long they took."""
        self.tell(command)
        answer = self._answer(seconds)
        assert isinstance(answer, Ran), "that is what follows"
        return answer

    def _answer(self, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while not self._connection.poll(_TICK_SECONDS):
            if self._process.poll() is not None and not self._connection.poll():
                raise self._failed(f"the script's process {self._death()}")
            if time.monotonic() > deadline:
                raise self._failed(f"the script made no step within {seconds:.0f} s")
            if (free := available_bytes()) < RESERVE_BYTES // 2:
                raise self._failed(f"it took memory until {format_bytes(free)} were left")
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.wait()
            raise self._failed(f"the script's process {self._death()}") from None
        if isinstance(answer, Ended):
            raise self._failed(answer.why, answer.watched, raised=answer.failed)
        return answer

    def _death(self) -> str:
        code = self._process.returncode
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _failed(
        self, why: str, watched: Watched | None = None, *, raised: bool = False
    ) -> ScriptFailedError:
        with open(self._output, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST_OUTPUT))
            lines = file.read().decode(errors="replace").splitlines()  # also of progress bars
        output = "\n".join([line for line in lines if line.strip()][-MOST_LINES:])
        return ScriptFailedError(why, watched=watched, output=output, raised=raised)

    def close(self) -> None:
        """End the process, and all that it has started.  Idempotent."""
        if self._connection.closed:
            return
        kill_group(self._process.pid)
        self._process.wait()
        self._connection.close()
        os.close(self._lifeline)
        for folder in reversed(folders_made(self._scratch)):
            with contextlib.suppress(OSError):  # something is inside
                os.rmdir(folder)
        shutil.rmtree(self._scratch, ignore_errors=True)
