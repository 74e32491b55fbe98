"""Advice followed in the source: planted faults, edited away, and what is not edited."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from doctor_helpers import ANOMALIES, script_with, watch
from planted_scripts import ALWAYS, DDP, SCRIPTS, TEN, ddp_model
from selecting import mark_except

from fastdata.cli import main
from fastdata.doctor import trials
from fastdata.doctor.advice import advice_by_id
from fastdata.doctor.contract import Numerics
from fastdata.doctor.messages import Plain, Watched
from fastdata.doctor.numerics import Compared
from fastdata.doctor.patching import CannotApplyError, apply_advice, patch
from fastdata.doctor.script import Script
from fastdata.doctor.trials import Trial, Trials
from fastdata.errors import MissingExtraError, OptionError
from fastdata.measuring.windows import rate_of
from fastdata.processes.resources import available_cores

edits = pytest.importorskip("fastdata.doctor.edits", exc_type=ImportError)

STATEMENTS = {
    "step": """
        optimizer.zero_grad()
        output = model(x)
        # of images
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
    """
}

EDITED = {
    "D01": STATEMENTS,
    "D02": {},
    "D03": SCRIPTS["channels first"],
    "D04": {},
    "D05": {},
    "D06": SCRIPTS["an optimiser that is not fused"],
    "D07": SCRIPTS["gradients of zeros, of the model"],
    "D08": SCRIPTS["a bias before a normalisation"],
    "D09": SCRIPTS["anomaly detection, a context"],
    "D10": SCRIPTS["validation that records"],
    "D13": SCRIPTS["clipping one by one"],
    "D15": SCRIPTS["an activation that copies"],
    "D17": {"start": f"torch.set_num_threads({available_cores() + 1})"},
    "D21": SCRIPTS["a copy that blocks"],
    "D22": SCRIPTS["batches that are not pinned"],
    "D26": {"start": DDP, "model": ddp_model("find_unused_parameters=True)")},
    "D27": {"start": DDP, "model": ddp_model("find_unused_parameters=True)")},
    "D30": SCRIPTS["a profiler"],
    "D33": SCRIPTS["Adam with decay"],
    "D34": SCRIPTS["deterministic algorithms"],
    "D37": SCRIPTS["gradients that are cleared late"],
    "D41": SCRIPTS["clipping of scaled gradients"],
    "D42": SCRIPTS["clipping before the backward pass"],
    "D43": SCRIPTS["two steps"],
    "D44": SCRIPTS["a schedule that steps first"],
    "D45": SCRIPTS["gradients that are never cleared"],
    "D46": SCRIPTS["validation that trains"],
    "D47": SCRIPTS["training in evaluation mode"],
    "D49": SCRIPTS["validation without autocast"],
}


def seen(text: str, folder: Path, **request: object) -> Watched:
    watched = watch(text, folder, watch_only=True, **request)
    assert isinstance(watched, Watched), watched
    return watched


def ids_of(watched: Watched) -> set[str]:
    return {finding.id for finding in watched.findings}


def test_each_edit_has_a_script_here() -> None:
    assert EDITED.keys() == edits.EDITS.keys()


@pytest.mark.parametrize("id", mark_except({"D08", "D22", "D44"}, pytest.mark.doctor, EDITED))
def test_what_was_planted_is_edited_away(id: str, tmp_path: Path) -> None:
    text = script_with(**EDITED[id])
    before = seen(text, tmp_path)
    made = patch(before.findings, [id], unsafe=True)
    [(path, after)] = made.after.items()
    # The file stays, and Python reads the patched text in its place.
    found = ids_of(seen(text, tmp_path, sources=((path, after),)))
    assert id not in found
    assert found - ids_of(before) <= ALWAYS


@pytest.mark.doctor
def test_several_edits_of_a_file_are_one_patch(tmp_path: Path) -> None:
    ids = ["D03", "D06", "D07", "D08", "D09", "D10", "D13", "D15"]
    before = seen(TEN, tmp_path)
    made = patch(before.findings, ids)
    [after] = made.after.values()
    found = ids_of(seen(after.decode(), tmp_path))
    assert not found & set(ids)
    (tmp_path / "train.py").write_text(TEN)
    done = subprocess.run(
        ["git", "apply", "-p1", "--unsafe-paths", "--directory=/"],
        input=made.diff().encode(),
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "train.py").read_bytes() == after


# -- what an edit does to a text -------------------------------------------------------------

HEAD = "import torch\nfrom torch import nn, optim\nfrom torch.optim import AdamW as Best\n"

TEXTS = {
    "an argument in a line": ("D06", "o = optim.SGD(p, 0.1)", "o = optim.SGD(p, 0.1, fused=True)"),
    "an alias": ("D06", "o = Best(p)", "o = Best(p, fused=True)"),
    "an argument below others": (
        "D06",
        "o = Best(\n    p,  # of all\n    lr=1,  # small\n)  # end",
        "o = Best(\n    p,  # of all\n    lr=1,  # small\n    fused=True,\n)  # end",
    ),
    "no comma at the end": (
        "D06",
        "o = Best(\n    p,\n    lr=1  # small\n)",
        "o = Best(\n    p,\n    lr=1,  # small\n    fused=True\n)",
    ),
    "a value that is written": ("D06", "o = Best(p, fused=False)", "o = Best(p, fused=True)"),
    "what excludes it": ("D06", "o = Best(p, foreach=True)", "o = Best(p, fused=True)"),
    "what excludes it, before": (
        "D06",
        "o = Best(p, foreach=True, fused=None, lr=1)",
        "o = Best(p, fused=True, lr=1)",
    ),
    "an argument by its position": ("D08", "nn.Linear(3, 4, True)", "nn.Linear(3, 4, False)"),
    "no arguments": ("D15", "a = nn.ReLU( )", "a = nn.ReLU( inplace=True)"),
    "a default is left out": ("D07", "o.zero_grad(set_to_none=False)", "o.zero_grad()"),
    "the last of a list": (
        "D13",
        "nn.utils.clip_grad_norm_(\n    p,\n    1.0,\n    foreach=False,\n)",
        "nn.utils.clip_grad_norm_(\n    p,\n    1.0,\n)",
    ),
    "a flag": (
        "D09",
        "torch.autograd.set_detect_anomaly(mode=True)",
        "torch.autograd.set_detect_anomaly(mode=False)",
    ),
    "a context with comments": (
        "D09",
        "# before\nwith torch.autograd.detect_anomaly():\n    # in\n    a = '''\n  b'''\n"
        "    # end\n# after\nc = 1",
        "# before\n# in\na = '''\n  b'''\n# end\n# after\nc = 1",
    ),
    "one of two contexts": (
        "D09",
        "with torch.autograd.detect_anomaly(), open('x') as f:\n    pass",
        "with open('x') as f:\n    pass",
    ),
    "a context in a line": ("D30", "with torch.profiler.profile(): f()", "f()"),
    "a flag before a model": (
        "D02",
        "# the model\nm = Linear(3)",
        '# the model\ntorch.set_float32_matmul_precision("high")\nm = Linear(3)',
    ),
    "a flag that is off": (
        "D04",
        "torch.backends.cudnn.benchmark = False  # Linear",
        "torch.backends.cudnn.benchmark = True  # Linear",
    ),
    "a class, by its module": (
        "D33",
        "o = optim.Adam(p, weight_decay=0.1)  # SGD",
        "o = optim.AdamW(p, weight_decay=0.1)  # SGD",
    ),
    "gradients, cleared first": (
        "D37",
        "for x in y:\n    # of x\n    z = m(x)\n    o.zero_grad()\n    z.backward()",
        "for x in y:\n    o.zero_grad()\n    # of x\n    z = m(x)\n    z.backward()",
    ),
    "a validation as the training": (
        "D49",
        'with torch.autocast("cuda", torch.float16):\n    a()\nfor x in y:\n    m(x)  # Linear',
        'with torch.autocast("cuda", torch.float16):\n    a()\n'
        'with torch.autocast("cuda", torch.float16):\n    for x in y:\n        m(x)  # Linear',
    ),
    "a statement that is alone": ("D43", "if a:\n    o.step()", "if a:\n    pass"),
}
"""An ID, a text after `HEAD`, and what becomes of it."""


def edited(id: str, text: str, path: Path, line: int | None = None) -> str:
    """Return a text that is edited in its line with a call that the advice is about."""
    path.write_bytes((HEAD + text + "\n").encode())
    words = "SGD", "Best", "Linear", "ReLU", "zero_grad", "clip", "anomaly", "profile", "step()"
    lines = (HEAD + text).splitlines()
    numbers = [n for n, one in enumerate(lines, 1) if n > 3 and any(w in one for w in words)]
    where = f"{path}:{line or numbers[0]} <module>"
    made = patch([Plain(id, where, "", (), True, "", "train")], [id], unsafe=True)
    after = made.after[str(path)].decode()
    compile(after, "after", "exec")
    return after.removeprefix(HEAD).removesuffix("\n")


@pytest.mark.parametrize("name", TEXTS)
def test_an_edit_changes_what_it_is_for_and_nothing_else(name: str, tmp_path: Path) -> None:
    id, before, after = TEXTS[name]
    assert edited(id, before, tmp_path / "train.py") == after


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_encoding_line_ends_and_tabs_stay(end: str, tmp_path: Path) -> None:
    path = tmp_path / "my train.py"
    text = "# coding: latin-1\nfrom torch.optim import SGD\nif 1:\n\to = SGD(p, 0.1)  # é\n# no end"
    encoded = text.replace("\n", end).encode("latin-1")
    path.write_bytes(encoded)
    made = patch([Plain("D06", f"{path}:4 <module>", "", (), True, "", "train")], ["D06"])
    assert made.after[str(path)] == encoded.replace(b"0.1)", b"0.1, fused=True)")
    assert made.diff().encode("utf-8", "surrogateescape").count("é".encode("latin-1")) == 2
    assert made.diff().count("\n-") == made.diff().count("\n+\t") == 1


REFUSED = {
    "a factory": ("D06", "o = make(p)  # SGD", "SGD or Adam or AdamW or Adagrad is not called"),
    "of another library": ("D06", "SGD = 1\no = lib.SGD(p)", "is not called there by name"),
    "an option of the script": ("D06", "o = Best(p, fused=a.f)", "fused is not written out: it is"),
    "another option of the script": ("D06", "o = Best(p, foreach=a.f)", "foreach is not written"),
    "arguments that are unpacked": ("D06", "o = Best(p, **options)", "its arguments are unpacked"),
    "two in a line": ("D15", "a = [nn.ReLU(), nn.ReLU()]", "twice"),
    "a profiler that is used": (
        "D30",
        "with torch.profiler.profile() as prof:\n    prof.step()",
        "it has a name, prof",
    ),
    "a decay of groups": ("D33", "o = optim.Adam(p, 0.1)  # SGD", "weight_decay is no argument"),
    "gradients that are cleared after a step": (
        "D37",
        "for x in y:\n    o.step(c)\n    o.zero_grad()\n    m(x)",
        "there is a step, or a backward pass, before it",
    ),
    "an autocast of options": (
        "D49",
        "with torch.autocast(a.device):\n    b()\nfor x in y:\n    m(x)  # Linear",
        "not written out: a.device",
    ),
    "no autocast": ("D49", "for x in y:\n    m(x)  # Linear", "has no autocast, or several"),
    "a loop that trains": (
        "D10",
        "for x in y:\n    z = nn.ReLU()(x)\n    z.backward()",
        "its loop also trains: it calls z.backward",
    ),
    "no loop": ("D10", "def f():\n    return nn.ReLU()(1)", "it is in no loop"),
    "a model without a name": ("D05", "run(nn.ReLU())", "the model gets no name there"),
    "a loss in the same statement": ("D01", "nn.ReLU()(x).backward()", "make them two"),
    "a syntax error": ("D06", "o = Best(p\n=", "it cannot be parsed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_safe_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    id, text, message = REFUSED[name]
    with pytest.raises(CannotApplyError, match=rf"{id}, .*train.py:\d+ <module>: .*{message}"):
        edited(id, text, tmp_path / "train.py")


@pytest.mark.doctor
def test_layers_that_one_line_makes_are_edited_if_the_advice_is_for_all(tmp_path: Path) -> None:
    model = """
        def layers(n, norm):
            made = nn.Conv2d(n, 8, 1)
            return nn.Sequential(made, nn.BatchNorm2d(8) if norm else nn.Identity())
        model = nn.Sequential(
            layers(3, True), layers(8, {}), nn.Flatten(), nn.Linear(8 * 64, 8)
        ).to(memory_format=torch.channels_last)
    """
    every = seen(script_with(model=model.format(True)), tmp_path).findings
    assert "made = nn.Conv2d(n, 8, 1, bias=False)" in patch(every, ["D08"]).diff()
    some = seen(script_with(model=model.format(False)), tmp_path).findings
    with pytest.raises(CannotApplyError, match="the line is also of what should stay"):
        patch(some, ["D08"])


def test_a_place_that_cannot_be_edited_is_left_and_said(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + "a = Best(p)\nb = Best(**p)\n")
    plain = [Plain("D06", f"{path}:{n} <module>", "", (), True, "", "train") for n in (4, 5)]
    library = Plain("D06", f"{json.__file__}:1 load", "", (), True, "", "train")
    made = patch([*plain, library], ["D06"])
    assert "a = Best(p, fused=True)\nb = Best(**p)\n" in made.after[str(path)].decode()
    assert [one.why for one in made.left] == [
        "its arguments are unpacked (* or **)",
        "it is a library's file",
    ]


def test_edits_of_one_call_are_all_made_and_of_one_statement_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    head = HEAD + "from torch.nn.parallel import DistributedDataParallel\n"
    path.write_text(head + "m = DistributedDataParallel(m, find_unused_parameters=True)\n")
    plain = [Plain(id, f"{path}:5 <module>", "", (), True, "", "train") for id in ("D26", "D27")]
    [after] = patch(plain, ["D26", "D27"]).after.values()
    assert b"m = DistributedDataParallel(m, gradient_as_bucket_view=True)\n" in after
    moved = [Plain("D42", f"{path}:1", "", (), True, "", "train")]
    moved += [Plain("D43", f"{path}:2", "", (), True, "", "train")]
    path.write_text("clip(p)\nloss.step()\nloss.backward()\n")
    with pytest.raises(CannotApplyError, match="apply them one by one"):
        patch(moved, ["D42", "D43"], unsafe=True)


def test_a_finding_of_several_lines_is_edited_wholly_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("model = make()\nmodel(x=x)\n")
    calls = ((f"{path}:2 <module>", "model"),)
    finding = Plain("D03", f"{path}:1 <module>", "", (), True, "", "train", calls)
    other = replace(finding, id="D05", calls=())
    with pytest.raises(CannotApplyError, match="called with keywords only"):
        patch([finding, other], ["D03", "D05"])
    path.write_text("model = make()\nmodel(x=x)\nb = make()\n")
    also = replace(finding, where=f"{path}:3 <module>", calls=())
    [after] = patch([finding, also], ["D03"]).after.values()
    assert after.startswith(b"import torch\n\nmodel = make()\nmodel(x=x)\nb = make()\nb.to(")


def test_ids_that_cannot_be_applied_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="no advice 'D99'"):
        patch([], ["D99"])
    with pytest.raises(OptionError, match=r"D19 .* is not followed by an edit.*by hand"):
        patch([], ["D19"])
    for id in edits.EDITS:
        if advice_by_id(id).numerics > Numerics.ROUNDING:
            with pytest.raises(OptionError, match=rf"{id} .*with --unsafe only"):
                patch([], [id])
    with pytest.raises(CannotApplyError, match="D06 was not found"):
        patch([], ["D06"])
    monkeypatch.setitem(sys.modules, "libcst", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[doctor\]'"):
        patch([], ["D06"])


# -- writing ---------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A link to a script, and a patch of it to be made by reading alone."""
    monkeypatch.chdir(tmp_path)
    Path("real.py").write_text(HEAD + "o = optim.SGD(p, 0.1)\n")
    Path("real.py").chmod(0o750)
    Path("train.py").symlink_to("real.py")
    return Path("real.py")


