"""What single training libraries need beyond a loader; each module imports its library.

A module is imported when it is first used: ``fastdata.integrations.accelerate.prepare``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = "accelerate", "lightning", "timm", "transformers"

if TYPE_CHECKING:
    from fastdata.integrations import accelerate as accelerate
    from fastdata.integrations import lightning as lightning
    from fastdata.integrations import timm as timm
    from fastdata.integrations import transformers as transformers


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
