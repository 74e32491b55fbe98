"""Parquet and Arrow tables that name image files: read from a folder by option, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from cases import make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError

PICTURES = make_pictures(4, 8, 8)


def write(path: Path, columns: dict[str, Any]) -> Path:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for picture in PICTURES:
        (tmp_path / "photos" / f"{picture.name}.jpg").write_bytes(picture.data)
    return tmp_path / "photos"


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("column", ["image", "file_name", "where it is"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_column_of_paths_is_read_by_option(
    tmp_path: Path, photos: Path, suffix: str, column: str, shuffle: bool
) -> None:
    names = [f"{p.name}.jpg" for p in PICTURES]
    path = write(tmp_path / f"t{suffix}", {"label": ["b", "a", "b", "a"], column: names})
    with pytest.raises(SourceError, match="images=FOLDER"):
        find_source(path)
    options: dict[str, Any] = {"images": str(photos) if shuffle else "photos"}
    if column == "where it is":
        with pytest.raises(OptionError, match=r"which column names the images.*columns=image="):
            find_source(path, options=options)
        options["columns"] = ("image=where it is", "label")
    fastdata.pack(
        path, tmp_path / "x.lmdb", source_options=options, codec="keep", resize="none",
        num_workers=0, shuffle=shuffle, seed=1, progress=False,
    )  # fmt: skip
    data = fastdata.open(tmp_path / "x.lmdb")
    (shard,) = data.shards
    found = {bytes(shard.blob("image", k)): data[k].label for k in range(4)}
    assert found == {p.data: 1 - n % 2 for n, p in enumerate(PICTURES)}


def test_paths_that_lead_elsewhere_or_nowhere_are_rejected(tmp_path: Path, photos: Path) -> None:
    names = ["000000.jpg", "../t.parquet", "missing.jpg", None]
    path = write(tmp_path / "t.parquet", {"image": names, "n": range(4)})
    report = fastdata.pack(
        path, tmp_path / "x.lmdb", source_options={"images": "photos"}, num_workers=0,
        progress=False,
    )  # fmt: skip
    assert report.num_samples == 1
    reasons = [reject.reason for reject in report.rejects]
    for reason, wanted in zip(
        reasons, ["outside of its folder", "No such file", "is null"], strict=True
    ):
        assert wanted in reason


def test_what_names_no_images_is_refused(tmp_path: Path, photos: Path) -> None:
    path = write(tmp_path / "t.parquet", {"image": ["000000.jpg"], "n": [1]})
    with pytest.raises(OptionError, match=r"'n' is no text.*columns=image"):
        find_source(path, options={"images": "photos", "columns": ("image=n",)})
    with pytest.raises(OptionError, match="leaves out the images"):
        find_source(path, options={"images": "photos", "columns": ("n",)})
    with pytest.raises(OptionError, match="images=nowhere: no such folder in "):
        find_source(path, options={"images": "nowhere"})
