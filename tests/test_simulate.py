"""`scripts/simulate`: what must hold of the simulation, whatever its figures are."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest

from fastdata.remote import held
from fastdata.remote.client import Client
from fastdata.remote.dataset import StoredDataset
from fastdata.remote.downloader import Downloader
from fastdata.remote.folder import CacheFolder
from fastdata.remote.following import Following
from fastdata.remote.held import Held
from fastdata.remote.schedule import Plan
from fastdata.remote.supply import Supply
from fastdata.sampling import Batches, BlockShuffled

SIMULATE = Path(__file__).resolve().parents[1] / "scripts" / "simulate"
sys.path.append(str(SIMULATE))

from demands import Uses, Work, dispersion, fetches_of_blocks  # noqa: E402 - found as above
from node import Node  # noqa: E402
from scenarios import measure_fault, measure_stream, measure_world_sizes  # noqa: E402
from store_model import ModelStore, StoreModel  # noqa: E402
from training_model import Cluster, Fault, Phase, PhaseResult, Simulation  # noqa: E402

SMALL = Work(samples=40_000, sample_bytes=100_000, nodes=4, node_batch=64)
NO_LIMITS = StoreModel(0.0, 0.0, 1e18, 0.0)
NO_CARD = Cluster(card_rate=0.0)
STEADY = StoreModel(0.030, 0.030, 85e6, 0.0)
"""A store whose first bytes all take 30 ms."""


def simulated(
    work: Work = SMALL,
    cluster: Cluster = NO_CARD,
    store: StoreModel = NO_LIMITS,
    epochs: int = 2,
    seed: int = 0,
) -> tuple[Simulation, list[PhaseResult]]:
    phases = [Phase(work, epoch, 0, work.steps, epoch == 0) for epoch in range(epochs)]
    simulation = Simulation(phases, cluster, store, seed)
    return simulation, simulation.run()


# What is needed


def test_what_nodes_need_is_what_their_ranks_tell_the_downloader() -> None:
    """Compared with `Following` itself, of each rank, with a downloader that only listens."""
    work = replace(SMALL, samples=6000)
    order = work.order
    assert isinstance(order, BlockShuffled)
    for node in (0, 3):
        told: dict[int, tuple[int, int]] = {}
        for rank in range(8 * node, 8 * node + 8):
            for block, first, last in _told_by_rank(order, rank, 8 * work.nodes):
                before = told.get(block, (first, last))
                told[block] = min(first, before[0]), max(last, before[1])
        uses = work.uses(node, 0, 0, work.steps)
        assert uses.blocks.tolist() == sorted(told)
        assert list(zip(uses.first.tolist(), uses.last.tolist(), strict=True)) == [
            told[block] for block in uses.blocks.tolist()
        ]


def _told_by_rank(order: BlockShuffled, rank: int, world_size: int) -> list[tuple[int, int, int]]:
    batches = Batches(order, 64 // 8, True, rank, world_size)
    uses: list[tuple[int, int, int]] = []
    all_told = threading.Event()

    def tell(body: dict[str, Any], array: Any = None, **options: Any) -> None:
        if body["kind"] == "uses" and body["epoch"] == 0:
            assert body["block_size"] == order.block_size
            uses.extend(zip(*array.reshape(3, -1).tolist(), strict=True))
            if array.reshape(3, -1)[2].max() == len(batches) - 1:
                all_told.set()

    listener = _listener(order.block_size, order.count, tell)
    following = Following(listener, lambda indices: indices)
    following.begin(batches, 0, 0)
    assert all_told.wait(60)
    following.end()
    return uses


def _listener(block_size: int, num_samples: int, tell: Any) -> Any:
    """Return what stands in for a supply, and hands on what its client is told."""
    listener = MagicMock(spec=Supply)
    listener.block_size, listener.num_samples = block_size, num_samples
    listener.total_bytes = listener.cache_bytes = num_samples * 100_000
    listener.name = listener.url = "data"
    listener.client = listener.known_client = MagicMock(spec=Client)
    listener.client.tell.side_effect = tell
    return listener


def test_dispersion_is_one_of_a_permutation() -> None:
    work = replace(SMALL, samples=200_000)
    full = dispersion(replace(work, kind="samples").order, 256, 100, batches=100)
    assert full == pytest.approx(1, abs=0.1)
    assert dispersion(work.order, 256, 100, batches=100) < 4
    assert dispersion(replace(work, lanes=1, window_blocks=4).order, 256, 100, batches=100) > 10


# What is fetched


def test_a_store_without_limits_keeps_no_step_waiting() -> None:
    _, results = simulated()
    assert [result.throughput for result in results] == pytest.approx([1.0, 1.0])
    assert all(result.late_nodes <= SMALL.nodes for result in results)


def test_a_block_comes_once_to_a_node_with_room_for_all() -> None:
    simulation, results = simulated(store=StoreModel(), epochs=1)
    needed = sum(len(uses.blocks) for uses in simulation.uses[0])
    assert results[0].blocks == needed == fetches_of_blocks(SMALL, simulation.uses[0]).sum()
    # Two epochs need the blocks of either, and the second one fetches what the first one has not.
    simulation, results = simulated(store=StoreModel())
    both = [
        len(np.union1d(one.blocks, other.blocks))
        for one, other in zip(*simulation.uses, strict=True)
    ]
    assert sum(result.blocks for result in results) == sum(both)
    assert sum(result.removed + result.tight for result in results) == 0


def test_a_small_cache_fetches_again_and_is_never_too_full() -> None:
    cluster = replace(NO_CARD, cache_share=0.3)
    simulation, results = simulated(cluster=cluster, store=StoreModel(), epochs=3)
    needed = [sum(len(uses.blocks) for uses in phase) for phase in simulation.uses]
    assert needed[1] * 0.3 < results[1].blocks <= needed[1]
    assert results[1].removed > 0
    assert all(result.tight == 0 for result in results)


def test_nodes_choose_as_the_downloader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan and room, step by step, with requests that are answered at once."""
    monkeypatch.setattr(held, "LOOK_SHARE", math.inf)  # it looks each time
    work = replace(SMALL, lanes=4)
    uses = [work.uses(1, epoch, 0, work.steps) for epoch in (0, 1)]
    blocks = np.arange(work.num_blocks)
    for share in (0.25, 0.4, 1.0):
        room = round(share * work.num_blocks)
        node = Node(blocks, work.block_bytes, room, work.num_blocks)
        node.begin(0)
        real = _RealDownloader(work, room)
        for epoch, one in enumerate(uses):
            node.tell(epoch, one, epoch * work.steps)
            real.plan.add(
                epoch, one.blocks, one.first + epoch * work.steps, one.last + epoch * work.steps
            )
        removed = 0
        for step in range(2 * work.steps):
            node.plan(step)
            while (block := node.next_request()) is not None:
                node.arrived(block)
            real.run(step)
            assert np.array_equal(node.present, real.present), f"step {step}, {share}"
            assert node.is_ready
            removed = node.removed
        assert (removed > 0) == (share < 0.5)


