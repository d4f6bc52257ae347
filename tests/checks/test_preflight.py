"""What is made sure of before a worker starts: every refusal and every note, on machines that are and are not there."""

from __future__ import annotations

import dataclasses
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from support.fake_devices import GIB, gpu_uuid, machine, seen, whole_gpu
from support.fake_slurm import task_environment
from support.mounts import tiny_disk
from support.refusals import TORCHRUN as LAUNCHED

from shoal.checks import preflight
from shoal.cli.parse import parse_train
from shoal.commands.train import make_plan
from shoal.errors import InterruptedRunError, MachineBusyError, UsageError
from shoal.machine import gpu_health, host
from shoal.machine.gpu_health import GpuState
from shoal.machine.gpus import resolve
from shoal.machine.host import Memory
from shoal.plan.resume import Start
from shoal.plan.rundir import RunDir
from shoal.plan.training import TrainPlan, plan_training

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.machine.gpus import VisibleGpus

MIB = 2**20
TORCHRUN = LAUNCHED | {"MASTER_ADDR": "nowhere.invalid"}


def plan_of(*words: str, gpus: VisibleGpus | None = None, environ: dict[str, str] | None = None) -> TrainPlan:
    return plan_training(parse_train(["Cartpole-Swingup", *words]), environ or {}, gpus or seen(0))


IDLE = GpuState(
    index=0, name="NVIDIA H200", uuid=gpu_uuid(0), total_bytes=141 * GIB, free_bytes=141 * GIB, compute_mode="default"
)
OTHER = "python (process 77, 3.0 GiB)"
BUILT_WITH = {"torch": (13, 2), "warp-lang": (13, 4)}


# The whole --------------------------------------------------------------------------------------------------------


def test_a_machine_that_has_all_gets_no_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=8 * GIB))
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path))
    assert preflight.preflight(plan, {"WARP_CACHE_PATH": str(tmp_path)}, seen(0)) == ()


def test_it_takes_a_fraction_of_a_second_and_no_torch(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from shoal.cli.parse import parse_train; from shoal.machine.gpus import visible_gpus\n"
        "from shoal.plan.training import plan_training; from shoal.checks.preflight import preflight\n"
        "gpus = visible_gpus(); plan = plan_training(parse_train(sys.argv[1:]), os.environ, gpus)\n"
        "started = time.process_time(); preflight(plan, os.environ, gpus)\n"
        "print(time.process_time() - started, 'torch' in sys.modules)"
    )
    words = ["Cartpole-Swingup", "--gpu-ids", "None", "--log-root", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    seconds, has_torch = done.stdout.split()
    assert float(seconds) < 0.2
    assert has_torch == "False"


def test_a_refusal_of_the_machine_is_a_refusal_of_the_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=64 * 1024, free=0))
    with pytest.raises(UsageError, match=r"has 0 bytes free"):
        make_plan(parse_train(["Cartpole-Swingup", "--gpu-ids", "None", "--log-root", str(tmp_path)]))


@pytest.mark.parametrize("held", ["disk", "memory", "GPU"])
def test_what_another_process_may_give_back_is_worth_another_try(
    held: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = SimpleNamespace(total=GIB, free=0 if held == "disk" else GIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: disk)
    memory = Memory(total=8 * GIB, available=MIB if held == "memory" else 8 * GIB)
    monkeypatch.setattr(host, "memory", lambda: memory)
    gpu = dataclasses.replace(IDLE, free_bytes=MIB if held == "GPU" else 141 * GIB)
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda _: (gpu,))
    plan = plan_of("--gpu-ids", "0", "--log-root", str(tmp_path), gpus=seen(1))
    with pytest.raises(MachineBusyError) as refused:
        preflight.preflight(plan, {}, seen(1))
    assert refused.value.exit_code == 75


def test_a_problem_that_stays_is_refused_before_one_that_may_pass_by(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=MIB))
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda _: (dataclasses.replace(IDLE, problem="GPU is lost"),))
    plan = plan_of("--gpu-ids", "0", "--log-root", str(tmp_path), gpus=seen(1))
    with pytest.raises(UsageError, match="GPU is lost"):
        preflight.preflight(plan, {}, seen(1))


# Memory of a worker that was killed -----------------------------------------------------------------------------------


