"""From what a session measured to the result: verdict, advice, and where it is kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from fastdata.engine.memory import available_bytes
from fastdata.tuned_settings import store
from fastdata.tuning.advice import advice_for
from fastdata.tuning.choice import best
from fastdata.tuned_settings.key import Key
from fastdata.tuning.results import Rate, Trial, TuningResult
from fastdata.tuning.session import Session
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.verdict import verdict_of

__all__ = ["kept", "result_of"]

log = logging.getLogger("fastdata")


def result_of(
    session: Session,
    settings: Settings,
    *,
    cores: int,
    complete: bool,
    cache: str,
    notes: list[str],
) -> TuningResult:
    """Return the result of a session.

    Parameters
    ----------
    session : Session
    settings : Settings
        The chosen ones.
    cores : int
        Of this rank.
    complete : bool
        Whether it was not stopped.
    cache : {"warm", "cold", ""}
        What is known of the page cache before.
    notes : list of str
        Those of others than the session.
    """
    facts = session.facts
    rates = dict(session.rates)
    demand, supply = session.rate, rates[settings]
    trained = session.trained.get(settings)
    # What is read for the first time only now was not in memory when measuring began.
    state = cache or ("cold" if session.turns.reads_storage else "warm")
    saturates, verdict = verdict_of(
        settings,
        supply,
        demand=demand,
        trained=trained,
        best=best(session.rates)[1],
        batch_size=facts.batch_size,
        more=_more(session.turns.trials(), settings),
        epoch=facts.batches if facts.base.backend == "torch" else None,
    )
    advice: tuple[str, ...] = ()
    if demand is not None and not saturates:
        top = best(session.rates)
        advice = advice_for(
            facts,
            cores=cores,
            cache_state=state,
            available_bytes=available_bytes(),
            factor=demand / top[1].median,
            grew=_grew(rates, top[0]),
            workers=top[0].num_workers,
        )
    return TuningResult(
        settings,
        verdict,
        saturates,
        facts.batch_size,
        session.demand,
        trained,
        session.turns.trials(),
        advice,
        complete,
        state,
        notes=(*notes, *facts.notes, *session.notes),
    )


def _more(trials: Sequence[Trial], settings: Settings) -> str:
    """Return what became of more workers than the chosen ones."""
    more = [trial for trial in trials if trial.settings.num_workers > settings.num_workers]
    if any(trial.supply is not None for trial in more):
        return "bring no more"
    return "failed" if more else "were not tried"


def _grew(rates: dict[Settings, Rate], top: Settings) -> bool:
    """Return whether fewer workers than those of the best gave clearly less."""
    fewer = [rate.high for one, rate in rates.items() if one.num_workers < top.num_workers]
    return bool(fewer) and max(fewer) < rates[top].low


def kept(result: TuningResult, key: Key | None, whole: bool) -> TuningResult:
    """Keep a result, and return it with what it was measured on, or why it is not kept."""
    if key is None:
        note = (
            'not kept: loader(num_workers="auto") would not know when it fits; give these settings '
            "to the loader, or the dataset an attribute `digest` (docs/tuned_settings.md)"
        )
        return replace(result, notes=(*result.notes, note))
    result = replace(result, machine=key.machine)
    if not result.complete:
        note = "not kept: it was stopped before its end"
    elif _only_failed_with_workers(result):
        note = (
            "not kept: every setting with workers failed (the reasons are above), which may be "
            "different another time"
        )
    elif not whole:
        note = "not kept: the time was up before all numbers of workers had a turn: more seconds"
    elif (path := store.save(key, result)) is None:
        note = f"not kept: {store.directory()} cannot be written"
    else:
        log.info("kept as %s", path)
        return result
    return replace(result, notes=(*result.notes, note))


def _only_failed_with_workers(result: TuningResult) -> bool:
    """Return whether all that is known of workers is that they failed."""
    tried = [trial for trial in result.trials if trial.settings.num_workers]
    return bool(tried) and all(trial.supply is None for trial in tried)
