"""Training scripts for `doctor_check.py`: one for each piece of advice, and the same one edited."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.seen import Seen

__all__ = ["CASES", "MADE_UP", "NOTHING", "Case", "make_up_advice"]

HERE = Path(__file__).resolve().parent

PROGRAM = """
import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
{model}
data = TensorDataset(torch.randn({samples}, *{shape}), torch.randint(10, ({samples},)))
loader = DataLoader(data, batch_size={batch}, shuffle=True, drop_last=True)
{optimizer}
for epoch in range(10_000):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
VALIDATION = """
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in held_out:
            right += (model(x).argmax(1) == y).sum().item()
"""
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)\n"
HELD_OUT = "held_out = DataLoader(data, batch_size=32, drop_last=True)\n"
TIMED = f"sys.path.append({str(HERE / 'contenders')!r})\nfrom timed_steps import few, timed\n"

CONVOLUTIONS = """
def block(inputs, outputs):
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


model = nn.Sequential(
    *block(3, {0}),
    *block({0}, {0}),
    *block({0}, {0}),
    nn.MaxPool2d(2),
    *block({0}, 2 * {0}),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(2 * {0}, 10),
)
"""
FOLD = """
def fold(model):
    layers = []
    for layer in copy.deepcopy(model):
        if isinstance(layer, nn.BatchNorm2d):
            layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)
"""
RESIDUAL = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(24, 24, 3, padding=1, bias=False) for _ in range(2)]
        self.layers = nn.Sequential(layers[0], nn.BatchNorm2d(24), nn.ReLU(inplace=True), layers[1])

    def forward(self, x):
        return x + self.layers(x)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList([Block() for _ in range(5)])
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


model = Network()
"""
GATED = """
class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Linear(256, 256)

    def forward(self, x):
        y = self.weight(x)
        return x + torch.sigmoid(y) * torch.tanh(y) * F.softplus(y) / (1 + y.square())


