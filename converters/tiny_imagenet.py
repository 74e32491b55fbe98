"""Tiny ImageNet: 200 synsets in pictures of 64 x 64.

::

    train/n01443537/images/n01443537_0.JPEG
    val/images/val_0.JPEG
    val/val_annotations.txt    val_0.JPEG  n03444034  0  32  44  62
    wnids.txt, words.txt       n00001740  entity
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field

from .reading.lists.rows import read_mapping
from .reading.lists.synset_source import ClassesCalled, SynsetSource, synset_folders
from .reading.options import Option
from .reading.selection import joined
from .reading.text_lines import text_lines

__all__ = ["TinyImagenetSource"]

_LIST = "val/val_annotations.txt"


class TinyImagenetSource(SynsetSource):
    """Images of Tiny ImageNet with their synsets."""

    name = "tiny_imagenet"
    summary = "Tiny ImageNet: train/<synset>/images, val with val_annotations.txt"
    parts = ("wnids.txt", "train", "val/val_annotations.txt")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        return (folder / "wnids.txt").is_file() and bool(_splits(folder))

    def list_samples(
        self,
        location: Path,
        *,
        split: Annotated[str | None, Option("take only this split", ("train", "val"))] = None,
        names: ClassesCalled = "synsets",
    ) -> dict[str, Field]:
        there = _splits(location)
        if not there or (split is not None and split not in there):
            raise OptionError(f"split={split or ''}: {location} has {joined(there)}")
        synsets = [line.strip() for _, line in text_lines(location / "wnids.txt")]
        words = {}
        if names == "words":
            every = read_mapping(location / "words.txt", "\t")
            words = {synset: every[synset] for synset in synsets if synset in every}
        chosen = there if split is None else [split]
        fields = self.class_fields(synsets, words, names, chosen)
        self.beside.append(location / "wnids.txt")
        if "train" in chosen:
            for synset in synset_folders(location / "train"):
                if synset not in synsets:
                    raise SourceError(f"{location}: wnids.txt has no {synset}, which train has")
                self.add_synset(synset, os.path.join("train", synset, "images"), "train")
        if "val" in chosen:
            rows = read_mapping(location / _LIST, "\t")
            found = {name: rest.split("\t", 1)[0] for name, rest in rows.items()}
            self.add_listed("val/images", "val", found, location / _LIST)
        self.notes.append("boxes left out: the one of each image is its object in the full picture")
        if (location / "test").is_dir():
            self.notes.append("test left out, which has no labels")
        return fields


def _splits(root: Path) -> list[str]:
    """Return the splits that are there."""
    train = any(
        (root / "train" / name / "images").is_dir() for name in synset_folders(root / "train")
    )
    found = (("train", train), ("val", (root / _LIST).is_file()))
    return [name for name, is_there in found if is_there]