def test_memory_that_is_freed_meanwhile_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    busy, looks = dataclasses.replace(IDLE, free_bytes=MIB, holders=OTHER), iter(range(9))
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=8 * GIB))
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda _: (busy if next(looks) < 2 else IDLE,))
    plan = plan_of("--gpu-ids", "0", "--log-root", str(tmp_path), gpus=seen(1))
    preflight.wait_for_memory(plan, seen(1), lambda: None)
    assert next(looks) == 3


def test_memory_that_is_held_for_longer_ends_the_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    busy = dataclasses.replace(IDLE, free_bytes=MIB, holders=OTHER)
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=8 * GIB))
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda _: (busy,))
    plan = plan_of("--gpu-ids", "0", "--log-root", str(tmp_path), gpus=seen(1))
    with pytest.raises(MachineBusyError, match=r"held by python \(process 77, 3\.0 GiB\)"):
        preflight.wait_for_memory(plan, seen(1), lambda: None, limit_s=0.0)


def test_a_signal_ends_the_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=MIB))

    def refuse() -> None:
        raise InterruptedRunError("Ended by SIGINT.")

    with pytest.raises(InterruptedRunError):
        preflight.wait_for_memory(plan_of("--gpu-ids", "None", "--log-root", str(tmp_path)), seen(0), refuse)


# Directories ----------------------------------------------------------------------------------------------------------


def test_notes_come_behind_those_of_the_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=300 * MIB))
    plan = make_plan(parse_train(["Cartpole-Swingup", "--gpu-ids", "None", "--log-root", str(tmp_path)]))
    assert plan.notes[-1].startswith("Only 300 MiB of memory are available")


def test_only_the_gpus_of_the_plan_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []

    def states(gpus: list[gpu_health.Gpu]) -> tuple[GpuState, ...]:
        asked.extend(gpu.index for gpu in gpus)
        return tuple(dataclasses.replace(IDLE, index=gpu.index, holders=OTHER) for gpu in gpus)

    monkeypatch.setattr(gpu_health, "read_gpu_states", states)
    plan = plan_of("--gpu-ids", "2", "0", "--log-root", str(tmp_path), gpus=seen(4))
    notes = preflight.preflight(plan, {}, seen(4))
    assert asked == [0, 2]
    assert [note.partition(" (")[0] for note in notes if "also used" in note] == ["GPU 0", "GPU 2"]


def test_a_rank_of_torchrun_looks_at_its_own_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda gpus: asked.extend(gpu.index for gpu in gpus) or ())
    environ = {**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}
    preflight.preflight(plan_of("--log-root", str(tmp_path), gpus=seen(2), environ=environ), environ, seen(2))
    assert asked == [1]


def test_gpus_that_differ_are_not_surely_those_of_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lost = dataclasses.replace(IDLE, problem="GPU is lost")
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda _: (lost,))
    gpus = machine(whole_gpu(0, "NVIDIA T400"), whole_gpu(1))
    mixed = resolve(gpus, None, device_order="FASTEST_FIRST")
    plan = plan_of("--gpu-ids", "0", "--log-root", str(tmp_path), gpus=mixed)
    assert any("GPU is lost" in note for note in preflight.preflight(plan, {}, mixed))
    with pytest.raises(UsageError, match="GPU is lost"):
        preflight.preflight(plan, {}, resolve(gpus, None, device_order="PCI_BUS_ID"))


def test_a_kernel_cache_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path))
    with pytest.raises(
        UsageError, match=r"keeps compiled kernels in .*/file/k, but .*/file is no directory: set WARP_"
    ):
        preflight.preflight(plan, {"WARP_CACHE_PATH": str(tmp_path / "file" / "k")}, seen(0))


def test_a_kernel_cache_where_no_file_can_be_made_is_refused(tmp_path: Path) -> None:
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path))
    with pytest.raises(UsageError, match=r"keeps compiled kernels in /proc/k, but /proc cannot be written \(.+\): set"):
        preflight.preflight(plan, {"WARP_CACHE_PATH": "/proc/k"}, seen(0))


# Row 12: a host name that does not resolve.


def test_a_rendezvous_host_that_does_not_resolve_is_refused_within_five_seconds(tmp_path: Path) -> None:
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), environ=TORCHRUN)
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"meet at 'nowhere\.invalid' \(MASTER_ADDR\), but that name does not resolve"):
        preflight.preflight(plan, TORCHRUN, seen(0))
    assert time.monotonic() - started < 5


