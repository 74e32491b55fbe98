"""A script that `fastdata doctor` runs changes no file of its user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from doctor_helpers import script_with, watch

from fastdata.doctor import Script
from fastdata.doctor.messages import Ended, Watched
from fastdata.doctor.trials import Trials

pytestmark = pytest.mark.doctor

WAYS = {
    "open": "open('old.txt', 'w').write('lost')",
    "append": "open('old.txt', 'a').write('more')",
    "in place": "open('old.txt', 'r+').write('lost')",
    "a new file": "open('new.txt', 'x').write('new')",
    "binary": "open('old.txt', 'wb').write(b'lost')",
    "a path": "Path('old.txt').write_text('lost')",
    "a path that is opened": "Path('old.txt').open('a').write('more')",
    "a descriptor": "os.write(os.open('old.txt', os.O_WRONLY | os.O_TRUNC), b'lost')",
    "torch.save": "torch.save(model.state_dict(), 'old.txt')",
    "torch.save to a file": "torch.save(model.state_dict(), open('old.txt', 'wb'))",
    "NumPy": "np.save('new.npy', np.zeros(3))",
    "an array in a text": "np.savetxt('old.txt', np.zeros(3))",
    "removing": "os.remove('old.txt')",
    "unlinking": "Path('old.txt').unlink()",
    "renaming": "os.rename('old.txt', 'gone.txt')",
    "replacing": "open('new.txt', 'w').write('lost'); os.replace('new.txt', 'old.txt')",
    "a temporary file that is moved": (
        "f = tempfile.NamedTemporaryFile(delete=False); f.close(); os.replace(f.name, 'old.txt')\n"
        "os.chmod('old.txt', 0); assert open('old.txt').read() == ''"
    ),
    "copying": "open('new.txt', 'w').write('lost'); shutil.copyfile('new.txt', 'old.txt')",
    "moving": "shutil.move('old.txt', 'gone.txt')",
    "removing a tree": "shutil.rmtree('folder')",
    "permissions": "os.chmod('old.txt', 0)",
    "times": "os.utime('old.txt', (0, 0))",
    "truncating": "os.truncate('old.txt', 0)",
    "linking": "os.symlink('old.txt', 'link.txt')",
    "logging": "logging.FileHandler('old.txt').emit(logging.makeLogRecord({'msg': 'lost'}))",
    "safetensors": "from safetensors.torch import save_file; save_file({}, 'old.txt')",
    "a hub": (
        "os.environ['HF_HUB_OFFLINE'] = '1'; from huggingface_hub import create_repo\n"
        "create_repo('someone/something')"
    ),
    "a database of shelves": "import shelve; shelve.open('shelf', 'n')",
}


def tree(folder: Path) -> dict[str, Any]:
    """Return the files of a folder, with their times, modes and what they contain."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime, path.stat().st_mode, path.read_text())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user, in which a script is started."""
    folder = tmp_path / "home"
    (folder / "folder").mkdir(parents=True)
    (folder / "old.txt").write_text("old")
    (folder / "folder" / "inside.txt").write_text("inside")
    monkeypatch.chdir(folder)
    return folder


IMPORTS = "import logging, os, shutil, tempfile, numpy as np; from pathlib import Path"


@pytest.mark.parametrize("way", WAYS)
def test_a_way_of_writing_changes_nothing(way: str, home: Path, tmp_path: Path) -> None:
    if way in (libraries := {"safetensors": "safetensors", "a hub": "huggingface_hub"}):
        pytest.importorskip(libraries[way])
    before = tree(home)
    text = script_with(start=IMPORTS, validation=f"{WAYS[way]}")
    watched = watch(text, tmp_path, watch_only=True)
    assert tree(home) == before
    what = watched.watched if isinstance(watched, Ended) else watched
    refused = isinstance(watched, Ended) and "lets a script write nothing" in watched.why
    assert refused or isinstance(watched, Watched), watched
    assert what is not None
    assert what.blocked, "the report names what was not written"


@pytest.mark.smoke
def test_what_is_written_can_be_read_again(home: Path, tmp_path: Path) -> None:
    validation = """
        open('new.txt', 'w').write('new')
        assert open('new.txt').read() == 'new'
        assert os.path.exists('new.txt')
        assert Path('new.txt').stat().st_size == 3
        open('old.txt', 'a').write('er')
        assert Path('old.txt').read_text() == 'older'
        os.rename('new.txt', 'other.txt')
        assert open('other.txt').read() == 'new'
    """
    before = tree(home)
    watched = watch(script_with(start=IMPORTS, validation=validation), tmp_path, watch_only=True)
    assert isinstance(watched, Watched), watched
    assert not watched.failed
    assert tree(home) == before


def test_files_of_one_name_stay_apart_when_another_is_removed(home: Path, tmp_path: Path) -> None:
    validation = """
        for place in ('a.txt', 'folder/b.txt'):
            open(place, 'w').write(place)
        os.remove('a.txt')
        open('b.txt', 'w').write('another')
        assert open('folder/b.txt').read() == 'folder/b.txt'
    """
    watched = watch(script_with(start=IMPORTS, validation=validation), tmp_path, watch_only=True)
    assert isinstance(watched, Watched), watched
    assert not watched.failed


