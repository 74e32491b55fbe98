"""The classic table: seconds an epoch of MNIST, by the number of workers, pinned memory on and off.

    python scripts/bench/mnist_table.py --output mnist.jsonl
    python scripts/bench/mnist_table.py --quick

The data is made: 60,000 grey images of 28 x 28, as many as MNIST has.  Two loaders give float32
batches [64, 1, 28, 28] from 0 to 1 with labels, in random order:

- the stock `DataLoader` over a dataset that does what torchvision's MNIST does: images lie in
  memory as one uint8 array, and each sample becomes a PIL image and then a tensor;
- fastdata, from the same images packed raw.

An epoch counts from the call of ``iter`` to its last batch, with the start of workers where they
are started for each epoch, which is the stock DataLoader's default.  Of `--epochs` in a process the
median counts, then the median of the rounds.  Nothing is done with batches: it is the table of what
loading costs, not of what it costs a training that computes meanwhile.

"4 workers a GPU", the rule of thumb of the literature, is marked.  Without CUDA there is no memory
to pin: torch says so and goes on, and both columns are then measurements of the same thing.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench_data import mnist_like
from harness import Contender, Results, command_line, hardware, run_rounds, say
from peers import contender

WORKERS = (0, 1, 2, 4, 8)
RULE_OF_THUMB = 4
LOADERS = {"stock": "stock DataLoader", "fastdata": "fastdata"}
SAMPLES, BATCH_SIZE = 60_000, 64


def name_of(loader: str, workers: int, pinned: bool) -> str:
    """Return what a contender is called."""
    return f"{LOADERS[loader]}, workers: {workers}, pin_memory={pinned}"


def contenders(path: Path, workers: Sequence[int], epochs: int) -> list[Contender]:
    """Return one contender for each cell of the table."""
    return [
        contender(
            name_of(loader, count, pinned),
            "mnist_epochs.py",
            {
                "loader": loader,
                "data": str(path),
                "batch_size": BATCH_SIZE,
                "workers": count,
                "pin_memory": pinned,
                "epochs": epochs,
            },
            modules=["torch", "PIL", "fastdata"],
        )
        for loader in LOADERS
        for count in workers
        for pinned in (False, True)
    ]


def table(results: Results, workers: Sequence[int], cuda: bool) -> list[str]:
    """Return the lines of the table, in Markdown: medians, with the lowest and highest."""
    columns = [(loader, pinned) for loader in LOADERS for pinned in (False, True)]
    heads = [f"{LOADERS[loader]}, pin_memory={pinned}" for loader, pinned in columns]
    lines = [f"| workers | {' | '.join(heads)} |", "|--:|" + "--:|" * len(heads)]
    for count in workers:
        cells = [cell(results, name_of(loader, count, pinned)) for loader, pinned in columns]
        mark = " (the rule of thumb)" if count == RULE_OF_THUMB else ""
        lines.append(f"| {count}{mark} | {' | '.join(cells)} |")
    if not cuda:
        lines += ["", "There is no CUDA here: pin_memory has no effect."]
    return lines


def cell(results: Results, name: str) -> str:
    """Return what stands in one cell."""
    values = [run.value for run in results.counted(name)]
    if not values:
        return results.excuses.get(name, "not measured")
    return f"{statistics.median(values):.3g} s ({min(values):.3g}-{max(values):.3g})"


def main() -> int:
    """Read the command line, measure, print."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--workers", type=int, nargs="+", default=list(WORKERS))
    parser.add_argument("--epochs", type=int, default=3, help="in a process; the median counts")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="6,000 samples, one epoch, one round: whether it runs, and no figures to be quoted",
    )
    given = parser.parse_args()
    samples, epochs, rounds = given.samples, given.epochs, given.rounds
    if given.quick:
        samples, epochs, rounds = min(samples, 6000), 1, 1

    path = mnist_like(given.work.resolve() / "mnist", samples)
    settings = {"samples": samples, "batch_size": BATCH_SIZE, "epochs": epochs}
    results = run_rounds(
        "mnist_table",
        contenders(path, given.workers, epochs),
        rounds=rounds,
        settings=settings,
        output=given.output,
    )
    cuda = any(run.report["cuda"] for run in results.runs)
    cells = {
        run.contender: statistics.median(r.value for r in results.counted(run.contender))
        for run in results.runs
        if results.counted(run.contender)
    }
    summary = {"benchmark": "mnist_table", "seconds_an_epoch": cells, "cuda": cuda}
    print(json.dumps(summary | {"settings": settings}), file=given.output, flush=True)
    machine = hardware()
    say("")
    print(
        f"{samples:,} images of 28 x 28, batches of {BATCH_SIZE}, seconds an epoch; "
        f"{machine['cpu']}, {machine['cores']} cores\n"
    )
    print("\n".join(table(results, given.workers, cuda)))
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
