"""Which share of the data this process takes: as given, or as the training is distributed."""

from __future__ import annotations

import logging
import os
import sys

from torch import distributed

from fastdata.bounds import environment_int
from fastdata.errors import OptionError

__all__ = ["accelerate_in_use", "agreed_seed", "left_to_others", "rank_and_world_size"]

log = logging.getLogger("fastdata")

_logged: set[tuple[int, int]] = set()


def rank_and_world_size(
    rank: int | None, world_size: int | None, *, final: bool = True
) -> tuple[int, int]:
    """Return this process's rank and the world size.

    They are taken as they are if given, both of them; else those of the process group of
    ``torch.distributed``; where none is initialised, the environment's ``RANK`` and ``WORLD_SIZE``,
    as torchrun sets them; otherwise one rank takes everything.  `final` says whether data will be
    loaded by the answer.  Where it only serves to compute a length or to check options, nothing is
    logged, and a rank that the environment lacks counts as 0.

    `OptionError` if one is given without the other, if they do not fit together, or if the
    environment has a ``WORLD_SIZE`` above 1 and no ``RANK``.  The answer changes when a process
    group is made, so a loader asks again for each epoch.
    """
    if rank is None and world_size is None:
        return _share_of_group() or _share_of_environment(final)
    if rank is None or world_size is None:
        raise OptionError(
            f"rank is {rank} and world_size {world_size}: give both, or neither to take those of "
            "torch.distributed"
        )
    if not 0 <= rank < world_size:
        raise OptionError(
            f"rank is 0 to world_size - 1, not {rank} with a world_size of {world_size}"
        )
    return rank, world_size


def accelerate_in_use() -> bool:
    """Return whether this process has made an ``accelerate.Accelerator``."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    return bool(getattr(state, "_shared_state", None))


def left_to_others() -> bool:
    """Return whether it is not for fastdata to divide what a stock `DataLoader` loads among ranks.

    Accelerate divides every `DataLoader` that it prepares, and would divide it a second time.
    Where there is no process group yet, one of the libraries that make it may do the same, so
    each rank loads everything, as with torch, and a warning is logged where there are several.
    """
    if accelerate_in_use():
        return True
    if _share_of_group() is not None:
        return False
    if (environment_int("WORLD_SIZE", "world_size") or 1) > 1:
        log.warning(
            "WORLD_SIZE is %s, but no process group is initialised: each rank loads all samples of "
            "this dataset, which is not packed, unless Lightning or Accelerate divide them. "
            "Otherwise make the group before the loader, or give it rank= and world_size=",
            os.environ["WORLD_SIZE"],
        )
    return True


def agreed_seed(seed: int, world_size: int) -> int:
    """Return the seed of rank 0 on every rank: a collective call of the default process group.

    `OptionError` if there are several ranks, and no process group by which they could agree.
    """
    if world_size == 1:
        return seed
    if _share_of_group() is None:
        raise OptionError(
            f"seed=None with {world_size} ranks, but no process group is initialised, so the ranks "
            "cannot agree on a seed: give a number, the same on every rank, or call "
            "torch.distributed.init_process_group() before the first epoch"
        )
    seeds = [seed]
    distributed.broadcast_object_list(seeds, src=0)
    return seeds[0]


def _share_of_group() -> tuple[int, int] | None:
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _share_of_environment(final: bool) -> tuple[int, int]:
    world_size = environment_int("WORLD_SIZE", "world_size") or 1
    if world_size == 1:
        return 0, 1
    rank = environment_int("RANK", "rank")
    if rank is None and not final:
        return 0, world_size
    if rank is None or rank >= world_size:
        raise OptionError(
            f"the environment has WORLD_SIZE={world_size} and RANK={os.environ.get('RANK')}, and "
            "no process group is initialised, so it is unknown which samples are this process's: "
            "call torch.distributed.init_process_group() before the first epoch, give the loader "
            "rank= and world_size=, or unset WORLD_SIZE if this process is to take everything"
        )
    if final and (rank, world_size) not in _logged:
        _logged.add((rank, world_size))
        log.warning(
            "loading as rank %d of %d, as RANK and WORLD_SIZE say: no process group is initialised",
            rank,
            world_size,
        )
    return rank, world_size
