"""What to do about it: each only where it applies, with the gain that the model predicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from fastdata.profiling.facts import Facts
from fastdata.profiling.model import Model
from fastdata.profiling.report import Fix, Stall
from fastdata.profiling.warned import BLOCKING_COPY
from fastdata.profiling.where import short

__all__ = ["LEAST_GAIN", "fixes_for"]

LEAST_GAIN = 1.05
"""What gains less is not worth a line."""

LEAST_GAIN_OF_WORKERS = 1.1
"""The model knows no better how they get on together."""


class _Offer(Protocol):
    """Adds a fix, if the model says that it gains something."""

    def __call__(
        self,
        text: str,
        *,
        workers: int | None = None,
        free: Collection[str] = (),
        factors: Mapping[str, float] | None = None,
    ) -> None: ...


def fixes_for(
    model: Model, facts: Facts, stalls: Sequence[Stall], where: Mapping[str, str]
) -> tuple[Fix, ...]:
    """Return what to do, what gains most first; stalls of the step last, as none can say by how
    much.

    Parameters
    ----------
    model : Model
        Fitted.
    facts : Facts
    stalls : sequence of Stall
    where : mapping of str to str
        The user's line of a stage.
    """
    found: list[Fix] = []
    now = model.period()

    def offer(
        text: str,
        *,
        workers: int | None = None,
        free: Collection[str] = (),
        factors: Mapping[str, float] | None = None,
    ) -> None:
        then = model.period(workers, free=free, factors=factors)
        gain = now / then if then > 0 else float("inf")
        if gain >= LEAST_GAIN:
            found.append(Fix(text, gain))

    if facts.input_bound:
        _more_workers(model, facts, offer)
    if facts.input_bound or facts.shares_cores:
        if facts.kind == "packed":
            _packed(facts, offer)
        elif facts.kind == "stock":
            offer(
                "pack the dataset once (fastdata.pack) and load it with fastdata.loader: at most "
                "this, if reading and decoding then took no time",
                free=("read", "decode"),
            )
        _lines(facts, where, offer)
        _device(facts, offer)
    if facts.kind == "stock" and model.workers and not facts.persistent and facts.epoch_batches:
        epoch = facts.epoch_batches * now
        gain = (epoch + facts.start_seconds) / epoch if epoch else 1.0
        if gain >= LEAST_GAIN:
            text = (
                f"persistent_workers=True: each epoch begins with {facts.start_seconds:.2g} s "
                "until its first batch"
            )
            found.append(Fix(text, gain))
    found.sort(key=lambda fix: -fix.speedup)
    return (*found, *map(_of_stall, stalls))


def _more_workers(model: Model, facts: Facts, offer: _Offer) -> None:
    if not any(cost.parallel for cost in model.costs):
        return
    enough = model.workers_to_saturate()
    wanted = enough or model.best_workers()
    if wanted <= model.workers:
        return
    text = f"num_workers={wanted} (now {model.workers})"
    if enough:
        text += ": the step would hardly wait"
    elif wanted < model.most_workers:
        text += ": more than that would not help"
    else:
        text += ": what more of them than four a core bring, fastdata tune-workers can measure"
    if not model.workers:
        text += "; batches are then made beside the step, not between"
    if model.period() / model.period(wanted) >= LEAST_GAIN_OF_WORKERS:
        offer(text, workers=wanted)


def _packed(facts: Facts, offer: _Offer) -> None:
    if not facts.plain:
        return
    if not facts.raw:
        offer(
            'codec="raw" when packing, where the disk has room: nothing is decoded; at most this',
            free=("decode",),
        )
        offer(
            "pack at a smaller size (size= and resize=): with half the pixels decoding takes half",
            factors={"decode": 0.5},
        )
    offer(
        'cache="ram": the packed bytes are read once, and stay in memory',
        free=("read",),
    )
    if not facts.callables:
        offer(
            'cache="device", if the decoded images fit there: workers have nothing left to do '
            "after the first epoch; at most this",
            free=("read", "decode", "hand over"),
        )
    if facts.on_gpu and facts.dali:
        offer('backend="dali": the GPU decodes; at most this', free=("decode",))
    if facts.callables:
        offer(
            "fastdata.transforms in place of callables, which are called once a sample; at most "
            "this",
            free=("augment",),
        )


def _lines(facts: Facts, where: Mapping[str, str], offer: _Offer) -> None:
    for name, text in (
        ("augment", "a faster transform"),
        ("collate", "a faster collate function"),
        ("decode", "a faster decoder"),
    ):
        if where.get(name):
            offer(f"{text}: {short(where[name])}; at most this", free=(name,))


def _device(facts: Facts, offer: _Offer) -> None:
    if not facts.on_gpu:
        return
    if not facts.arrives:
        how = "device=" if facts.kind == "packed" else "fastdata.CUDAPrefetcher(loader)"
        offer(f"{how}: batches are copied while the one before is computed with", free=("copy",))
        if not facts.pinned:
            offer("pin_memory=True, and copies with non_blocking=True; at most", free=("copy",))
    # Of a loader that brings packed data there it is uint8 that travels already.
    if facts.float_bytes > 0.5 and not (facts.kind == "packed" and facts.arrives):
        offer(
            "send uint8 over the bus and convert on the device: a quarter of the bytes",
            factors={"copy": 1 - 0.75 * facts.float_bytes},
        )


def _of_stall(stall: Stall) -> Fix:
    if stall.kind == "host tensor":
        return Fix(
            f"device= in {stall.operation} at {stall.where}: {stall.nbytes:,} bytes a step are "
            "made on the host and copied"
        )
    if stall.operation == BLOCKING_COPY:
        return Fix(
            f"{stall.operation} at {stall.where}: from page-locked memory (pin_memory=True) and "
            "with it the host goes on while the batch is copied"
        )
    return Fix(
        f"{stall.operation} at {stall.where}: keep it on the device, or ask for it once in many "
        "steps"
    )
