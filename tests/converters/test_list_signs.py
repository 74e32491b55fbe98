"""Lists, lists of classes and prose are told apart by name and text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastdata.converters.reading.list_signs import describe_list

IMAGES = [f"{('cat', 'dog')[k % 2]}/img_{k:03}.jpg" for k in range(40)]
ROWS = [f"img_{k:03},{k % 2}" for k in range(40)]

FILES: dict[str, tuple[str, bytes | str]] = {
    "labels.csv": ("list", "id,label\n" + "\n".join(ROWS)),
    "utf16.csv": ("list", ("id,label\n" + "\n".join(ROWS)).encode("utf-16")),
    "cp1252.csv": ("list", ("id,Gr\u00f6\u00dfe\n" + "\n".join(ROWS)).encode("cp1252")),
    "prefix.csv": ("list", "file,y\n" + "\n".join(f"data/train/{p},1" for p in IMAGES)),
    "windows.csv": ("list", "file,y\n" + "\n".join(f"data\\{p[4:]},1" for p in IMAGES)),
    "missing.csv": (
        "list", "id,y\n" + "\n".join(f"gone_{k},1" for k in range(60)) + "\n" + "\n".join(ROWS)
    ),
    "labels.txt": ("list", "\n".join(f"{k} 3 cat/img_{k:03}.jpg" for k in range(40))),
    "names.txt": ("list", "\n".join(f"img_{k:03} 1 1 2" for k in range(40))),
    "quoted.csv": ("list", '"id";"label"\n' + "\n".join(f'"img_{k:03}";"a"' for k in range(9))),
    "rows.json": ("list", json.dumps([{"image": p, "y": 1} for p in IMAGES])),
    "rows.jsonl": ("list", "\n".join(json.dumps({"image": p}) for p in IMAGES)),
    "long.csv": ("list", "id,label,text\n" + "\n".join(f"{r},{'x' * 900}" for r in ROWS * 60)),
    "classes.txt": ("classes", "cat\ndog\n"),
    "classes.csv": ("classes", "name,number\ncat,0\ndog,1\n"),
    "synsets.txt": ("classes", "cat Felis catus\ndog Canis lupus\ncow Bos taurus\n"),
    "class_to_idx.json": ("classes", '{"cat": 0, "dog": 1}'),
    "README": ("prose", "img_000.jpg is a cat.\n" + "More of them will follow.\n" * 9),
    "README.txt": ("prose", "images\n"),
    "LICENSE.txt": ("prose", "MIT\n"),
    "index.md": ("prose", "| a | b |\n"),
    "notes.txt": ("prose", "some notes\n"),
    "story.txt": ("prose", "These pictures were taken in May.\nMore will follow soon, we hope.\n"),
    "checksums.txt": ("prose", "0123 img_000.jpg\n"),
    "sample_submission.csv": ("prose", "id,label\n" + "\n".join(ROWS)),
    "empty.csv": ("prose", ""),
    "column.txt": ("unknown", "cat\ndog\ncat\ncat\n"),
    "numbers.txt": ("unknown", "0\n1\n0\n"),
    "notes_.txt": ("unknown", "0\n1\n0\n"),
    "notes.log": ("unknown", "0 1 2 3 4\n1 2 3 4 5\n"),
    "others.csv": ("unknown", "id,label\nx,1\ny,2\n"),
    "tables.txt": ("unknown", "the first cat here\nthe other dog here\n"),
    "paths.txt": ("unknown", "This is the path of one of them: other.jpg\n"),
    "coco.json": ("unknown", json.dumps({"images": [{"file_name": p} for p in IMAGES]})),
    "x.geojson": ("unknown", json.dumps([{"image": p} for p in IMAGES])),
    "labels.mat": ("unknown", b"MATLAB 5.0 MAT-file\0\1\2"),
    "labels.npy": ("unknown", b"\x93NUMPY\1\0"),
    "labels.xml": ("unknown", "<a>img_000.jpg</a>"),
    "binary.txt": ("unknown", b"\0\1\2\3"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_are_told_by_name_and_text(tmp_path: Path, name: str) -> None:
    kind, content = FILES[name]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert describe_list(path, IMAGES) == kind
