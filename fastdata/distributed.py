"""Which share of the data this process takes: given, or asked of torch.distributed."""

from __future__ import annotations

from fastdata.errors import OptionError

__all__ = ["rank_and_world_size"]


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return this process's rank and the world size.

    Parameters
    ----------
    rank, world_size : int or None
        Taken as they are if given, both of them.  None: what
        ``torch.distributed`` says where its process group is initialised, and
        otherwise one rank that takes everything.

    Returns
    -------
    tuple of int, int

    Raises
    ------
    OptionError
        If one is given without the other, or they do not fit together.
    """
    if rank is None and world_size is None:
        return _of_torch()
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


def _of_torch() -> tuple[int, int]:
    # Imported here: who gives a rank, or none of whose work needs one, does not pay for torch.
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()
