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

import sys
from collections.abc import Sequence
from pathlib import Path

from bench_data import mnist_like
from harness import Contender, command_line, hardware, run_rounds, say
from pages import MNIST_LOADERS, MNIST_WORKERS, mnist, mnist_name
from peers import contender
from results import Measured, spread

SAMPLES, BATCH_SIZE = 60_000, 64


def contenders(path: Path, workers: Sequence[int], epochs: int) -> list[Contender]:
    """Return one contender for each cell of the table."""
    return [
        contender(
            mnist_name(loader, count, pinned),
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
        for loader in MNIST_LOADERS
        for count in workers
        for pinned in (False, True)
    ]


def main() -> int:
    """Read the command line, measure, print."""
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--workers", type=int, nargs="+", default=list(MNIST_WORKERS))
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
    machine = hardware()
    say("")
    print(
        f"{samples:,} images of 28 x 28, batches of {BATCH_SIZE}, seconds an epoch; "
        f"{machine['cpu']}, {machine['cores']} cores\n"
    )
    figures = {
        name: spread([run.value for run in results.counted(name)])
        for name in dict.fromkeys(run.contender for run in results.runs)
        if results.counted(name)
    }
    print("\n".join(mnist(Measured(({"figures": figures, "versions": {}},)))))
    if not any(run.report["cuda"] for run in results.runs):
        print("\nThere is no CUDA here: pin_memory has no effect.")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
