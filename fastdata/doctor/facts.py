"""What was seen of a script, as plain data for the process that started it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from fastdata.doctor.advice import ADVICE
from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.first_steps import WATCHED_STEPS
from fastdata.doctor.messages import Plain, RankFacts, Watched
from fastdata.doctor.numerics import digest
from fastdata.doctor.replaying import Trained
from fastdata.doctor.seen import Seen

__all__ = ["rank_facts", "watched_facts"]

STARTING_BATCHES = 2
"""For which the loop waits until workers have begun."""


def watched_facts(
    seen: Seen,
    waits: Sequence[tuple[float, float]],
    *,
    blocked: dict[str, int],
    environment: dict[str, str],
    rank: RankFacts | None,
) -> Watched:
    """Return what was seen, with the findings of all advice.

    `waits` are the seconds that the loop waited for each batch, and worked with it.
    """
    findings = tuple(
        Plain(
            advice.id,
            finding.where,
            finding.what or advice.title,
            finding.environment,
            finding.is_tried and not (advice.gpu_only and not seen.on_gpu),
            _why_not(advice, finding, seen),
            advice.phase,
        )
        for advice in ADVICE
        for finding in (advice.find(seen) if seen.steps else ())
    )
    fed = waits[STARTING_BATCHES:]
    waited = sum(wait for wait, _ in fed)
    whole = waited + sum(step for _, step in fed)
    parameters = {id(p): p.numel() for model in seen.models for p in model.parameters()}
    return Watched(
        findings,
        seen.steps_seen,
        waited / whole if whole else 0.0,
        whole / len(fed) if fed else 0.0,
        "cuda" if seen.on_gpu else "cpu",
        torch.get_num_threads(),
        tuple(type(model).__name__ for model in seen.models),
        tuple(type(one).__name__ for one in seen.optimizers),
        sum(parameters.values()),
        seen.validates,
        blocked,
        environment=environment,
        rank=rank,
        held=seen.held,
        held_bytes=seen.held_bytes,
    )


def _why_not(advice: Advice, finding: Finding, seen: Seen) -> str:
    if advice.gpu_only and not seen.on_gpu:
        return "GPU only"
    return "" if finding.is_tried else finding.why_not or advice.why_not


def rank_facts(
    seen: Seen, trained: Trained | None, weights: str, seed: Callable[[], None] | None
) -> RankFacts:
    """Return what ranks are compared by; `seed` seeds a rank that has done all it was to do."""
    loader = trained.loader if trained is not None else None
    return RankFacts(
        tuple(trained.digests) if trained is not None else (),
        trained.samples if trained is not None else 0,
        _length(loader),
        _length(getattr(loader, "dataset", None)) or 0,
        _first_sample(loader, seed) if seed is not None else "",
        seen.line_of(loader),
        seen.steps[0][-1].line if seen.steps else "",
        WATCHED_STEPS,
        weights,
        any(map(_is_sharded, seen.models)),
        bool(seen.called("join")),
        seen.validates,
        seed is not None,
    )


def _first_sample(loader: Any, seed: Callable[[], None]) -> str:
    seed()
    try:
        return digest(loader.collate_fn([loader.dataset[0]]))
    except Exception:  # whatever a user's dataset raises: it has no first sample
        return ""


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def _is_sharded(model: nn.Module) -> bool:
    """Return whether a rank has only a part of the weights, as FSDP and tensor parallelism have."""
    has_parts = any(
        hasattr(p, "placements") or hasattr(p, "_sharded_size") for p in model.parameters()
    )
    return has_parts or any("FullySharded" in type(module).__name__ for module in model.modules())