def test_nothing_is_removed_for_what_is_needed_later() -> None:
    node = Node(np.arange(3), 1 << 23, cache_blocks=2, total_blocks=3)
    node.begin(0)
    node.tell(0, Uses(np.arange(3), np.array([0, 0, 5]), np.array([9, 3, 9])), 0)
    for step, fetched in ((0, [0, 1, None]), (3, [None]), (4, [2, None])):
        node.plan(step)
        assert [node.next_request() for _ in fetched] == fetched
        for block in fetched[:-1]:
            assert block is not None
            node.arrived(block)
    assert node.present.tolist() == [True, False, True]


class _RealDownloader:
    """`fastdata.remote.downloader.Downloader` without network, disk and clients."""

    def __init__(self, work: Work, room: int) -> None:
        self._work = work
        self.num_samples = work.num_blocks * work.block_size  # the last block is whole, too
        self.total_bytes = self.num_samples * work.sample_bytes
        self._there = np.zeros(self.num_samples, np.uint8)
        self.used_bytes = 0
        folder = SimpleNamespace(path="", datasets=list)
        stored = SimpleNamespace(
            num_samples=self.num_samples,
            total_bytes=self.total_bytes,
            present=self._there,
            used_bytes=0,
            disk_size=lambda first, last: (last - first) * work.sample_bytes,
            remove=self._remove,
        )
        self._stored = stored
        self._downloader = Downloader(cast(CacheFolder, folder))
        self._held = Held(cast(StoredDataset, stored), work.block_size)
        self._downloader._held["data"] = self._held
        self._downloader._room.budgets[0] = room * work.block_bytes
        self.plan = self._held.plans[0, 0] = Plan(work.num_blocks)

    @property
    def present(self) -> Any:
        return self._there[:: self._work.block_size] > 0

    def _remove(self, first: int, last: int) -> None:
        self._there[first:last] = 0
        self._stored.used_bytes -= (last - first) * self._work.sample_bytes

    def run(self, step: int) -> None:
        """Fetch all that is wanted at a step."""
        self.plan.now = step
        while (job := self._downloader._next_job()) is not None:
            self._there[job.first : job.last] = 1
            self._stored.used_bytes += job.nbytes
            self._held.count(job.block)


