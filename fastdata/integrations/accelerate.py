"""Hugging Face Accelerate: `prepare` takes the place of ``accelerator.prepare``.

>>> from fastdata.integrations.accelerate import prepare                       # doctest: +SKIP
>>> model, optimizer, train = prepare(accelerator, model, optimizer, train)    # doctest: +SKIP

Accelerate replaces a `DataLoader` by one of its own, which would have neither the transforms nor
the draws of a `Loader`.  A `PreparedLoader` is a `DataLoader` that says that it is prepared
already, so Accelerate uses it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, DistributedSampler

from fastdata.engine.loader import Loader
from fastdata.errors import OptionError

__all__ = ["PreparedLoader", "prepare", "skip_first_batches"]


def prepare(accelerator: accelerate.Accelerator, *objects: Any) -> Any:
    """Return what ``accelerator.prepare(*objects)`` does, with each `Loader` as a `PreparedLoader`.

    Afterwards ``accelerator.skip_first_batches`` takes prepared loaders.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
    *objects
        Models, optimizers, schedulers and loaders, in any order.

    Raises
    ------
    OptionError
        If the settings of a loader and of the accelerator do not fit together.
    """
    for one in objects:
        if problem := _problem_of(one, accelerator):
            name = type(one).__name__
            raise OptionError(f"this {name} cannot be prepared for Accelerate: {problem}")
    accelerator.skip_first_batches = skip_first_batches
    ours = [PreparedLoader(one, accelerator) if isinstance(one, Loader) else one for one in objects]
    return accelerator.prepare(*ours)


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """Return a loader without the first batches of each epoch, as Accelerate's function does.

    Nothing is read of what is left out.  If a state was loaded, `num_batches` must mean the batch
    where it was taken: batches are not left out twice.
    """
    if not isinstance(loader, PreparedLoader):
        return accelerate.skip_first_batches(loader, num_batches=num_batches)
    return PreparedLoader(loader.loader, loader.accelerator, loader.skip_batches + num_batches)


class PreparedLoader(DataLoaderStateMixin, DataLoader[Any]):
    """A `Loader` as Accelerate wants it, with the attributes of the loader.

    Batches are on the accelerator's device.  ``accumulate`` and ``gather_for_metrics`` see where
    the epoch ends and how many samples its last batch has.  ``accelerator.save_state`` and
    ``load_state`` save and restore the place in training, also in the middle of an epoch.

    `skip_batches` of them are left out in each epoch.
    """

    # Accelerate reads these: it does not prepare the loader again, and saves the loader's state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, loader: Loader, accelerator: Any, skip_batches: int = 0) -> None:
        # That of DataLoader is not called: it would make samplers, and nothing of it is used.
        own = {"loader": loader, "accelerator": accelerator, "skip_batches": skip_batches}
        self.__dict__.update(own, gradient_state=accelerator.gradient_state)
        loader.adapt_to_accelerate()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("loader"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in ("end_of_dataloader", "remainder")
        object.__setattr__(self, name, value) if own else setattr(self.loader, name, value)

    def __len__(self) -> int:
        return max(0, int(len(self.loader) - self.skip_batches))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        accelerator, first, length = self.accelerator, self._first_batch(), len(self.loader)
        self.begin()
        try:
            for number, batch in enumerate(self.loader, first + 1):
                self.end_of_dataloader = number == length
                # Never non_blocking: the memory of a batch is used again when the batch is gone.
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

    def _first_batch(self) -> int:
        """Return the number of the batch where the next pass begins, all before it skipped."""
        at: int = self.loader.skip(0).state_dict()["batch"]
        if at and self.skip_batches not in (0, at):
            raise OptionError(
                f"skip_first_batches is to leave out {self.skip_batches} batches, but a state was "
                f"loaded, from which the loader continues at batch {at}: do only one of the two"
            )
        self.loader.skip(0 if at else self.skip_batches)
        return at or self.skip_batches


def _problem_of(one: Any, accelerator: accelerate.Accelerator) -> str | None:
    """Return why an object and the accelerator do not fit together, and the remedy."""
    ranks, parallel = accelerator.num_processes, accelerator.parallelism_config
    if not isinstance(one, Loader):
        divided = ranks > 1 and isinstance(getattr(one, "sampler", None), DistributedSampler)
        again = "Accelerate would divide what its DistributedSampler has divided already"
        return f"{again}; make it without a sampler, rank= and world_size=" if divided else None
    if accelerator.split_batches or accelerator.dispatch_batches:
        problem = "each process loads its own batches, of batch_size samples"
        return f"{problem}; leave out split_batches and dispatch_batches"
    if one.world_size != ranks or (parallel and parallel.non_data_parallel_size > 1):
        problem = (
            f"it divides an epoch among {one.world_size} ranks, not {ranks} data-parallel ones"
        )
        return f"{problem}; leave out rank, world_size, samplers and other kinds of parallelism"
    if ranks > 1 and not (one.options.even and accelerator.even_batches):
        problem = "processes with fewer batches than others would be waited for without end"
        return f"{problem}; leave out even=False: gather_for_metrics cuts what is repeated"
    if one.options.cache_scope == "rank" and one.padding:
        problem = f'with cache_scope="rank", it repeats {one.padding} samples in any of its batches'
        return f"{problem}, where gather_for_metrics does not cut them; give drop_last=True"
    return None
