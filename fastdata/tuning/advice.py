"""What would change it, where no settings keep the step busy; each only where it applies."""

from __future__ import annotations

from fastdata.engine.memory import in_words
from fastdata.installing import install_line
from fastdata.tuning.subject import Facts

__all__ = ["advice_for"]

MUCH_LARGER = 1.5
"""Stored images this many times as large as those in batches cost decoding for nothing."""


def advice_for(
    facts: Facts,
    *,
    cores: int,
    cache_state: str,
    available_bytes: int,
    factor: float,
    grew: bool,
    workers: int = 1,
) -> tuple[str, ...]:
    """Return what would help, the most promising first.

    Parameters
    ----------
    facts : Facts
    cores : int
        That this process may use.
    cache_state : {"warm", "cold"}
    available_bytes : int
        Of host memory.
    factor : float
        Demand over supply.
    grew : bool
        Whether the rate still grew with the last workers that were added.
    workers : int
        Of the settings with the highest rate.
    """
    found = []
    packed = facts.base.backend != "torch"
    if not packed:
        found.append(
            "pack the dataset (fastdata pack): batches are then made whole, without one Python "
            "call a sample"
        )
    if factor <= 1:  # batches are there in time: what is left is the loop's own work
        return tuple(found)
    if packed and facts.cuda and 0 < facts.decoded_bytes < 0.8 * facts.device_free_bytes:
        found.append(
            f'cache="device": all images decoded take {in_words(facts.decoded_bytes)}, which the '
            "GPU has room for; workers then have nothing to do"
        )
    if packed and "jpeg" in facts.codecs:
        found.append(
            'pack with codec="raw": nothing is left to decode; images then take '
            f"{in_words(facts.decoded_bytes)}"
        )
    if packed and len(facts.image_sides) == 2:
        stored, wanted = facts.image_sides
        if stored > MUCH_LARGER * wanted:
            found.append(
                f"pack at a smaller size: images have a short side of {stored}, batches of {wanted}"
            )
    if packed and cache_state == "cold" and facts.decoded_bytes < 10 * available_bytes:
        found.append('cache="ram": the data is not in the page cache, and disks are slow')
    elif not packed and cache_state == "cold":
        found.append("a faster disk, or data that fits into memory: it was read from disk")
    if packed and facts.cuda and not facts.dali and facts.base.backend == "cpu":
        found.append(f"NVIDIA DALI ({install_line('dali')}), which decodes on the GPU")
    if grew and workers > cores:  # who computes finds no core beyond these
        found.append(
            f"more workers: {workers} on {cores} {'core' if cores == 1 else 'cores'} still gave "
            "more than fewer did, so they wait for something else; --max-workers (max_workers) "
            "and more seconds give more of them a turn"
        )
    elif grew and cache_state == "warm":
        found.append(f"more cores: {cores} are to be used, about {factor:.1f} times as many needed")
    return tuple(found)