# How fast


def test_one_stream_moves_what_its_latency_allows() -> None:
    """8 MB at 85 MB/s behind 30 ms are 64 MB/s, and 100 kB are 3."""
    found = measure_stream(replace(SMALL, samples=100_000), Cluster(), StoreModel())
    assert found["lanes_steady_mb_per_second"] == pytest.approx(65, abs=1.5)
    assert found["samples_steady_mb_per_second"] == pytest.approx(3.2, abs=0.1)
    assert found["lanes_spread_mb_per_second"] < found["lanes_steady_mb_per_second"]
    assert found["samples_requests_per_second_of_card"] == 12_500


def test_a_card_bounds_all_streams_together() -> None:
    slow = replace(NO_CARD, card_rate=50e6, step_seconds=1e-9)
    work = replace(SMALL, nodes=1)
    _, (result,) = simulated(work, slow, STEADY, epochs=1)
    moved = result.blocks * work.block_bytes + result.sample_requests * work.sample_bytes
    assert 45e6 < moved / result.seconds <= 50e6


def test_no_more_requests_are_answered_than_the_limit_of_a_prefix() -> None:
    store = ModelStore(StoreModel(request_rate=100.0, prefixes=2), np.random.default_rng(0))
    times = np.arange(0, 10, 0.001).tolist()
    answered = sum(store.takes(now, block=0) for now in times)
    assert answered == pytest.approx(100 + 10 * 100, abs=2)  # a second's worth is saved up
    assert store.takes(10.0, block=1)
    assert store.refused == len(times) - answered


def test_requests_that_are_refused_come_in_the_end() -> None:
    store = StoreModel(request_rate=30.0)
    _, results = simulated(store=store)
    assert results[0].refused > 0
    assert results[0].throughput < 0.9
    assert sum(result.blocks for result in results) > 0


def test_latencies_have_the_quantiles_that_are_asked_for() -> None:
    store = ModelStore(StoreModel(0.030, 0.200), np.random.default_rng(1))
    drawn = np.array([store.first_byte() for _ in range(100_000)])
    assert np.quantile(drawn, [0.5, 0.99]) == pytest.approx([0.030, 0.200], rel=0.05)


# What goes wrong


def test_faults_cost_what_they_must_and_not_everything() -> None:
    run = partial(
        measure_fault, SMALL, Cluster(), StoreModel(), steps=120, report=lambda text: None
    )
    dead = run(fault=Fault("dead", 20, 5.0))
    restarted = run(fault=Fault("restarted", 20, 5.0))
    assert dead["seconds_lost_besides"] > restarted["seconds_lost_besides"]
    assert 0 < dead["seconds_lost_besides"] < 5
    slow = run(fault=Fault("slow", 0, 10.0, factor=100.0))
    assert slow["seconds_lost_besides"] > 1


def test_batches_are_the_same_when_the_world_size_changes() -> None:
    work = Work(40_000, 100_000, nodes=8, node_batch=96, lanes=16, window_blocks=2)
    found = measure_world_sizes(work, Cluster(), StoreModel(), steps=12, report=lambda text: None)
    assert found["batches_are_the_same"]
    assert found["nodes"] == [8, 6, 8]
    # 6 does not divide the lanes, so some blocks are on two nodes.
    assert found["nodes_a_block"][0] < found["nodes_a_block"][1]


# The command


@pytest.mark.timing
def test_the_same_seed_prints_the_same_figures() -> None:
    def printed(seed: int) -> list[dict[str, Any]]:
        command = [sys.executable, SIMULATE / "cluster.py", "--quick", "--json"]
        command += ["--samples", "30000", "--seed", str(seed)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in ran.stdout.splitlines()]

    first, again, other = printed(3), printed(3), printed(4)
    assert first == again
    assert first != other
    assert [row["nodes"] for row in first] == [1, 8, 16]
    assert all(0 < row["first_throughput"] <= 1 for row in first)
