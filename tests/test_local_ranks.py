"""``num_workers="auto"`` shares the cores out over the ranks of a machine, however started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastdata.processes import ranks, resources
from fastdata.processes.resources import cores_of_rank, default_workers, local_processes

LAUNCHERS = ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "OMPI_", "MPI_", "MV2_")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "1"}, 4),
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3", "OMPI_COMM_WORLD_SIZE": "12"}, 3),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"MV2_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        # The script of sbatch, which is no task of srun, and an interactive shell.
        (
            {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "4"}
            | {"SLURM_TASKS_PER_NODE": "4", "SLURM_NTASKS": "4"},
            1,
        ),
        ({"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_NTASKS_PER_NODE": "4"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NTASKS_PER_NODE": "8"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_NODEID": "1"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "2"}, 3),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "7"}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "nonsense"}, 1),
    ],
)
def test_launchers_say_how_many_ranks_there_are(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: int
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert local_processes() == expected


@pytest.mark.parametrize(
    ("cores", "environment", "expected"),
    [
        (8, {}, 8),
        (8, {"LOCAL_WORLD_SIZE": "4"}, 2),
        (8, {"LOCAL_WORLD_SIZE": "16"}, 1),
        (64, {}, 16),
        (8, {"SLURM_PROCID": "0", "SLURM_NTASKS_PER_NODE": "4"}, 8),  # sbatch without srun
        # All tasks may use all cores of the job, or each has its own already.
        (16, {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
        (4, {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
        (8, {"SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
    ],
)
def test_workers_are_shared_out_over_the_ranks_of_a_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, environment: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(resources, "available_cores", lambda: cores)
    monkeypatch.setattr(resources, "cpu_quota", lambda: None)
    if "SLURM_STEP_TASKS_PER_NODE" in environment:
        monkeypatch.setenv("SLURM_PROCID", "0")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_workers() == expected


def test_a_quota_is_shared_by_ranks_that_have_cores_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resources, "available_cores", lambda: 8)
    monkeypatch.setattr(resources, "ranks_on_these_cores", lambda local, cores: 1)
    monkeypatch.setattr(resources, "cpu_quota", lambda: 12.0)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cores_of_rank() == 3


def test_a_world_of_one_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_relatives", None)
    assert local_processes() == 1


# -- real launchers ------------------------------------------------------------------------------

SHOW = """
import os, time
from fastdata.processes import resources

def show(folder):
    resources.available_cores = lambda: 8
    line = f"{resources.local_processes()} {resources.default_workers()}"
    open(os.path.join(folder, str(os.getpid())), "w").write(line)
"""

SPAWN = """
import os, sys
import torch.distributed as dist, torch.multiprocessing as mp
from show import show

def train(rank, folder, method):
    dist.init_process_group("gloo", f"file://{folder}.store", rank=rank, world_size=2)
    if rank == 1:  # it may come whenever it likes: no rank waits for another
        dist.barrier()
    show(folder)
    if rank == 0:
        dist.barrier()
    dist.barrier()  # neither ends before the other one has looked
    dist.destroy_process_group()

if __name__ == "__main__":
    folder, method = sys.argv[1:]
    mp.start_processes(train, (folder, method), nprocs=2, start_method=method)
"""

LIGHTNING = """
import sys
import lightning, torch
from show import show

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
    def train_dataloader(self):
        show(sys.argv[1])
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 1)))

trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=sys.argv[2], max_steps=1,
    logger=False, enable_checkpointing=False, enable_progress_bar=False)
if __name__ == "__main__":
    trainer.fit(Model())
"""


def said(folder: Path, program: str, *command: str) -> list[str]:
    """Run a program in a folder with ``show.py``; return what its processes said."""
    (folder / "show.py").write_text(SHOW)
    (folder / "train.py").write_text(program)
    (folder / "out").mkdir()
    ended = subprocess.run(
        [*command[:-1], sys.executable, "train.py", str(folder / "out"), command[-1]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [path.read_text() for path in sorted((folder / "out").iterdir())]


@pytest.mark.ranks
@pytest.mark.timeout(400)
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_of_torch_multiprocessing_are_counted(tmp_path: Path, method: str) -> None:
    assert said(tmp_path, SPAWN, method) == ["2 4"] * 2


@pytest.mark.clients
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_of_lightnings_launchers_are_counted(tmp_path: Path, strategy: str) -> None:
    pytest.importorskip("lightning")
    assert said(tmp_path, LIGHTNING, strategy) == ["2 4"] * 2


@pytest.mark.ranks
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("binding", "workers"), [("none", 4), ("core", 8)])
def test_ranks_of_mpirun_are_counted_and_bound_ones_keep_their_cores(
    tmp_path: Path, binding: str, workers: int
) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    if binding == "core" and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    program = "import sys, time; from show import show; show(sys.argv[1]); time.sleep(3)"
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", binding]
    assert said(tmp_path, program, *command, "-n", "2", "") == [f"2 {workers}"] * 2


@pytest.mark.ranks
@pytest.mark.timeout(400)
def test_ranks_of_torchrun_are_counted(tmp_path: Path) -> None:
    program = "import sys; from show import show; show(sys.argv[1])"
    (tmp_path / "show.py").write_text(SHOW)
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, "train.py", "out"], cwd=tmp_path, check=True, timeout=300)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["2 4"] * 2
