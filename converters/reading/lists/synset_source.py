"""What layouts of ImageNet share: classes are synsets, in sorted order, as torchvision has it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ScalarField

from ..image_files import is_image_name
from ..image_list import ImageListSource
from ..locations import folders_in, printable
from ..options import Option
from ..selection import joined

__all__ = ["ClassesCalled", "SynsetSource", "is_synset", "synset_folders"]

ClassesCalled: TypeAlias = Annotated[
    str,
    Option(
        "what classes are called: synsets (n01440764), or words (tench, Tinca tinca)",
        ("synsets", "words"),
    ),
]

_SYNSET = re.compile(r"n[0-9]{8}")


def is_synset(name: str) -> bool:
    """Tell whether this is the number of a synset of WordNet's: ``n01440764``."""
    return _SYNSET.fullmatch(name) is not None


def synset_folders(folder: Path) -> list[str]:
    """Return the folders that are called like synsets, sorted; none where there is no folder."""
    return list(filter(is_synset, folders_in(folder))) if folder.is_dir() else []


class SynsetSource(ImageListSource):
    """Images of synsets; fields ``image``, ``label`` and, where there are several, ``split``."""

    def class_fields(
        self, synsets: list[str], words: Mapping[str, str], names: str, splits: list[str]
    ) -> dict[str, Field]:
        """Number the classes and splits; return their fields.

        names: the option: ``synsets`` or ``words``.
        """
        synsets = sorted(synsets)
        self._numbers_of = {synset: k for k, synset in enumerate(synsets)}
        if names == "words" and (lost := [s for s in synsets if s not in words]):
            raise OptionError(
                f"names=words: there are no words for {joined(lost, 5)} in {self.root}"
            )
        classes = tuple(words[s] for s in synsets) if names == "words" else tuple(synsets)
        self.splits, self.with_split = splits, len(splits) > 1
        return {"label": ScalarField(classes=classes), **self.split_field()}

    def add_synset(self, synset: str, folder: str, split: str) -> None:
        """Add the images of a folder, in sorted order."""
        number = self._numbers_of[synset]
        for name in _images(self.root / folder):
            self.add(os.path.join(folder, name), label=number, split=self.splits.index(split))

    def add_listed(self, folder: str, split: str, synsets: Mapping[str, str], place: Path) -> None:
        """Add the images of a folder whose synsets are in a list.

        synsets: by name of the file, with suffix or without.
        """
        self.beside.append(place)
        number = self.splits.index(split)
        seen = 0
        for name in _images(self.root / folder):
            path = os.path.join(folder, name)
            stem = os.path.splitext(name)[0]
            synset = synsets.get(name) or synsets.get(stem)
            if synset in self._numbers_of:
                self.add(path, label=self._numbers_of[synset], split=number)
                seen += 1
            elif synset is None:
                self.reject(path, f"{place.name} does not list it")
            else:
                self.reject(
                    path, f"{place.name} calls it {synset!r:.60}, which is none of the classes"
                )
        if not seen:
            raise SourceError(f"{place}: names none of the images in {self.root / folder}")
        if len(synsets) > seen:
            self.notes.append(
                f"{len(synsets) - seen:,} of the {len(synsets):,} images that {place.name} lists "
                "are not there"
            )


def _images(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise SourceError(f"{printable(str(folder))}: there is no such folder")
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if is_image_name(entry.name))