# Variables that a launcher has left -----------------------------------------------------------------------------------


def test_a_torchrun_whose_store_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        environ = TORCHRUN | {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), environ=environ)
        preflight.preflight(plan, environ, seen(0))
    with pytest.raises(UsageError, match=rf"^TORCHELASTIC_RUN_ID is set, .* nothing answers on port {port} of 127"):
        preflight.preflight(plan, environ, seen(0))


def test_a_step_of_srun_that_this_process_is_not_in_is_not_joined(tmp_path: Path) -> None:
    step = task_environment(0, 0, 0, hosts="a", tasks_per_node="2", tasks=2)
    environ = step | {"SLURM_TASK_PID": str(os.getppid())}
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), environ=environ)
    preflight.preflight(plan, environ, seen(0))
    for left in ("999999999", "left"):
        with pytest.raises(
            UsageError, match=rf"^SLURM_STEP_ID is set, .* \(SLURM_TASK_PID {left}\) .* unset SLURM_STEP"
        ):
            preflight.preflight(plan, environ | {"SLURM_TASK_PID": left}, seen(0))


# Row 13: directories and disks, refused by the real command ---------------------------------------------------------


def refused(where: Path, *words: str) -> str:
    """The last line of a training that is refused within two seconds of the processor's time."""
    command = [sys.executable, "-m", "shoal", "train", "Cartpole-Swingup", "--gpu-ids", "None", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr.strip().splitlines()[-1]


def test_a_log_root_on_a_read_only_mount_is_refused(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k", "ro") as where:
        last = refused(tmp_path, "--log-root", str(where / "logs"))
    assert last == (
        f"Error: --log-root asks for {where}/logs/Cartpole-Swingup, but {where} cannot be written (Read-only file "
        "system): pass a directory that you can write to."
    )


def test_a_log_root_that_takes_no_files_is_not_called_full() -> None:
    with pytest.raises(
        UsageError,
        match=r"^--log-root asks for /proc/logs/Cartpole-Swingup, but /proc cannot be written \(.+\): pass a",
    ):
        make_plan(parse_train(["Cartpole-Swingup", "--gpu-ids", "None", "--log-root", "/proc/logs"]))


def test_a_disk_without_room_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k") as where:
        last = refused(tmp_path, "--log-root", str(where))
        assert list(where.iterdir()) == []
    assert last.startswith(f"Error: The disk of {where} has 64.0 KiB free, but a checkpoint and the rest of a run take")


def test_a_run_that_goes_on_knows_the_size_of_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").write_bytes(bytes(3 * MIB))
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path))
    start = Start(model=str(checkpoint / "model.pt"), mode="continue")
    plan = dataclasses.replace(plan, continued=RunDir(tmp_path / "run"), start=start)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=3 * MIB, free=3 * MIB))
    with pytest.raises(UsageError, match=r"take 3\.1 MiB: make room"):
        preflight.preflight(plan, {}, seen(0))


def test_train_refuses_more_environments_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu_health, "read_gpu_states", lambda _: (dataclasses.replace(IDLE, total_bytes=24 * GIB, free_bytes=23 * GIB),)
    )
    plan = plan_training(
        parse_train(["Quadruped-Velocity-Rough", "--num-envs", "262144", "--log-root", str(tmp_path)]), {}, seen(2)
    )
    with pytest.raises(UsageError, match=r"takes at least 57\.7 GiB: pass --num-envs 104041 or fewer\.$"):
        preflight.preflight(plan, {}, seen(2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("environ", [{}, {**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}])
def test_a_driver_that_is_too_old_is_refused_where_gpus_are_wanted(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_health, "read_driver", lambda: gpu_health.Driver("550.54.14", (12, 4)))
    monkeypatch.setattr(gpu_health, "read_built_with", lambda: BUILT_WITH)
    on_gpus = plan_of("--log-root", str(tmp_path), gpus=seen(2), environ=environ)
    with pytest.raises(UsageError, match=r"The NVIDIA driver is 550\.54\.14, .* but CUDA 13 is needed by torch"):
        preflight.preflight(on_gpus, environ, seen(2))
    on_cpu = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), gpus=seen(2), environ=environ)
    assert not any("driver" in note for note in preflight.preflight(on_cpu, environ, seen(2)))
    assert list(tmp_path.iterdir()) == []
