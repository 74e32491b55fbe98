"""Hugging Face Accelerate: `prepare` takes the place of ``accelerator.prepare``.

>>> from fastdata.integrations.accelerate import prepare                       # doctest: +SKIP
>>> model, optimizer, train = prepare(accelerator, model, optimizer, train)    # doctest: +SKIP

Accelerate would make a `DataLoader` of its own of any `DataLoader`, without this loader's
transforms and draws.  A `PreparedLoader` is a `DataLoader` that counts as prepared already, and
Accelerate uses it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, DistributedSampler

from fastdata.engine.packed import Loader
from fastdata.errors import OptionError

__all__ = ["PreparedLoader", "prepare", "skip_first_batches"]


def prepare(accelerator: accelerate.Accelerator, *objects: Any) -> Any:
    """Return what ``accelerator.prepare(*objects)`` does, where some objects are loaders of ours.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        Its ``skip_first_batches`` takes the prepared loaders afterwards.
    *objects
        Models, optimizers, schedulers, `Loader` objects and other loaders, in any order.

    Returns
    -------
    object or tuple
        As many as were given, in the same order; each `Loader` as a `PreparedLoader`.

    Raises
    ------
    OptionError
        If the loader and the accelerator have settings that do not fit together.
    """
    prepared = [_prepared(accelerator, one) for one in objects]
    accelerator.skip_first_batches = skip_first_batches
    return accelerator.prepare(*prepared)


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """Return a loader without the first batches of each epoch, as Accelerate's function does.

    Nothing is read of what is left out.  Where a state was loaded, it and `num_batches` must mean
    the same batch: the batches are not left out twice.
    """
    if not isinstance(loader, PreparedLoader):
        return accelerate.skip_first_batches(loader, num_batches=num_batches)
    return PreparedLoader(loader.loader, loader.accelerator, loader.skip_batches + num_batches)


class PreparedLoader(DataLoaderStateMixin, DataLoader[Any]):  # type: ignore[misc]
    """A `Loader` as Accelerate wants it, with all attributes of the loader.

    Batches are on the accelerator's device.  ``accumulate`` and ``gather_for_metrics`` see where
    the epoch ends and how many samples its last batch has.  ``accelerator.save_state`` and
    ``load_state`` save and restore the place in training, also in the middle of an epoch.

    Parameters
    ----------
    loader : Loader
    accelerator : accelerate.Accelerator
    skip_batches : int
        How many batches of each epoch are left out.
    """

    # Accelerate asks for these: it must not prepare the loader, and saves the loader's state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, loader: Loader, accelerator: Any, skip_batches: int = 0) -> None:
        # DataLoader's own is not called: nothing of it is used, and it would make samplers.
        own = {"loader": loader, "accelerator": accelerator, "skip_batches": skip_batches}
        self.__dict__.update(own, gradient_state=accelerator.gradient_state)
        loader._adapted = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in ("end_of_dataloader", "remainder")
        object.__setattr__(self, name, value) if own else setattr(self.loader, name, value)

    def __len__(self) -> int:
        return max(0, len(self.loader) - self.skip_batches)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        accelerator, loader = self.accelerator, self.loader
        first, length = self._go_to_first(), len(loader)
        self.begin()
        try:
            for number, batch in enumerate(loader, first + 1):
                self.end_of_dataloader = number == length
                # Copied with waiting: the memory of a batch is used again when the batch is gone.
                placed = accelerator.device_placement
                yield send_to_device(batch, accelerator.device) if placed else batch
        finally:
            self.end()

    def begin(self) -> None:
        """Tell Accelerate that an epoch begins, and how many samples its last batch has."""
        self.reset()
        loader = self.loader
        if loader.batch_size is not None:
            samples = loader.samples_per_epoch * loader.world_size - loader.padding
            self.remainder = samples % (loader.batch_size * loader.world_size)
        self.gradient_state._add_dataloader(self)

    def _go_to_first(self) -> int:
        """Have the loader skip what is to be skipped; return the number of the first batch."""
        at: int = self.loader._follow_sampler().batch
        if at and self.skip_batches not in (0, at):
            raise OptionError(
                f"skip_first_batches is to leave out {self.skip_batches} batches, but the state "
                f"that was loaded stands before batch {at}, from which the loader continues by "
                "itself: leave out skip_first_batches"
            )
        self.loader.skip(0 if at else self.skip_batches)
        return at or self.skip_batches


def _prepared(accelerator: accelerate.Accelerator, one: Any) -> Any:
    """Return a `Loader` as `PreparedLoader`, anything else as it is."""
    if isinstance(one, Loader):
        problem = _problem_of(one, accelerator)
    else:
        problem = "it has a DistributedSampler, and Accelerate would divide its share once more: "
        problem += "make it with rank=0 and world_size=1"
        if accelerator.num_processes == 1 or not isinstance(
            getattr(one, "sampler", None), DistributedSampler
        ):
            return one
    if problem:
        raise OptionError(f"{type(one).__name__} cannot be prepared for Accelerate: {problem}")
    return PreparedLoader(one, accelerator)


def _problem_of(loader: Loader, accelerator: accelerate.Accelerator) -> str | None:
    """Return what the accelerator and the loader would do wrong together, and the remedy."""
    ranks, parallel = accelerator.num_processes, accelerator.parallelism_config
    if accelerator.split_batches or accelerator.dispatch_batches:
        return (
            "split_batches and dispatch_batches are for one process that loads for all, but here "
            f"each loads its own batches of {loader.batch_size}: leave them out, and give the "
            "batch size of one process"
        )
    if loader.world_size != ranks or (parallel and parallel.non_data_parallel_size > 1):
        return (
            f"it divides an epoch among {loader.world_size} ranks, and there are {ranks} "
            "processes, each of which must train on samples of its own: leave out rank=, "
            "world_size=, samplers, and tensor, context or sequence parallelism"
        )
    if ranks > 1 and not (loader.options.even and accelerator.even_batches):
        return (
            "even=False and even_batches=False give ranks different numbers of batches, and "
            "gathering would wait for ever: leave them out. gather_for_metrics cuts off what is "
            "repeated, so that each sample is there exactly once"
        )
    if loader.options.cache_scope == "rank" and loader.padding:
        return (
            f'with cache_scope="rank" {loader.padding} samples are repeated at any place of an '
            'epoch, and gather_for_metrics cannot cut them off: give drop_last=True, or "all"'
        )
    return None
