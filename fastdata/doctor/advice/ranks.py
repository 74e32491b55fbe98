"""What is wrong between ranks, each of which does nothing wrong by itself."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

from fastdata.doctor.contract import Advice, Finding, Kind, Numerics
from fastdata.doctor.messages import RankFacts
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE", "RanksCompared"]

_COMPARED = "ranks are compared, and nothing is tried"


class RanksCompared(Advice):
    """Something that only shows when ranks are compared, as ``--ranks`` does."""

    kind: ClassVar[Kind] = "bug"
    numerics = Numerics.TRAINING

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Find nothing in a script that runs with one rank."""
        yield from ()

    @abstractmethod
    def compare(self, ranks: Sequence[RankFacts]) -> Iterator[Finding]:
        """Yield what is found in facts of all ranks."""


class SameSamples(RanksCompared):
    id = "D50"
    title = "every rank trains with the same samples"

    def compare(self, ranks: Sequence[RankFacts]) -> Iterator[Finding]:
        """Compare first batches, and how many samples loaders have with those of the data."""
        same = ranks[0].batches and all(rank.batches == ranks[0].batches for rank in ranks)
        first = {rank.first_sample for rank in ranks}
        whole = len(first) == 1 and all(self._has_all(rank, len(ranks)) for rank in ranks)
        if same or whole:
            what = "the same batches on each rank" if same else "all samples on each rank"
            yield Finding(ranks[0].loader, what, why_not=_COMPARED)

    @staticmethod
    def _has_all(rank: RankFacts, ranks: int) -> bool:
        """Return whether a rank goes through its whole dataset, but for an incomplete batch."""
        if not rank.first_sample:
            return False
        batches = rank.epoch_batches or 0
        share = math.ceil(rank.samples / ranks) + rank.batch_samples  # with others to fill a batch
        return 0 < rank.samples < rank.batch_samples * (batches + 1) and (
            rank.batch_samples * batches > share
        )


class ValidationOnOneRank(RanksCompared):
    id = "D51"
    title = "validation on some ranks only"
    kind: ClassVar[Kind] = "speed"

    def compare(self, ranks: Sequence[RankFacts]) -> Iterator[Finding]:
        """Compare which ranks validate."""
        count = sum(rank.validates for rank in ranks)
        if 0 < count < len(ranks) and all(rank.complete for rank in ranks):
            what = f"validation on {count} of {len(ranks)} ranks"
            yield Finding("", what, why_not=_COMPARED)


class OtherWeights(RanksCompared):
    id = "D52"
    title = "ranks have other weights"

    def compare(self, ranks: Sequence[RankFacts]) -> Iterator[Finding]:
        """Compare weights after the same number of steps; those in shards are other ones."""
        weights = {rank.weights for rank in ranks}
        if len(weights) > 1 and "" not in weights and not any(rank.sharded for rank in ranks):
            yield Finding(
                ranks[0].step, f"{self.title} after {ranks[0].steps} steps", why_not=_COMPARED
            )


class OtherLengths(RanksCompared):
    id = "D53"
    title = "ranks have other numbers of batches"

    def compare(self, ranks: Sequence[RankFacts]) -> Iterator[Finding]:
        """Compare lengths of the loaders that are trained with."""
        lengths = [rank.epoch_batches for rank in ranks]
        if None not in lengths and len(set(lengths)) > 1 and not any(rank.joins for rank in ranks):
            counts = ", ".join(f"{length:,}" for length in lengths)
            yield Finding(ranks[0].loader, f"{self.title}: {counts}", why_not=_COMPARED)


ADVICE = SameSamples(), ValidationOnOneRank(), OtherWeights(), OtherLengths()
