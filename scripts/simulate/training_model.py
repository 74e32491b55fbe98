"""Training on many nodes as a discrete-event simulation: requests, first bytes, steps.

    step begins     when the one before has ended and every node has what it needs (the barrier)
      -> each node's plan moves on by a step, and streams that are idle ask for what it says
    request         the store answers after a while, or refuses: then the stream pauses
    first byte      the transfer begins: a stream's rate, and the node's card one after another
    arrived         the stream asks for what comes next

Events are a heap of times; one of the same time as another comes in the order in which it was made.
All that is random is drawn from one generator, so a seed gives the same figures again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Literal

import numpy as np
from demands import Uses, Work
from node import SAMPLE, Node
from store_model import FIRST_PAUSE, ModelStore, StoreModel

from fastdata.remote.downloader import STREAMS
from fastdata.remote.following import MOST_SINGLE

__all__ = ["Cluster", "Fault", "Phase", "PhaseResult", "Simulation"]

WAITED_SECONDS = 0.001
"""A step that begins so much later than it could have has waited."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines: `cache_share` is what of the dataset each has room for.

    `card_rate` is bytes a second of a node's network card, 0 for any number of them.  Without
    `first_by_samples` the batch with which a loader begins comes in blocks as all others do, as
    larger ones do with it.
    """

    streams: int = STREAMS
    card_rate: float = 1.25e9
    cache_share: float = 1.0
    step_seconds: float = 0.1
    first_by_samples: bool = True


@dataclass(frozen=True, slots=True)
class Phase:
    """The steps `first` to `last` - 1 of an epoch; `begins` where loaders are made anew for it."""

    work: Work
    epoch: int
    first: int
    last: int
    begins: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to node 0 at a step, counted from the beginning of all, for some seconds.

    "slow": its first bytes take `factor` times as long.  "dead": it is gone, and comes back with an
    empty cache, "restarted": with the one that it had.
    """

    kind: Literal["slow", "dead", "restarted"]
    step: int
    seconds: float
    factor: float = 10.0


@dataclass(slots=True)
class PhaseResult:
    """What was counted in a phase; times are seconds, and `late_nodes` is (node, step) pairs."""

    steps: int
    step_seconds: float
    waits: list[float] = field(default_factory=list)
    late_nodes: int = 0
    node_steps: int = 0
    blocks: int = 0
    sample_requests: int = 0
    refused: int = 0
    removed: int = 0
    tight: int = 0
    seconds: float = 0.0

    @property
    def throughput(self) -> float:
        """Return the samples a second over those of steps that wait for nothing."""
        return self.steps * self.step_seconds / self.seconds if self.seconds else 1.0

    @property
    def steps_that_wait(self) -> float:
        """Return the share of steps that begin later than they could."""
        return float(np.mean(np.array(self.waits) > WAITED_SECONDS)) if self.waits else 0.0


