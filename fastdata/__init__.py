"""fastdata: pack image datasets once, feed PyTorch at the speed of the machine.

>>> report = fastdata.pack("./images", "train.lmdb")             # doctest: +SKIP
>>> loader = fastdata.loader("train.lmdb", batch_size=256)       # doctest: +SKIP

Names are imported when first used, so ``import fastdata`` costs nothing.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if not os.path.isdir(os.path.join(__path__[0], "converters")):
    # This is a checkout, where `fastdata.converters` lies beside this folder.  Python that is
    # started there imports this folder, whether or not fastdata is installed as well.
    __path__.append(os.path.dirname(os.path.abspath(__path__[0])))

_PUBLIC = {
    "BlockShuffle": "fastdata.sampling",
    "CUDAPrefetcher": "fastdata.prefetch",
    "Dataset": "fastdata.dataset",
    "FastdataError": "fastdata.errors",
    "Loader": "fastdata.loading",
    "PackReport": "fastdata.converters.packing.report",
    "ProfileReport": "fastdata.profiling.report",
    "Schema": "fastdata.schema",
    "TuningResult": "fastdata.tuning.report",
    "append": "fastdata.converters.combining.append",
    "export": "fastdata.converters.exporting.export",
    "loader": "fastdata.loading",
    "merge": "fastdata.converters.combining.copying",
    "open": "fastdata.opening",
    "pack": "fastdata.converters.packing.driver",
    "profile": "fastdata.profiling.profiler",
    "subset": "fastdata.converters.combining.copying",
    "tune_workers": "fastdata.tuning.tuner",
    "view": "fastdata.viewing.page",
}

_MODULES = "integrations", "transforms"

__all__ = [
    "BlockShuffle",
    "CUDAPrefetcher",
    "Dataset",
    "FastdataError",
    "Loader",
    "PackReport",
    "ProfileReport",
    "Schema",
    "TuningResult",
    "append",
    "export",
    "loader",
    "merge",
    "open",
    "pack",
    "profile",
    "subset",
    "tune_workers",
    "view",
]

if TYPE_CHECKING:
    from fastdata import integrations as integrations
    from fastdata import transforms as transforms
    from fastdata.converters.combining.append import append
    from fastdata.converters.combining.copying import merge, subset
    from fastdata.converters.exporting.export import export
    from fastdata.converters.packing.driver import pack
    from fastdata.converters.packing.report import PackReport
    from fastdata.dataset import Dataset
    from fastdata.errors import FastdataError
    from fastdata.loading import Loader, loader
    from fastdata.opening import open
    from fastdata.prefetch import CUDAPrefetcher
    from fastdata.profiling.profiler import profile
    from fastdata.profiling.report import ProfileReport
    from fastdata.sampling import BlockShuffle
    from fastdata.schema import Schema
    from fastdata.tuning.report import TuningResult
    from fastdata.tuning.tuner import tune_workers
    from fastdata.viewing.page import view


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return import_module(f"fastdata.{name}")
    raise AttributeError(f"module 'fastdata' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})
