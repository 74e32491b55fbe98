"""Runs programs in a Python that has imported torch, which takes seconds.

Each program runs in a process that a server has forked; it is ``__main__`` there, has the standard
streams and the exit code to itself, and the interpreter ends as it does after any script. Warnings
are errors. The server does not import fastdata: some of its modules remember the process that
imported them.

A program that needs a fresh interpreter must start one itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SECONDS = 150
"""After which a program is killed that a test has left: pytest ends the test itself after 120."""
servers: set[int] = set()
"""Process IDs of the servers that this process has started."""
running: set[int] = set()
"""Process IDs of the programs that this process has started and that have not ended yet."""

_HEADER = struct.Struct("q")
_STREAMS = ("stdin", "stdout", "stderr")


class Program:
    """A program that was started, with the methods of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        status: int,
        pipes: Mapping[str, IO[Any] | None],
        folder: tempfile.TemporaryDirectory[str] | None,
    ) -> None:
        self.args = list(words)
        self._folder = folder
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = (pipes[name] for name in _STREAMS)
        self._status = status
        self.pid = self._number()
        running.add(self.pid)

    def _number(self) -> int:
        data = b""
        while len(data) < _HEADER.size:
            part = os.read(self._status, _HEADER.size - len(data))
            assert part, "the server has ended"
            data += part
        number: int = _HEADER.unpack(data)[0]
        return number

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = self._number()
            os.close(self._status)
            running.discard(self.pid)
            if self._folder is not None:
                self._folder.cleanup()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Wait for the end; return its output and its errors."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        read: dict[IO[Any], Any] = {}
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        threads = [
            threading.Thread(target=lambda pipe=pipe: read.update({pipe: pipe.read()}), daemon=True)
            for pipe in pipes
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        for pipe in pipes:
            pipe.close()
        return tuple(None if pipe is None else read[pipe] for pipe in (self.stdout, self.stderr))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.kill()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


class WarmPython:
    """Starts the server, and asks it for processes."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [os.path.dirname(__file__), *sys.path]))
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.server = subprocess.Popen(
                [sys.executable, "-W", "error", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path},
            )
        servers.add(self.server.pid)

    def start(
        self,
        program: str | Path,
        *arguments: object,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = True,
        start_new_session: bool = False,
        warn: str = "error",
        seconds: int = SECONDS,
    ) -> Program:
        """Start a program beside the test.

        Parameters
        ----------
        program
            Its text, or the path of its file.
        *arguments
            Arguments of the program.
        cwd, env, stdin, stdout, stderr, text, start_new_session
            As for `subprocess.Popen`, except that there is no standard input by default.  The
            interpreter and its libraries have read the server's environment, not `env`.
        warn : str
            The action of Python's warnings filter.
        seconds : int
            The program is killed after this time.
        """
        folder = None
        if not isinstance(program, Path):
            folder = tempfile.TemporaryDirectory()
            text_of, program = program, Path(folder.name, "main.py")
            program.write_text(text_of, encoding="utf-8")
        words = [str(program), *map(str, arguments)]
        request = {
            "words": words,
            "found": folder is None,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
            "warn": warn,
            "seconds": seconds,
        }
        with contextlib.ExitStack() as theirs:
            pipes: dict[str, IO[Any] | None] = {}
            ends = []
            for name, given in zip(_STREAMS, (stdin, stdout, stderr), strict=True):
                pipes[name] = None
                if given == subprocess.PIPE:
                    pair = os.pipe()
                    end, mine = pair if name == "stdin" else pair[::-1]
                    theirs.callback(os.close, end)
                    mode = "w" if name == "stdin" else "r"
                    pipes[name] = open(mine, mode if text else mode + "b")  # noqa: SIM115
                elif given == subprocess.DEVNULL:
                    end = os.open(os.devnull, os.O_RDWR)
                    theirs.callback(os.close, end)
                elif given == subprocess.STDOUT:
                    end = ends[1]
                elif given is None:
                    end = _STREAMS.index(name)
                else:
                    end = given if isinstance(given, int) else given.fileno()
                ends.append(end)
            status, told = os.pipe()
            theirs.callback(os.close, told)
            data = json.dumps(request).encode()
            socket.send_fds(self.socket, [_HEADER.pack(len(data))], [told, *ends])
            self.socket.sendall(data)
        return Program(words, status, pipes, folder)

    def run(self, program: str | Path, *arguments: object, **options: Any) -> Any:
        """Run a program to its end; return a `subprocess.CompletedProcess`."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            started = self.start(program, *arguments, stdout=out, stderr=error, **options)
            with started:
                code = started.wait()
            out.seek(0)
            error.seek(0)
            return subprocess.CompletedProcess(started.args, code, out.read(), error.read())

    def close(self) -> None:
        self.socket.close()
        self.server.wait()


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork a process for each request; return the request in that process, and None at the end."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    statuses: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(told, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if told in ready:
                os.read(told, 1 << 16)
                while statuses:
                    pid, code = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    status = statuses.pop(pid)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(status, _HEADER.pack(os.waitstatus_to_exitcode(code)))
                    os.close(status)
            if requests not in ready:
                continue
            header, descriptors, _, _ = socket.recv_fds(requests, _HEADER.size, 4)
            if not header:
                return None
            data = b""
            while len(data) < _HEADER.unpack(header)[0]:
                data += requests.recv(1 << 16)
            status, *streams = descriptors
            child = os.fork()
            if child == 0:
                break
            statuses[child] = status
            os.write(status, _HEADER.pack(child))
            for descriptor in streams:
                os.close(descriptor)
    # The process of a program.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in (told, tell, *descriptors, *statuses.values()):
        os.close(descriptor)
    requests.close()
    request: dict[str, Any] = json.loads(data)
    return request


def _begin(request: dict[str, Any]) -> None:
    """Set up this process as the program expects it."""
    signal.alarm(request["seconds"])
    if request["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None
    os.chdir(request["cwd"])
    sys.argv = request["words"]
    if request["found"]:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    if request["warn"] != "error":
        sys.warnoptions[:] = [request["warn"]]
        warnings.resetwarnings()
        warnings.simplefilter(request["warn"])


if __name__ == "__main__":
    import cv2  # noqa: F401
    import torch.utils.data  # noqa: F401

    gc.freeze()  # else each program would search all imported objects when it ends
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        request = _serve(requests)
    if request is None:
        sys.exit()
    _begin(request)
    __file__ = sys.argv[0]
    exec(compile(Path(__file__).read_text("utf-8"), __file__, "exec", dont_inherit=True))