class Simulation:
    """One run; `report` is told how many steps are done."""

    def __init__(
        self,
        phases: Sequence[Phase],
        cluster: Cluster,
        store: StoreModel,
        seed: int,
        fault: Fault | None = None,
        report: Callable[[int], object] = lambda steps: None,
    ) -> None:
        self.store = ModelStore(store, np.random.default_rng([seed, 1]))
        self.results: list[PhaseResult] = []
        self.uses: list[list[Uses]] = []
        """Of each phase and node."""
        self._phases, self._cluster, self._fault, self._report = phases, cluster, fault, report
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = 0
        self._step = 0
        self._free_at = 0.0
        self._slow_until = -math.inf
        self._down = False
        self._late: set[Node] = set()
        """Nodes for which the next step waits."""
        self._fetched_ahead = 0
        """Blocks that the next phase needs."""
        for phase in phases:
            work = phase.work
            self.uses.append(
                [
                    work.uses(node, phase.epoch, phase.first, phase.last)
                    for node in range(work.nodes)
                ]
            )
        self._nodes = self._made()
        self._active = self._nodes[: phases[0].work.nodes]

    def _made(self) -> list[Node]:
        work = self._phases[0].work
        room = max(1, round(self._cluster.cache_share * work.num_blocks))
        nodes = []
        for number in range(max(len(uses) for uses in self.uses)):
            needed = [uses[number].blocks for uses in self.uses if number < len(uses)]
            blocks = reduce(np.union1d, needed)
            nodes.append(Node(blocks, work.block_bytes, room, work.num_blocks))
        return nodes

    def run(self) -> list[PhaseResult]:
        """Return what was counted, of each phase."""
        now = 0.0
        for number, phase in enumerate(self._phases):
            began = now
            result = PhaseResult(phase.last - phase.first, self._cluster.step_seconds)
            result.blocks, self._fetched_ahead = self._fetched_ahead, 0
            self.results.append(result)
            self._enter(number, phase)
            for _ in range(phase.first, phase.last):
                now = self._run_step(now)
                self._report(self._step)
            # The last step is in this phase, though what it computes goes on.
            now = self._free_at
            result.seconds = now - began
            result.removed = sum(node.removed for node in self._nodes)
            result.tight = sum(node.tight for node in self._nodes)
            for node in self._nodes:
                node.removed = node.tight = 0
        return self.results

    def _enter(self, number: int, phase: Phase) -> None:
        """Tell the nodes of a phase what they need in it and, if they go on, in the next one."""
        self._active = self._nodes[: phase.work.nodes]
        self._first_step = self._step - phase.first
        self._phase_ends = next_begins = self._step + phase.last - phase.first
        if phase.begins:
            for node in self._nodes:
                node.lose(keep_cache=True)
        following = self._phases[number + 1 : number + 2]
        for at, node in enumerate(self._active):
            if number == 0 or phase.begins:
                node.begin(self._first_requests(phase, at, phase.first))
                node.tell(number, self.uses[number][at], self._step - phase.first)
            if following and not following[0].begins:
                begins = next_begins - following[0].first
                node.tell(number + 1, self.uses[number + 1][at], begins)
            node.plan(self._step)

    def _first_requests(self, phase: Phase, node: int, step: int) -> int:
        work = phase.work
        if not self._cluster.first_by_samples or work.node_batch * work.nodes > MOST_SINGLE:
            return 0
        return work.first_requests(node, phase.epoch, step)

    # -- steps -----------------------------------------------------------------------------------

    def _run_step(self, now: float) -> float:
        """Let things happen until a step begins; return when that is."""
        result = self.results[-1]
        if self._fault is not None and self._fault.step == self._step:
            self._break(now, self._fault)
        free_at = max(now, self._free_at)
        for node in self._active:
            self._ask(node, now)
        while self._events and self._events[0][0] <= free_at:
            self._happen()
        self._late = {node for node in self._active if not node.is_ready}
        result.late_nodes += len(self._late)
        result.node_steps += len(self._active)
        now = free_at
        while self._late or self._down:
            if not self._events:
                raise RuntimeError(f"step {self._step} waits for what nobody has asked for")
            now = self._happen()
        result.waits.append(now - free_at)
        self._step += 1
        self._free_at = now + self._cluster.step_seconds
        for node in self._active:
            node.first_batch = False
            node.plan(self._step)
        return now

    def _break(self, now: float, fault: Fault) -> None:
        if fault.kind == "slow":
            self._slow_until = now + fault.seconds
            return
        node = self._nodes[0]
        node.lose(keep_cache=fault.kind == "restarted")
        self._down = True
        phase = self._phases[len(self.results) - 1]
        step = self._step - self._first_step

        def back(now: float) -> None:
            self._down = False
            node.plan(self._step)
            if node.missing:
                node.fetch_samples(self._first_requests(phase, 0, step))
                self._late.add(node)
            self._ask(node, now)

        self._at(now + fault.seconds, back)

    # -- requests --------------------------------------------------------------------------------

    def _at(self, time: float, event: Callable[[float], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (time, self._numbers, event))

    def _happen(self) -> float:
        time, _, event = heapq.heappop(self._events)
        event(time)
        return time

    def _ask(self, node: Node, now: float) -> None:
        """Have the idle streams of a node ask for what comes next."""
        if self._down and node is self._nodes[0]:
            return
        while node.running < self._cluster.streams:
            block = node.next_request()
            if block is None:
                return
            self._request(node, node.generation, block, now, FIRST_PAUSE)

    def _request(self, node: Node, generation: int, block: int, now: float, pause: float) -> None:
        result, work = self.results[-1], self._phases[0].work
        seconds = self.store.first_byte()
        if now < self._slow_until and self._fault is not None and node is self._nodes[0]:
            seconds *= self._fault.factor
        nbytes = work.sample_bytes if block == SAMPLE else work.block_bytes
        in_dataset = 0 if block == SAMPLE else int(node.blocks[block])
        if not self.store.takes(now, in_dataset):
            result.refused += 1
            longer = self.store.pause_after(pause)

            def ask_again(now: float) -> None:
                if generation == node.generation:
                    self._request(node, generation, block, now, longer)

            self._at(now + seconds + pause, ask_again)
            return
        if block == SAMPLE:
            result.sample_requests += 1
        elif self._step + node.steps_until(block) >= self._phase_ends:
            self._fetched_ahead += 1
        else:
            result.blocks += 1

        def arrived(now: float) -> None:
            if generation == node.generation:
                node.arrived(block)
                if node in self._late and node.is_ready:
                    self._late.remove(node)
                self._ask(node, now)

        def begins(now: float) -> None:
            rate = self._cluster.card_rate
            card = nbytes / rate if rate else 0.0
            node.card_free_at = max(node.card_free_at, now) + card
            stream = nbytes / self.store.model.stream_rate
            self._at(max(now + stream, node.card_free_at), arrived)

        self._at(now + seconds, begins)
