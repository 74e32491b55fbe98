"""Runs programs in a Python that has imported torch, which takes seconds.

Each program runs in a process that a server has forked; it is ``__main__`` there, has the standard
streams and the exit code to itself, and the interpreter ends as it does after any script. Warnings
are errors. The server does not import fastdata, some of whose modules keep in which process they
were imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 60
servers: set[int] = set()
"""Process IDs of the servers that this process has started."""


class WarmPython:
    """Starts the server, and asks it for one process at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [os.path.dirname(__file__), *sys.path]))
        self.server = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        servers.add(self.server.pid)

    def run(
        self, program: str, *arguments: object, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the text of a program to its end."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            script, out, error = (Path(folder, name) for name in ("main.py", "out", "error"))
            script.write_text(program, encoding="utf-8")
            request = {
                "words": [str(script), *map(str, arguments)],
                "streams": [os.devnull, str(out), str(error)],
                "cwd": str(cwd or Path.cwd()),
            }
            self.server.stdin.write(json.dumps(request) + "\n")
            self.server.stdin.flush()
            code = int(self.server.stdout.readline())
            return subprocess.CompletedProcess(
                request["words"], code, out.read_text(), error.read_text()
            )

    def close(self) -> None:
        self.server.communicate()


if __name__ == "__main__":
    import cv2  # noqa: F401
    import torch.utils.data  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            request = json.loads(line)
            break
        status = os.waitpid(child, 0)[1]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    else:
        sys.exit()
    # The process of a program.
    signal.alarm(SECONDS)
    for number, name in enumerate(request["streams"]):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
    os.chdir(request["cwd"])
    sys.argv = request["words"]
    __file__ = sys.argv[0]
    exec(compile(Path(__file__).read_text("utf-8"), __file__, "exec", dont_inherit=True))
