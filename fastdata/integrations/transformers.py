"""Hugging Face's Trainer over packed data: `FastdataTrainerMixin`.

>>> class MyTrainer(FastdataTrainerMixin, Trainer):                            # doctest: +SKIP
...     train_loader_options = {"cache": "ram"}
>>> data = fastdata.open("train.lmdb", transform=[...])                        # doctest: +SKIP
>>> MyTrainer(model, args, train_dataset=data, eval_dataset="val.lmdb").train()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import transformers.trainer
from accelerate.utils import find_batch_size
from transformers import default_data_collator

import fastdata
from fastdata.dataset import packed_view
from fastdata.errors import OptionError
from fastdata.integrations.accelerate import prepare, skip_first_batches
from fastdata.loading import is_location

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object

__all__ = ["FastdataTrainerMixin"]

MODEL_NAMES = {"image": "pixel_values", "label": "labels"}
"""What the models of transformers call the fields that most datasets have."""

# Trainer resumes in the middle of an epoch by this function.  Ours does for other loaders what
# Accelerate's does.
transformers.trainer.skip_first_batches = skip_first_batches


class FastdataTrainerMixin(Trainer):  # type: ignore[misc]
    """Makes a `Trainer` load packed data by ``fastdata.loader``: ``class T(Mixin, Trainer)``.

    `train_dataset`, `eval_dataset` and what `predict` is given may be paths, packed datasets, or
    views of these; the last may be a dict of them, as for `Trainer`.  Any other dataset is left
    to `Trainer`.  Batches are dicts.  Where the dataset was not opened with ``batch_format="dict"``
    and names of its own, fields are called what `MODEL_NAMES` says.

    The arguments of training decide about batch sizes, shuffling, seed and workers
    (``dataloader_num_workers=0`` leaves the number to `fastdata`).  An epoch of evaluation is
    never incomplete: ``dataloader_drop_last`` is for training.

    Attributes
    ----------
    train_loader_options, eval_loader_options : mapping
        Further options of ``fastdata.loader``; of the class, or set before training begins.
    """

    train_loader_options: Mapping[str, Any] = {}
    eval_loader_options: Mapping[str, Any] = {}
    _trims = False

    def __init__(self, *args: Any, **keywords: Any) -> None:
        for name in ("train_dataset", "eval_dataset"):
            if name in keywords:
                keywords[name] = _opened(keywords[name])
        # The data is kept with its loader, so that no other data gets the same id.
        self._eval_loaders: dict[int | str, tuple[Any, Any]] = {}
        super().__init__(*args, **keywords)

    def get_train_dataloader(self) -> Any:
        """Return the loader of training data."""
        data, args = self.train_dataset, self.args
        if packed_view(data) is None:
            return super().get_train_dataloader()
        if args.train_sampling_strategy not in ("random", "sequential"):
            raise OptionError(
                f"train_sampling_strategy is {args.train_sampling_strategy!r}, but packed data is "
                'loaded in "random" or "sequential" order, or by weights= in train_loader_options'
            )
        options = {"shuffle": args.train_sampling_strategy == "random", **self.train_loader_options}
        return self._loader(data, self._train_batch_size, args.dataloader_drop_last, options)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of the data of evaluation; the same one each time."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        data = self.eval_dataset[data] if isinstance(data, str) else data
        loader = self._eval_loader(data)
        return super().get_eval_dataloader(eval_dataset) if loader is None else loader

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of the data of a prediction; the same one each time."""
        loader = self._eval_loader(test_dataset)
        return super().get_test_dataloader(test_dataset) if loader is None else loader

    def _eval_loader(self, data: Any) -> Any:
        key = str(data) if is_location(data) else id(data)
        if key not in self._eval_loaders:
            opened = _opened(data)
            if packed_view(opened) is None:
                return None
            options = dict(self.eval_loader_options)
            self._eval_loaders[key] = (
                data,
                self._loader(opened, self.args.eval_batch_size, False, options),
            )
        loader = self._eval_loaders[key][1]
        loader.set_epoch(0)  # so that every evaluation has the same draws
        return loader

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> Any:
        """Evaluate a batch; where its samples are repeated on some ranks, its loss is without them.

        Trainer counts the loss of a rank as often as the rank could have samples, and cuts the
        loss of the last ranks in the last batch.  With the mean over all ranks instead, what is
        left is the mean over all samples.
        """
        outputs = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        accelerator, loss = self.accelerator, outputs[0]
        left = accelerator.gradient_state.remainder
        at_end = accelerator.gradient_state.end_of_dataloader and left > 0
        if loss is None or not at_end or accelerator.num_processes == 1:
            return outputs
        rows = find_batch_size(inputs)
        own = min(max(left - accelerator.process_index * rows, 0), rows)
        self._trims = True
        try:  # every rank computes, for a model may wait for the others
            trimmed = {name: value[: own or rows] for name, value in inputs.items()}
            loss = super().prediction_step(model, trimmed, True, ignore_keys)[0]
        finally:
            self._trims = False
        return accelerator.reduce(loss * own, "sum") / left, *outputs[1:]

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        return None if self._trims else super()._get_num_items_in_batch(batch_samples, device)

    def _prepare_inputs(self, inputs: Any) -> Any:
        if self.args.remove_unused_columns and isinstance(inputs, dict):
            self._set_signature_columns_if_needed()
            inputs = {name: inputs[name] for name in inputs if name in self._signature_columns}
        return super()._prepare_inputs(inputs)

    def _loader(self, data: Any, batch_size: int, drop_last: bool, options: Any) -> Any:
        if self.data_collator is not default_data_collator:
            raise OptionError(
                "batches of packed data are not collated from samples, so data_collator would be "
                "ignored: leave it out, and do in transform= what it does"
            )
        args, view = self.args, packed_view(data)
        named = {old: new for old, new in MODEL_NAMES.items() if old in view.schema}
        usual = {
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "num_workers": args.dataloader_num_workers or "auto",
            "prefetch_factor": args.dataloader_prefetch_factor,
            "pin_memory": args.dataloader_pin_memory,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
        if view.record_format.batch_format != "dict":
            usual |= {"batch_format": "dict", "names": named}
        options = usual | options
        loader = fastdata.loader(data, batch_size=batch_size, drop_last=drop_last, **options)
        return prepare(self.accelerator, loader)


def _opened(data: Any) -> Any:
    """Return `data` with paths in it opened."""
    if isinstance(data, dict):
        return {name: _opened(one) for name, one in data.items()}
    return fastdata.open(data) if is_location(data) else data