def test_a_patch_is_written_through_links_with_a_backup(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = script.read_text()
    Path("real.py.orig").write_text("mine")
    arguments = ["doctor", "--no-run", "--apply", "D06"]
    assert main([*arguments, "train.py"], standalone_mode=False) == 0
    assert "+o = optim.SGD(p, 0.1, fused=True)\n" in capfd.readouterr().out
    assert script.read_text() == old
    assert main([*arguments, "--write", "--json", "train.py"], standalone_mode=False) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["backups"] == {os.path.realpath(script): f"{os.path.realpath(script)}.orig.1"}
    assert script.read_text() == old.replace("0.1)", "0.1, fused=True)")
    assert Path("train.py").is_symlink()
    assert script.stat().st_mode & 0o777 == 0o750
    assert Path("real.py.orig").read_text() == "mine"
    assert Path("real.py.orig.1").read_text() == old
    assert sorted(os.listdir()) == ["real.py", "real.py.orig", "real.py.orig.1", "train.py"]


@pytest.mark.parametrize("how", ["changed", "read-only", "stopped"])
def test_a_file_stays_as_it_is_where_a_patch_cannot_be_written(
    how: str, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = apply_advice(Script("file", "train.py"), ["D06"], run=False).patch
    if how == "changed":
        script.write_text("mine")
    elif how == "read-only":
        script.chmod(0o444)
    else:
        monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    old = script.read_text()
    message = {"changed": "has changed meanwhile", "read-only": "is read-only"}.get(how)
    with pytest.raises((CannotApplyError, KeyboardInterrupt), match=message):
        made.write()
    assert script.read_text() == old
    assert not [name for name in os.listdir() if name.endswith(".new")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--write"], "are for --apply"),
        (["--unsafe"], "are for --apply"),
        (["--apply", "D06", "--check"], "goes without"),
        (["--apply", "D01", "--no-run"], "with --unsafe only"),
    ],
)
def test_options_that_do_not_go_together(options: list[str], message: str, script: Path) -> None:
    with pytest.raises(OptionError, match=message):
        main(["doctor", *options, "train.py"], standalone_mode=False)


# -- what a patch does to the script -----------------------------------------------------------


@pytest.mark.doctor
def test_sources_take_the_place_of_files_that_are_imported(tmp_path: Path) -> None:
    beside = tmp_path / "beside.py"
    beside.write_text("import torch\ntorch.autograd.set_detect_anomaly(True)\n")
    py_compile.compile(str(beside))  # what was compiled is of the old text
    text = script_with(start=f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import beside")
    assert "D09" in ids_of(seen(text, tmp_path))
    new = b"import inspect, beside\nassert '# new' in inspect.getsource(beside)\n# new"
    sources = ((str(beside), new),)
    assert "D09" not in ids_of(seen(text, tmp_path, sources=sources))


FOUND = Plain("D06", "", "", (), True, "", "train")
NOISE = Trial(
    (), rate_of([0.97, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.02, 1.03]), numerics=Numerics.EQUAL
)
GAIN = Trial((), rate_of([1.4 + 0.01 * n for n in range(9)]), numerics=Numerics.ROUNDING)


@pytest.fixture
def watched(script: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What takes the place of runs: what is found, at first and with the patch, and trials."""
    answers: dict[str, object] = {
        "before": (FOUND,),
        "after": (),
        "trial": GAIN,
        "followed": Compared(Numerics.ROUNDING, 1e-6),
    }
    where = f"{script}:4 <module>"

    def watch(self: Trials, sources: object = None) -> Watched:
        found = answers["after" if sources else "before"]
        made = [replace(one, where=where) for one in found]  # type: ignore[attr-defined]
        return Watched(findings=tuple(made), steps=9)

    monkeypatch.setattr(Trials, "watch", watch)
    monkeypatch.setattr(Trials, "noise", lambda *_: NOISE)
    monkeypatch.setattr(Trials, "trial", lambda *_, **__: answers["trial"])
    monkeypatch.setattr(Trials, "numerics", lambda *_: answers["followed"])
    return answers


def test_a_patch_is_measured_and_then_written(
    watched: dict[str, object], script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "--apply", "D06", "--write", "train.py"]
    assert main(arguments, standalone_mode=False) == 0
    printed = capfd.readouterr()
    assert "a step is 1.44 (1.37-1.51) times as fast; the script beside itself: 1.00" in printed.err
    assert "numbers: rounding" in printed.err
    assert f"as it was: {os.path.realpath(script)}.orig" in printed.err
    assert printed.out.startswith("--- a/real.py\n+++ b/real.py\n@@ -1,4 +1,4 @@\n")
    assert "fused=True" in script.read_text()


TRAINS = replace(GAIN, numerics=Numerics.TRAINING)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"after": (FOUND,)}, "with the patch D06 is still found"),
        ({"after": (replace(FOUND, id="D45", what="never"),)}, "a mistake.*D45"),
        ({"trial": Trial((), why="RuntimeError: no")}, "patched script fails: RuntimeError: no"),
        (
            {"trial": TRAINS, "followed": Compared(Numerics.TRAINING, 1.0)},
            "computes something else",
        ),
    ],
)
def test_a_patch_that_is_not_right_is_not_written(
    answers: dict[str, object], message: str, watched: dict[str, object], script: Path
) -> None:
    old = script.read_text()
    watched |= answers
    with pytest.raises(CannotApplyError, match=message):
        main(["doctor", "--apply", "D06", "--write", "train.py"], standalone_mode=False)
    assert sorted(os.listdir()) == ["real.py", "train.py"]
    assert script.read_text() == old


def test_other_random_numbers_are_no_other_numerics(
    watched: dict[str, object], script: Path
) -> None:
    watched["trial"] = TRAINS  # as a layer without a bias draws less, and all weights differ
    applied = apply_advice(Script("file", "train.py"), ["D06"], measure=True)
    assert applied.trials["train"].numerics == Numerics.ROUNDING
    watched["followed"] = Compared(Numerics.TRAINING, 1.0)
    applied = apply_advice(Script("file", "train.py"), ["D06"], measure=True, unsafe=True)
    assert applied.trials["train"].numerics == Numerics.TRAINING


@pytest.mark.doctor
def test_sources_are_measured_beside_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "WINDOW_SECONDS", 0.02)
    monkeypatch.setattr(trials, "FRESH_PAIRS", 1)  # each takes two new processes
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # several wait for each other beside other tests
    path = tmp_path / "train.py"
    path.write_text(script_with(**ANOMALIES))
    off = path.read_bytes().replace(b"(True)", b"(False)", 1)
    with Trials(Script("file", str(path)), tmp_path / "scratch") as tried:
        trial = tried.trial((), sources={str(path): off})
        failed = tried.trial((), sources={str(path): b"raise ValueError('patched')"})
    assert trial.gain is not None
    assert 0 < trial.gain.low <= trial.gain.median <= trial.gain.high
    assert trial.numerics == Numerics.EQUAL
    assert failed.why == "ValueError: patched"