model = nn.Sequential(Gated(), Gated(), nn.Linear(256, 10))
"""
DEEP = """
layers = [layer for _ in range({0}) for layer in (nn.Linear({1}, {1}), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear({1}, 10))
"""
WIDE = """
layers = [nn.Linear(1024, {0}), nn.ReLU(), nn.Linear({0}, {0}), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear({0}, 10))
"""
TABLE = "model = nn.Sequential(nn.Linear(64, 2304), nn.ReLU(), nn.Linear(2304, 10))\n"

SEED = "torch.manual_seed(0)\n"
DATA = "\ndata = "
LOOP = "    for x, y in loader:\n"
FORWARD = "        loss = F.cross_entropy(model(x), y)\n"
STEP = "        optimizer.step()\n"
NO_GRAD = "with torch.no_grad()"
ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
AUTOCAST = f'        with torch.autocast("cpu", torch.bfloat16):\n    {FORWARD}'
CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)\n"
UNPROFILED = f"{FORWARD}        loss.backward()\n{STEP}"
PROFILER = "with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):"
PROFILED = f"        {PROFILER}\n    {FORWARD}            loss.backward()\n    {STEP}"
LAST = "memory_format=torch.channels_last"

Edit: TypeAlias = tuple[str, str, str]
"""A text of the plain script, and what stands there before and after the advice is followed."""


@dataclass(frozen=True)
class Case:
    """A piece of advice, and a script to which it applies."""

    name: str
    """Begins with the advice's ID."""
    model: str
    shape: tuple[int, ...]
    """Shape of a sample."""
    samples: int
    batch: int
    edits: Sequence[Edit] = ()
    validates: bool = False
    """Whether the advice is about validation."""

    @property
    def id(self) -> str:
        """The advice's ID."""
        return self.name.partition(" ")[0]

    def script(self, *, is_followed: bool = False, is_timed: bool = False) -> str:
        """Return the script; `timed_steps.py` times its steps if `is_timed`."""
        end = ""
        if is_timed:
            assigned = "loader, held_out = few(loader), timed(held_out)"
            end = f"{TIMED}{assigned if self.validates else 'loader = timed(loader)'}\n"
        text = PROGRAM.format(
            model=self.model,
            samples=self.samples,
            shape=self.shape,
            batch=self.batch,
            optimizer=(HELD_OUT if self.validates else "") + end + SGD,
        )
        text += VALIDATION if self.validates else ""
        for plain, before, after in self.edits:
            assert plain in text, (self.id, plain)
            text = text.replace(plain, after if is_followed else before)
        return text


IMAGES = (3, 32, 32), 256, 16
LARGER = (3, 48, 48), 256, 16
CNN, SMALL_CNN = CONVOLUTIONS.format(24), CONVOLUTIONS.format(16)

CASES = [
    Case("D01 bfloat16", WIDE.format(1536), (1024,), 1024, 48, [(FORWARD, FORWARD, AUTOCAST)]),
    Case(
        "D03 channels last",
        CNN,
        *IMAGES,
        [
            (DATA, DATA, f"model = model.to({LAST})\n{DATA}"),
            (LOOP, LOOP, f"{LOOP}        x = x.to({LAST})\n"),
        ],
    ),
    Case(
        "D05 torch.compile",
        GATED,
        (256,),
        5120,
        1280,
        [(DATA, DATA, f"model = torch.compile(model)\n{DATA}")],
    ),
    Case(
        "D06 fused AdamW",
        DEEP.format(80, 128),
        *((128,), 1024, 16),
        [(SGD, ADAMW, ADAMW.replace("1e-3", "1e-3, fused=True"))],
    ),
    Case(
        "D07 gradients set to None",
        WIDE.format(2304),
        *((1024,), 512, 16),
        [("zero_grad()", "zero_grad(set_to_none=False)", "zero_grad()")],
    ),
    Case(
        "D08 no bias before a normalisation",
        CNN,
        *IMAGES,
        [(", bias=False", "", ", bias=False")],
    ),
    Case(
        "D09 anomaly detection off",
        DEEP.format(100, 64),
        *((64,), 2048, 64),
        [(SEED, f"{SEED}torch.autograd.set_detect_anomaly(True)\n", SEED)],
    ),
    Case(
        "D10 validation without gradients",
        SMALL_CNN,
        *LARGER,
        [(NO_GRAD, "if True", "with torch.inference_mode()")],
        validates=True,
    ),
    Case(
        "D13 all gradients clipped at once",
        DEEP.format(280, 48),
        *((48,), 1024, 16),
        [(STEP, CLIP + STEP, CLIP.replace(", foreach=False", "") + STEP)],
    ),
    Case("D15 activations in place", CNN, *IMAGES, [("ReLU()", "ReLU()", "ReLU(inplace=True)")]),
    Case(
        "D16 normalisations folded for validation",
        FOLD + SMALL_CNN,
        *LARGER,
        [
            ("right = 0\n", "right = 0\n", "right, folded = 0, fold(model)\n"),
            ("model(x).argmax", "model(x).argmax", "folded(x).argmax"),
        ],
        validates=True,
    ),
    Case(
        "D30 no profiler",
        DEEP.format(60, 128),
        (128,),
        2048,
        256,
        [(UNPROFILED, PROFILED, UNPROFILED)],
    ),
    Case(
        "D35 blocks checkpointed",
        RESIDUAL,
        *((3, 32, 32), 256, 8),
        [("x = block(x)", "x = block(x)", "x = checkpoint(block, x, use_reentrant=False)")],
    ),
    Case("D55 memory allocator", TABLE, (64,), 14848, 3712),
]

MADE_UP = 6
"""Made-up pieces of advice that do nothing."""

NOTHING = (
    f"import sys\nsys.path.append({str(HERE)!r})\n"
    "import doctor_cases\ndoctor_cases.make_up_advice()\n"
    + Case("nothing to gain", SMALL_CNN, *IMAGES).script()
)
"""A script whose process knows only the made-up advice."""


def make_up_advice() -> None:
    """Replace the advice of doctor in this process by pieces whose change does nothing."""
    pieces = tuple(
        Advice(f"X{number}", f"made-up advice {number}", _find) for number in range(MADE_UP)
    )
    for name, module in list(sys.modules.items()):  # some have a name of their own for it
        if name.startswith("fastdata.doctor") and "ADVICE" in vars(module):
            vars(module)["ADVICE"] = pieces


def _find(_: Seen) -> Iterator[Finding]:
    yield Finding("", change=lambda: lambda: None)
