"""Simulate training from an object store on 1 to 1,000 nodes, by fastdata's real order.

    python scripts/simulate/cluster.py                                   # the table of the design
    python scripts/simulate/cluster.py --nodes 8 32 --cache-share 1 --json
    python scripts/simulate/cluster.py --nodes 1000 --samples 14000000 --lanes 8000 --steps 40
    python scripts/simulate/cluster.py --nodes 1000 --scenario slow --lanes 8000
    python scripts/simulate/cluster.py --scenario world                  # 8 nodes, 6, and 8 again
    python scripts/simulate/cluster.py --quick                           # seconds

One line a number of nodes, or one JSON object; progress is on standard error.  The same options
print the same figures.  What the columns mean, and what the model leaves out, is in
docs/design/scale.md.  Bytes do not exist here: only sizes, and when what comes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from demands import Work
from scenarios import measure, measure_fault, measure_stream, measure_world_sizes
from store_model import StoreModel
from training_model import Cluster, Fault

from fastdata.remote.downloader import STREAMS

NODES = [1, 8, 32, 125, 512, 1000]

SCENARIOS = ("epochs", "slow", "dead", "restarted", "world", "stream")

COLUMNS = (
    ("nodes", "nodes", "{:,}"),
    ("steps", "steps", "{:,}"),
    ("first_batch_seconds", "first batch, s", "{:.1f}"),
    ("first_lost_seconds", "lost, s", "{:.1f}"),
    ("first_throughput", "throughput, 1st epoch", "{:.2f}"),
    ("first_steps_that_wait", "waits", "{:.0%}"),
    ("later_throughput", "2nd", "{:.2f}"),
    ("later_steps_that_wait", "waits", "{:.0%}"),
    ("most_requests_per_second", "requests/s", "{:,}"),
    ("first_refused", "503s", "{:,}"),
    ("first_bytes_over_data", "bytes, 1st epoch", "{:.2f}"),
    ("later_bytes_over_data", "2nd", "{:.2f}"),
    ("nodes_a_block", "nodes a block", "{:.1f}"),
    ("blocks_of_several_nodes", "on several", "{:.0%}"),
    ("dispersion_of_batches", "dispersion", "{:.1f}"),
    ("dispersion_of_rank_batches", "of a rank", "{:.1f}"),
    ("opening_seconds", "opening, s", "{:.0f}"),
)


def parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    assert __doc__ is not None
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--nodes", type=int, nargs="+", default=NODES, help="machines, of 8 ranks each")
    add("--samples", type=int, default=1_281_167, help="of the dataset")
    add("--sample-bytes", type=int, default=100_000)
    add("--node-batch", type=int, default=256, help="samples of a step on a node")
    add("--step-ms", type=float, default=100.0, help="of a step that waits for nothing")
    add("--order", choices=("lanes", "blocks", "samples"), default="lanes")
    add("--lanes", type=int, help='other than those of shuffle="lanes"')
    add("--window", type=int, help="blocks of a window, likewise")
    add("--cache-share", type=float, default=0.1, help="of the dataset, a node")
    add("--streams", type=int, default=STREAMS, help="requests at once of a node")
    add("--card-gbit", type=float, default=10.0, help="a node's network card; 0: no limit")
    add("--stream-mb", type=float, default=85.0, help="MB/s of a stream")
    add("--first-byte-ms", type=float, nargs=2, default=[30.0, 200.0], metavar=("P50", "P99"))
    add("--request-rate", type=float, default=5500.0, help="a second and prefix; 0: no limit")
    add("--prefixes", type=int, default=1)
    add("--first-by-blocks", action="store_true", help="what if the first batch came so, too")
    add("--epochs", type=int, default=2)
    add("--steps", type=int, help="only the first ones of each epoch")
    add("--scenario", choices=SCENARIOS, default="epochs")
    add("--fault-seconds", type=float, default=60.0)
    add("--fault-step", type=int, default=20)
    add("--seed", type=int, default=0)
    add("--quick", action="store_true", help="a small dataset, for a look or a test")
    add("--json", action="store_true", help="one JSON object a line instead of a table")
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    chosen = parser().parse_args(arguments)
    if chosen.quick:
        chosen.samples, chosen.nodes = min(chosen.samples, 100_000), [1, 8, 16]
    if chosen.scenario in ("world", "stream"):
        chosen.nodes = [8 if chosen.scenario == "world" else 1]
    if not chosen.json and chosen.scenario == "epochs":
        print("| " + " | ".join(title for _, title, _ in COLUMNS) + " |")
        print("|" + " --: |" * len(COLUMNS))
    for nodes in chosen.nodes:
        figures = run(chosen, nodes)
        _progress("")
        if chosen.json:
            print(json.dumps(figures), flush=True)
        elif chosen.scenario == "epochs":
            known = (one for one in COLUMNS if one[0] in figures)
            cells = [text.format(figures[key]) for key, _, text in known]
            print("| " + " | ".join(cells) + " |", flush=True)
        else:
            print("\n".join(f"{key}: {_shown(value)}" for key, value in figures.items()))


def run(chosen: argparse.Namespace, nodes: int) -> dict[str, Any]:
    """Return the figures of the options for a number of nodes."""
    node_batch = 192 if chosen.scenario == "world" else chosen.node_batch
    work = Work(
        chosen.samples,
        chosen.sample_bytes,
        nodes,
        node_batch,
        chosen.seed,
        chosen.order,
        chosen.lanes,
        chosen.window,
    )
    cluster = Cluster(
        chosen.streams,
        chosen.card_gbit * 1e9 / 8,
        chosen.cache_share,
        chosen.step_ms / 1e3,
        not chosen.first_by_blocks,
    )
    median, tail = (value / 1e3 for value in chosen.first_byte_ms)
    store = StoreModel(median, tail, chosen.stream_mb * 1e6, chosen.request_rate, chosen.prefixes)
    if chosen.scenario == "epochs":
        return measure(
            work, cluster, store, epochs=chosen.epochs, steps=chosen.steps, report=_progress
        )
    if chosen.scenario == "world":
        return measure_world_sizes(
            work, cluster, store, steps=chosen.steps or work.steps // 3, report=_progress
        )
    if chosen.scenario == "stream":
        return measure_stream(work, cluster, store)
    fault = Fault(chosen.scenario, chosen.fault_step, chosen.fault_seconds)
    return measure_fault(
        work, cluster, store, fault=fault, steps=chosen.steps or work.steps, report=_progress
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
