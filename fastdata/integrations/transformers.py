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
from fastdata.errors import OptionError
from fastdata.integrations.accelerate import prepare, skip_first_batches
from fastdata.loading import is_location
from fastdata.packed_views import packed_view

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object

__all__ = ["FastdataTrainerMixin"]

MODEL_NAMES = {"image": "pixel_values", "label": "labels"}
"""What the models of transformers call the fields that most datasets have."""

# Trainer resumes in the middle of an epoch by this name; other loaders get Accelerate's function.
transformers.trainer.skip_first_batches = skip_first_batches


class FastdataTrainerMixin(Trainer):
    """Makes a `Trainer` load packed data by ``fastdata.loader``: ``class T(Mixin, Trainer)``.

    `train_dataset`, `eval_dataset` (or a dict of several) and what ``predict`` is given are paths,
    packed datasets, or torch's parts of these; any other dataset is left to `Trainer`.  Batches are
    dicts with the names of `MODEL_NAMES`, or those that a dataset of dicts was opened with.
    `TrainingArguments` decide about batch size, shuffling, seed and workers (0 workers leave the
    number to fastdata); ``dataloader_drop_last`` is for training only.

    Attributes
    ----------
    train_loader_options, eval_loader_options : mapping
        Further options of ``fastdata.loader``; of the class, or set before the first batch.
    """

    train_loader_options: Mapping[str, Any] = {}
    eval_loader_options: Mapping[str, Any] = {}
    _trimmed = False

    def __init__(self, *args: Any, **keywords: Any) -> None:
        given = {n: keywords[n] for n in {"train_dataset", "eval_dataset"} & keywords.keys()}
        # Each with its data, so that no other data can have the same id.
        self._eval_loaders: dict[int | str, tuple[Any, Any]] = {}
        super().__init__(*args, **keywords | _opened(given))

    def get_train_dataloader(self) -> Any:
        """Return the loader of training data."""
        order = self.args.train_sampling_strategy
        if packed_view(self.train_dataset) is None:
            return super().get_train_dataloader()
        if order not in ("random", "sequential"):
            raise OptionError(f'train_sampling_strategy is "random" or "sequential", not {order!r}')
        options = {"shuffle": order == "random", **self.train_loader_options}
        drop_last = self.args.dataloader_drop_last
        return self._loader(self.train_dataset, self._train_batch_size, drop_last, options)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of data to evaluate; the same one each time."""
        data = self.eval_dataset if eval_dataset is None else eval_dataset
        loader = self._eval_loader(self.eval_dataset[data] if isinstance(data, str) else data)
        return super().get_eval_dataloader(eval_dataset) if loader is None else loader

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of data to predict; the same one each time."""
        loader = self._eval_loader(test_dataset)
        return super().get_test_dataloader(test_dataset) if loader is None else loader

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **keywords: Any) -> Any:
        """Evaluate a batch; the last one's loss is the mean of its samples on all processes.

        Trainer counts repeated samples, and no loss of the last processes, in that batch.
        """
        outputs = super().prediction_step(model, inputs, *args, **keywords)
        accelerator, state = self.accelerator, self.accelerator.gradient_state
        left = state.remainder if state.end_of_dataloader else 0
        if outputs[0] is None or left <= 0 or accelerator.num_processes == 1:
            return outputs
        rows = find_batch_size(inputs)
        own = min(max(left - accelerator.process_index * rows, 0), rows)
        inputs = {name: value[: own or rows] for name, value in inputs.items()}
        self._trimmed = True
        try:  # on processes without a sample of their own, too: they may have to take part
            loss = super().prediction_step(model, inputs, *args, **keywords)[0]
        finally:
            self._trimmed = False
        return accelerator.reduce(loss * own, "sum") / left, *outputs[1:]

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        # Numbers of samples that differ by process are weighed in `prediction_step`.
        return None if self._trimmed else super()._get_num_items_in_batch(batch_samples, device)

    def _prepare_inputs(self, inputs: Any) -> Any:
        if self.args.remove_unused_columns and isinstance(inputs, dict):
            self._set_signature_columns_if_needed()
            inputs = {name: inputs[name] for name in inputs if name in self._signature_columns}
        return super()._prepare_inputs(inputs)

    def _eval_loader(self, data: Any) -> Any:
        key = str(data) if is_location(data) else id(data)
        if key not in self._eval_loaders:
            opened, options = _opened(data), dict(self.eval_loader_options)
            if packed_view(opened) is None:
                return None
            made = self._loader(opened, self.args.eval_batch_size, False, options)
            self._eval_loaders[key] = data, made
        loader = self._eval_loaders[key][1]
        loader.set_epoch(0)  # so that every evaluation has the same draws
        return loader

    def _loader(self, data: Any, size: int, drop_last: bool, options: dict[str, Any]) -> Any:
        if self.data_collator is not default_data_collator:
            raise OptionError("data_collator would be ignored: do in transform= what it does")
        args, view = self.args, packed_view(data)
        usual = {
            "seed": args.seed if args.data_seed is None else args.data_seed,
            "num_workers": args.dataloader_num_workers or "auto",
            "prefetch_factor": args.dataloader_prefetch_factor,
            "pin_memory": args.dataloader_pin_memory,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
        if view is not None and view.record_format.batch_format != "dict":
            names = {old: new for old, new in MODEL_NAMES.items() if old in view.schema}
            usual |= {"batch_format": "dict", "names": names}
        loader = fastdata.loader(data, batch_size=size, drop_last=drop_last, **usual | options)
        return prepare(self.accelerator, loader)


def _opened(data: Any) -> Any:
    """Return `data` with paths in it opened."""
    if isinstance(data, dict):
        return {name: _opened(one) for name, one in data.items()}
    return fastdata.open(data) if is_location(data) else data
