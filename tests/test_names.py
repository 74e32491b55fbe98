"""Names that users write: modules that are imported when first used, and torchvision's names."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_transforms_table import table

from fastdata import transforms as T  # noqa: N812


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return made.stdout.strip()


@pytest.mark.parametrize(
    "name",
    ["fastdata.transforms.Resize(9)", "fastdata.integrations.accelerate.prepare.__name__"],
)
def test_modules_are_there_after_import_fastdata(name: str) -> None:
    assert run(f"import fastdata; print({name})").startswith(("Resize(size=9", "prepare"))


def test_import_fastdata_imports_nothing_more() -> None:
    code = (
        "import sys; before = set(sys.modules); import fastdata; print(*set(sys.modules) - before)"
    )
    loaded = run(code).split()
    assert not {"fastdata.transforms", "fastdata.integrations", "torch", "numpy"} & set(loaded)
    assert [name for name in loaded if name.startswith("fastdata")] == ["fastdata"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ToTensor", r"leave it out: .* T.ToDtype\(torch.float32, scale=True\)"),
        ("ToImage", "leave it out: batches are tensors"),
        ("ConvertImageDtype", r"write T.ToDtype\(dtype, scale=True\)"),
        ("Compose", "give the list itself"),
        ("SanitizeBoundingBoxes", "T.DropEmptyBoxes"),
        ("GaussianNoise", r"v2.GaussianNoise\(...\)"),
        ("InterpolationMode", 'interpolation="bicubic"'),
    ],
)
def test_torchvisions_names_say_what_to_write(name: str, remedy: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{remedy}"):
        getattr(T, name)
    assert not hasattr(T, name)


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"module 'fastdata.transforms' has no attribute 'X'$"):
        T.X  # type: ignore[attr-defined]  # noqa: B018
    assert getattr(T, "X", None) is None


# `Transform` is a name of fastdata, too.
@pytest.mark.parametrize(
    "name", [name for name, said in table().items() if said != "yes" and name != "Transform"]
)
def test_names_of_the_table_that_are_not_here_have_a_remedy(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}': "):
        getattr(T, name)
