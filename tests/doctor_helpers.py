"""Scripts with faults that were planted, and how they are watched without a new interpreter."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NoReturn

import torch

from fastdata.doctor.messages import Ended, Request, Watched
from fastdata.doctor.script import Script
from fastdata.doctor.session import Session
from fastdata.doctor.trials import Trials
from fastdata.measuring.lines import is_users
from fastdata.processes.groups import kill_group, lead_group

__all__ = ["ANOMALIES", "PLAIN", "planted", "script_with", "started", "watch"]

PLAIN = {
    "start": "",
    "model": """
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(8 * 36, 8),
        ).to(memory_format=torch.channels_last)
    """,
    "optimizer": "optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)",
    "before": "model.train()",
    "step": """
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    """,
    "validation": """
        model.eval()
        with torch.no_grad():
            for x, y in loader:
                model(x.contiguous(memory_format=torch.channels_last))
    """,
}
"""The parts of a script in which there is nothing to find but what applies to every model."""

_SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

{start}
{model}
data = TensorDataset(torch.rand(64, 3, 8, 8), torch.randint(8, (64,)))
loader = DataLoader(data, 4)
{optimizer}
for epoch in range(1000):
{before}
    for x, y in loader:
        x = x.contiguous(memory_format=torch.channels_last)
{step}
{validation}
"""


ANOMALIES = {
    "start": "torch.autograd.set_detect_anomaly(True)",
    "model": """
        layers = [layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.ReLU())]
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), *layers)
    """,
}
"""A model of many small layers takes several times as long while anomalies are looked for."""


def script_with(**parts: str) -> str:
    """Return a script of which some parts are other than the plain ones."""
    indented = {"before": 4, "step": 8, "validation": 4}
    texts = {
        name: textwrap.indent(textwrap.dedent(text).strip(), " " * indented.get(name, 0))
        for name, text in {**PLAIN, **parts}.items()
    }
    return _SCRIPT.format(**texts)


def planted(script: str) -> set[tuple[str, int]]:
    """Return the IDs that comments of a script name, ``# D09``, with their lines."""
    return {
        (id, number)
        for number, line in enumerate(script.splitlines(), 1)
        for id in re.findall(r"\bD\d\d\b", line.partition("#")[2])
    }


def watch(text: str, folder: Path, **request: Any) -> Watched | Ended:
    """Return what is seen of a script."""
    if "set_num_threads" in text:  # a process that is forked has none of its parent's threads
        assert request.pop("watch_only")
        path = folder / "train.py"
        path.write_text(text)
        with Trials(Script("file", str(path)), folder / "scratch") as trials:
            return trials.watch()
    with started(text, folder, **request) as answer:
        found: Watched | Ended = answer()
        return found


@contextlib.contextmanager
def started(text: str, folder: Path, **request: Any) -> Iterator[Callable[..., Any]]:
    """Run a script in a process that is forked from this one, which has torch already.

    Gives a function that sends what it is given, if anything, and returns the answer.
    """
    # Optimisers do with their first parameters: it takes seconds, and 150 MB.
    import torch._dynamo  # noqa: F401

    path = folder / "train.py"
    path.write_text(text)
    script = (
        Script("function", f"{path}:build") if "def build(" in text else Script("file", str(path))
    )
    made = Request(script, str(folder / "scratch"), **request)
    Path(made.scratch).mkdir(exist_ok=True)
    _test_modules()  # here, so that it is known in all children
    ours, theirs = Pipe()
    child = os.fork()
    if not child:
        _run(theirs, made, folder)
    theirs.close()

    def answer(*command: object) -> Any:
        for one in command:
            ours.send(one)
        return ours.recv()

    try:
        yield answer
    finally:
        kill_group(child)
        os.waitpid(child, 0)
        ours.close()


def _test_modules() -> list[str]:
    return [
        name
        for name, module in list(sys.modules.items())
        if is_users(getattr(module, "__file__", None) or "<built-in>")
    ]


def _run(connection: Any, request: Request, folder: Path) -> NoReturn:
    try:
        lead_group()
        output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        warnings.resetwarnings()  # here they are errors
        for name in _test_modules():  # which are no code of the script's
            del sys.modules[name]
        torch.set_num_threads(1)  # the threads of this process's parent are not here
        program = "with session: session.request.script.run()"
        exec(program, {"session": Session(connection, request)})
    finally:
        os._exit(1)