def test_deep_folders_are_looked_at_once_each(home: Path, tmp_path: Path) -> None:
    validation = """
        open('new.txt', 'w').close()
        assert not os.path.exists('deep/' * 40 + 'file')
    """
    (home / ("deep/" * 40)).mkdir(parents=True)
    watched = watch(script_with(start=IMPORTS, validation=validation), tmp_path, watch_only=True)
    assert isinstance(watched, Watched), watched
    assert not watched.failed


def test_temporary_folders_work(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    validation = f"""
        with tempfile.TemporaryDirectory(dir={str(scratch)!r}) as folder:
            torch.save(model.state_dict(), folder + '/x.pt')
            model.load_state_dict(torch.load(folder + '/x.pt', weights_only=True))
        assert not os.path.exists(folder)
    """
    text = script_with(start=f"{IMPORTS}; import tempfile", validation=validation)
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched), watched
    assert not watched.failed
    assert not watched.blocked


def test_trackers_are_switched_off(tmp_path: Path) -> None:
    start = "import os; assert os.environ['WANDB_MODE'] == 'disabled'"
    assert isinstance(watch(script_with(start=start), tmp_path, watch_only=True), Watched)


def test_folders_are_made_renamed_and_removed_for_the_script_alone(
    home: Path, tmp_path: Path
) -> None:
    validation = """
        os.makedirs('runs/one', exist_ok=True)
        os.makedirs(Path('runs/one'), exist_ok=True)
        Path('runs/one/log.txt.new').write_text('log')
        os.replace('runs/one/log.txt.new', 'runs/one/log.txt')
        assert os.listdir('runs') == ['one'], os.listdir('runs')
        assert os.listdir('runs/one/') == ['log.txt']
        assert [str(one) for one in Path('runs').rglob('*.txt')] == ['runs/one/log.txt']
        os.rename('runs/one', 'runs/two')
        os.rename('runs', 'others')
        assert not os.path.exists('runs')
        assert Path('others/two/log.txt').read_text() == 'log'
        folder = os.open('others', os.O_RDONLY)
        assert os.stat('two/log.txt', dir_fd=folder).st_size == 3
        descriptor = os.open('two/more.txt', os.O_WRONLY | os.O_CREAT, dir_fd=folder)
        os.write(descriptor, b'more')
        assert sorted(os.listdir('others/two')) == ['log.txt', 'more.txt']

        shutil.rmtree('folder')
        assert not os.path.exists('folder')
        os.makedirs('folder')
        assert os.listdir('folder') == []
        open('folder/inside.txt', 'x').write('another')
        assert open('folder/inside.txt').read() == 'another'
        shutil.rmtree('folder')

        os.symlink('old.txt', 'latest.txt')
        assert open('latest.txt').read() == 'old'
        os.remove('latest.txt')
        os.link('old.txt', 'linked.txt')
        open('linked.txt', 'w').write('lost')
        assert open('old.txt').read() == 'old'
        os.rename('old.txt', 'older.txt')
        assert not os.path.exists('old.txt')
        assert open('older.txt').read() == 'old'
        os.remove('older.txt')
        for wrong, error in (
            ("open('missing/file', 'w')", FileNotFoundError),
            ("open('older.txt')", FileNotFoundError),
            ("os.mkdir('others')", FileExistsError),
            ("open('others/two/log.txt', 'x')", FileExistsError),
            ("os.rmdir('others')", OSError),
            ("os.remove('missing')", FileNotFoundError),
            ("os.rename('missing', 'new')", FileNotFoundError),
            ("os.chmod('missing', 0)", FileNotFoundError),
            ("os.mkdir('missing/folder')", FileNotFoundError),
            ("os.listdir('old.txt')", FileNotFoundError),
        ):
            try:
                eval(wrong)
            except error:
                pass
            else:
                raise AssertionError(wrong)
    """
    before = tree(home)
    watched = watch(script_with(start=IMPORTS, validation=validation), tmp_path, watch_only=True)
    assert isinstance(watched, Watched), watched
    assert not watched.failed
    assert tree(home) == before


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_compilers_find_what_they_have_written(name: str, tmp_path: Path) -> None:
    """Triton loads libraries that it has written; a library is not opened by Python."""
    start = f"""
        import os, subprocess
        folder = os.environ["{name}"]
        os.makedirs(folder, exist_ok=True)
        with open(f"{{folder}}/library.so", "w") as file:
            file.write("code")
        subprocess.run(["cat", f"{{folder}}/library.so"], check=True)
    """
    path = tmp_path / "train.py"
    path.write_text(script_with(start=start))
    with Trials(Script("file", str(path)), tmp_path / "scratch") as trials:
        assert trials.watch().blocked == {}
    assert not (Path.home() / ".triton" / "library.so").exists()
