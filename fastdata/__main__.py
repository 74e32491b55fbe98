"""``python -m fastdata``: the command line without the script."""

from __future__ import annotations

from fastdata.cli import main

if __name__ == "__main__":
    main(prog_name="fastdata")
