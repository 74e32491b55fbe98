"""A training script as users write it: the loader is made before the Trainer, and before any rank.

python lightning_script.py PACKED FOLDER STRATEGY
"""

from __future__ import annotations

import sys

from lightning_models import Recorder
from lightning_runs import make_loader, trainer


def main() -> None:
    path, folder, strategy = sys.argv[1:]
    loader = make_loader(path)
    assert len(loader) > 0  # which does not settle how many ranks there are
    trainer(2, folder, strategy=strategy).fit(Recorder(folder), loader)


if __name__ == "__main__":
    main()
