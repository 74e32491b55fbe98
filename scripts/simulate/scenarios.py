"""What is simulated, and the figures that come of it.

`measure` runs some epochs on a number of nodes; `measure_fault` runs one with a fault in it and
one without; `measure_world_sizes` goes from 8 nodes to 6 and back within an epoch;
`measure_stream` has one stream ask for one thing after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from demands import Uses, Work, dispersion, fetches_of_blocks
from store_model import StoreModel
from training_model import Cluster, Fault, Phase, PhaseResult, Simulation

from fastdata.sampling import BlockShuffled

__all__ = ["measure", "measure_fault", "measure_stream", "measure_world_sizes", "opening"]

Figures: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[str], object]

RANKS = 8
"""Of a node: what the dispersion of a rank's batches is of."""

CLASSES = 1000

SHARD_BYTES = 1e9
"""As docs/scale.md advises."""

REQUESTS_OF_A_SHARD = 2
"""Before its columns are there: its end with its header, and its columns, which lie next to each
other, as `fastdata.formats.sparse.columns_only` asks."""

COLUMN_BYTES = 70
"""Of a sample, as docs/stores.md has it."""

OPENED_AT_ONCE = 16
"""Shards: `_REQUESTS` of `fastdata.remote.dataset`."""


def measure(
    work: Work,
    cluster: Cluster,
    store: StoreModel,
    *,
    epochs: int,
    steps: int | None,
    report: Report,
) -> Figures:
    """Return the figures of some epochs, or of the first steps of each."""
    last = min(work.steps, steps or work.steps)
    phases = [Phase(work, epoch, 0, last, epoch == 0) for epoch in range(epochs)]
    simulation = Simulation(phases, cluster, store, work.seed, report=_told(report, work))
    results = simulation.run()
    order = work.order
    nodes_of_block = fetches_of_blocks(work, simulation.uses[0])
    needed = nodes_of_block[nodes_of_block > 0]
    later = results[-1] if epochs > 1 else None
    return {
        "nodes": work.nodes,
        "lanes": order.lanes if isinstance(order, BlockShuffled) else 0,
        "window_blocks": order.window_blocks if isinstance(order, BlockShuffled) else 0,
        "steps": last,
        "steps_of_epoch": work.steps,
        **opening(work, cluster, store),
        "first_batch_seconds": results[0].waits[0],
        **_of_phase("first", results[0], work, needed_blocks=int(nodes_of_block.sum())),
        **({} if later is None else _of_phase("later", later, work, _blocks(simulation.uses[-1]))),
        "most_requests_per_second": simulation.store.most_asked,
        "nodes_a_block": float(needed.mean()),
        "blocks_of_several_nodes": float((needed > 1).mean()),
        "dispersion_of_batches": dispersion(order, work.node_batch * work.nodes, CLASSES),
        "dispersion_of_rank_batches": dispersion(order, work.node_batch // RANKS, CLASSES),
    }


def opening(work: Work, cluster: Cluster, store: StoreModel) -> Figures:
    """Return, by arithmetic and not simulated, what opening the dataset costs each node.

    It is the time of one node by itself, or that in which the store can answer all of them.
    """
    shards = math.ceil(work.samples * work.sample_bytes / SHARD_BYTES)
    requests = 1 + math.ceil(shards / 1000) + shards * REQUESTS_OF_A_SHARD
    first_byte = 0.0
    if store.first_byte_p50 > 0:
        spread = math.log(store.first_byte_p99 / store.first_byte_p50) / 2.3263
        first_byte = store.first_byte_p50 * math.exp(spread**2 / 2)
    rate = min(OPENED_AT_ONCE * store.stream_rate, cluster.card_rate or math.inf)
    alone = requests / min(OPENED_AT_ONCE, shards) * first_byte
    alone += work.samples * COLUMN_BYTES / rate
    limit = store.request_rate * store.prefixes
    together = work.nodes * requests / limit if limit else 0.0
    return {
        "opening_requests_of_a_node": requests,
        "opening_seconds": max(alone, together),
        "columns_over_data": work.nodes * COLUMN_BYTES / work.sample_bytes,
    }


def measure_fault(
    work: Work, cluster: Cluster, store: StoreModel, *, fault: Fault, steps: int, report: Report
) -> Figures:
    """Return what a fault of one node costs all of them, beside the same run without it."""
    phases = [Phase(work, 0, 0, min(work.steps, steps), begins=True)]
    told = _told(report, work)
    plain = Simulation(phases, cluster, store, work.seed, report=told).run()[0]
    broken = Simulation(phases, cluster, store, work.seed, fault, report=told).run()[0]
    gone = fault.seconds if fault.kind != "slow" else 0.0
    return {
        "nodes": work.nodes,
        "fault": fault.kind,
        "fault_seconds": fault.seconds,
        "steps": plain.steps,
        "seconds_without": plain.seconds,
        "seconds_with": broken.seconds,
        "seconds_gone": gone,
        "seconds_lost_besides": broken.seconds - plain.seconds - gone,
    }


def measure_world_sizes(
    work: Work, cluster: Cluster, store: StoreModel, *, steps: int, report: Report
) -> Figures:
    """Return what it costs to go from 8 nodes to 6 and back, each for `steps` steps.

    The batch of all nodes together stays as it is, and so do the samples of each step.
    """
    whole = work.node_batch * work.nodes
    works = [replace(work, nodes=nodes, node_batch=whole // nodes) for nodes in (8, 6, 8)]
    last = min(steps, work.steps // 3)
    phases = [
        Phase(one, 0, at * last, (at + 1) * last, begins=True) for at, one in enumerate(works)
    ]
    simulation = Simulation(phases, cluster, store, work.seed, report=_told(report, work))
    results = simulation.run()
    checked = range(0, 3 * last, max(1, 3 * last // 8))
    same = all(len({_samples(one, step).tobytes() for one in works}) == 1 for step in checked)
    return {
        "nodes": [one.nodes for one in works],
        "steps": last,
        "batches_are_the_same": same,
        "wait_seconds": [sum(one.waits) for one in results],
        "first_batch_seconds": [one.waits[0] for one in results],
        "throughput": [one.throughput for one in results],
        "blocks": [one.blocks for one in results],
        "nodes_a_block": [
            float(counts[counts > 0].mean())
            for one, uses in zip(works, simulation.uses, strict=True)
            for counts in [fetches_of_blocks(one, uses)]
        ],
    }


def measure_stream(work: Work, cluster: Cluster, store: StoreModel) -> Figures:
    """Return what one stream moves, MB/s, and the requests a second that fill a card.

    Of blocks and of samples; with first bytes that are all the median, and with those of the store.
    """
    one = replace(cluster, streams=1, step_seconds=1e-9, first_by_samples=False)
    figures: Figures = {}
    for kind in ("lanes", "samples"):
        few = replace(work, nodes=1, kind=kind)
        phase = Phase(few, 0, 0, min(few.steps, 20), begins=True)
        nbytes = few.block_bytes
        for name, model in (
            ("steady", replace(store, first_byte_p99=store.first_byte_p50)),
            ("spread", store),
        ):
            (result,) = Simulation([phase], one, model, work.seed).run()
            # What is fetched ahead is not counted, but is not finished either.
            figures[f"{kind}_{name}_mb_per_second"] = result.blocks * nbytes / result.seconds / 1e6
        figures[f"{kind}_requests_per_second_of_card"] = cluster.card_rate / nbytes
    return figures


def _samples(work: Work, step: int) -> Any:
    """Return the samples of a step over all nodes, ascending."""
    return np.sort(
        np.concatenate([work.batches(node).in_epoch(0)[step] for node in range(work.nodes)])
    )


def _blocks(uses: Sequence[Uses]) -> int:
    return sum(len(one.blocks) for one in uses)


def _of_phase(name: str, result: PhaseResult, work: Work, needed_blocks: int) -> Figures:
    """Return the figures of an epoch; bytes are over those of the samples of its steps."""
    used = result.steps * work.node_batch * work.nodes * work.sample_bytes
    fetched = result.blocks * work.block_bytes + result.sample_requests * work.sample_bytes
    return {
        f"{name}_throughput": result.throughput,
        f"{name}_steps_that_wait": result.steps_that_wait,
        f"{name}_nodes_that_are_late": result.late_nodes / result.node_steps,
        f"{name}_seconds": result.seconds,
        f"{name}_lost_seconds": sum(result.waits),
        f"{name}_bytes_over_data": fetched / used,
        f"{name}_blocks_fetched": result.blocks,
        f"{name}_blocks_needed": needed_blocks,
        f"{name}_sample_requests": result.sample_requests,
        f"{name}_refused": result.refused,
        f"{name}_removed": result.removed,
        f"{name}_tight": result.tight,
    }


def _told(report: Report, work: Work) -> Callable[[int], None]:
    def told(steps: int) -> None:
        if steps % 64 == 0 or work.nodes > 64:
            report(f"{work.nodes} nodes: {steps} steps")

    return told
