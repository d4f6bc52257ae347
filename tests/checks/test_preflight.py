"""What is made sure of before a worker starts: every refusal and every note, on machines that are and are not there."""

from __future__ import annotations

import dataclasses
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fake_devices import GIB, gpu_uuid, machine, seen, whole_gpu
from support.fake_slurm import task_environment
from support.mounts import tiny_disk
from support.refusals import TORCHRUN as LAUNCHED

from shoal.checks import preflight
from shoal.cli.parse import parse_train
from shoal.commands.train import make_plan
from shoal.errors import UsageError
from shoal.machine import gpu_health, host
from shoal.machine.gpu_health import Driver, GpuState, Holder
from shoal.machine.host import Disk, Memory
from shoal.machine.visibility import resolve
from shoal.plan.rundir import RunDir
from shoal.plan.spec import Start
from shoal.plan.training import TrainPlan, plan_training

if TYPE_CHECKING:
    from shoal.checks.findings import Finding
    from shoal.machine.visibility import VisibleGpus

MIB = 2**20
HERE = Path("/data")
SHM = preflight.SHARED_MEMORY
NAME = "GPU 0 (NVIDIA H200)"
TORCHRUN = LAUNCHED | {"MASTER_ADDR": "nowhere.invalid"}


def plan_of(*words: str, gpus: VisibleGpus | None = None, environ: dict[str, str] | None = None) -> TrainPlan:
    return plan_training(parse_train(["Cartpole-Swingup", *words]), environ or {}, gpus or seen(0))


def told(finding: Finding) -> tuple[str, str, bool]:
    return finding.level, finding.sentence, finding.transient


# Disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disk", "exactly", "expected"),
    [
        (Disk(total=GIB, free=GIB), True, ("ok", "/data has 1.0 GiB free; a checkpoint takes 10.0 MiB.", False)),
        (
            Disk(total=GIB, free=GIB),
            False,
            ("ok", "/data has 1.0 GiB free; a checkpoint takes at least 10.0 MiB.", False),
        ),
        (
            Disk(total=GIB, free=10 * MIB),
            True,
            (
                "problem",
                (
                    "The disk of /data has 10.0 MiB free, but a checkpoint and the rest of a run take 10.1 MiB: "
                    "make room, or pass --log-root with a directory on another disk."
                ),
                False,
            ),
        ),
        (
            Disk(total=GIB, free=11 * MIB),
            False,
            (
                "note",
                (
                    "The disk of /data has 11.0 MiB free, but the 4 checkpoints of this run take at least 40.0 MiB: "
                    "make room in time, or raise --agent.save-interval."
                ),
                False,
            ),
        ),
        (
            Disk(total=GIB, free=GIB, free_files=0),
            True,
            ("problem", "The disk of /data has no room for another file: remove some, or pass --log-root.", False),
        ),
        (None, True, ("note", "The room on the disk of /data cannot be told.", False)),
    ],
)
def test_a_disk_is_held_against_checkpoints(disk: Disk | None, exactly: bool, expected: tuple[str, str, bool]) -> None:
    assert told(preflight.judge_disk(HERE, disk, 10 * MIB, 4, exactly=exactly)) == expected


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (
            Memory(total=8 * GIB, available=4 * GIB, swap_free=GIB),
            ("ok", "4.0 GiB of 8.0 GiB available to this machine, and 1.0 GiB of swap.", False),
        ),
        (
            Memory(total=8 * GIB, available=GIB),
            (
                "note",
                (
                    "Only 1.0 GiB of memory are available to this machine, and 2 workers take more than 712 MiB: "
                    "watch it, since the kernel kills a worker when memory runs out."
                ),
                False,
            ),
        ),
        (
            Memory(total=8 * GIB, available=GIB // 2),
            (
                "problem",
                (
                    "512 MiB of memory are available to this machine, but 2 workers take at least 712 MiB: "
                    "end other processes, or pass fewer --nproc-per-node or --num-envs."
                ),
                True,
            ),
        ),
        (
            Memory(total=GIB // 2, available=GIB // 2, limited=True),
            (
                "problem",
                (
                    "512 MiB of memory are available to this container, but 2 workers take at least 712 MiB: "
                    "end other processes, or pass fewer --nproc-per-node or --num-envs."
                ),
                False,
            ),
        ),
        (None, ("ok", "this system does not tell.", False)),
    ],
)
def test_memory_is_held_against_workers(memory: Memory | None, expected: tuple[str, str, bool]) -> None:
    assert told(preflight.judge_memory(memory, 2, 100 * MIB)) == expected


def test_swap_lets_workers_start_that_memory_alone_would_not() -> None:
    memory = Memory(total=8 * GIB, available=GIB // 2, swap_free=GIB)
    assert preflight.judge_memory(memory, 2, 100 * MIB).level == "note"


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (GIB, ("ok", f"{SHM} has 1.0 GiB free.", False)),
        (
            64_000_000,
            (
                "note",
                (
                    f"{SHM} has 61.0 MiB free, and 2 ranks may need 64.0 MiB of it for NCCL: "
                    "enlarge it (docker run --shm-size 1g), or set NCCL_SHM_DISABLE=1."
                ),
                False,
            ),
        ),
    ],
)
def test_shared_memory_of_docker_is_too_small_for_nccl(free: int, expected: tuple[str, str, bool]) -> None:
    assert told(preflight.judge_shared_memory(Disk(total=GIB, free=free), 2)) == expected


def test_nccl_may_need_shared_memory_that_is_not_there() -> None:
    assert preflight.judge_shared_memory(None, 2).level == "note"


# GPUs -------------------------------------------------------------------------------------------------------------

IDLE = GpuState(
    index=0, name="NVIDIA H200", uuid=gpu_uuid(0), total_bytes=141 * GIB, free_bytes=141 * GIB, compute_mode="default"
)
OTHER = Holder(pid=77, name="python", memory_bytes=3 * GIB)


def judged(
    workers: int = 1, *, plan: TrainPlan | None = None, sure: bool = True, **state: Any
) -> list[tuple[str, str, bool]]:
    """What is found of an idle GPU with these changes."""
    changed = dataclasses.replace(IDLE, **state)
    return [told(finding) for finding in preflight.judge_gpu(changed, workers, plan, sure=sure)]


def test_an_idle_healthy_gpu_needs_no_word() -> None:
    assert judged() == []
    assert judged(4) == []


@pytest.mark.parametrize(
    ("state", "workers", "expected"),
    [
        (
            {"problem": "GPU is lost"},
            1,
            ("problem", f"{NAME} is unhealthy (GPU is lost): reset it or reboot, or pass other --gpu-ids.", False),
        ),
        (
            {"compute_mode": "prohibited"},
            1,
            (
                "problem",
                (
                    f"{NAME} is in compute mode 'prohibited', which lets no process use it: "
                    f"run `nvidia-smi -i {gpu_uuid(0)} -c DEFAULT` as root, or pass other --gpu-ids."
                ),
                False,
            ),
        ),
        (
            {"compute_mode": "exclusive process"},
            2,
            (
                "problem",
                (
                    f"{NAME} is in compute mode 'exclusive process', which lets one process use it, but 2 more would: "
                    f"run `nvidia-smi -i {gpu_uuid(0)} -c DEFAULT` as root, or pass other --gpu-ids."
                ),
                False,
            ),
        ),
        (
            {"free_bytes": 199 * MIB, "holders": (OTHER, Holder(pid=8), Holder(pid=9, memory_bytes=4 * GIB))},
            1,
            (
                "problem",
                (
                    f"{NAME} has 199 MiB of memory free, held by process 9 (4.0 GiB), python (process 77, 3.0 GiB), "
                    "process 8, but a worker takes at least 200 MiB: end what holds it, or pass other --gpu-ids."
                ),
                True,
            ),
        ),
        (
            {"total_bytes": 300 * MIB, "free_bytes": 300 * MIB},
            2,
            (
                "problem",
                (f"{NAME} has 300 MiB of memory free, but 2 workers take at least 400 MiB: pass other --gpu-ids."),
                False,
            ),
        ),
        (
            {"holders": (OTHER,)},
            1,
            (
                "note",
                (
                    f"{NAME} is also used by python (process 77, 3.0 GiB): "
                    "expect training to be slower, or pass other --gpu-ids."
                ),
                False,
            ),
        ),
        (
            {"uncorrected_errors": 3},
            1,
            (
                "note",
                f"{NAME} has had 3 memory errors that could not be corrected: reset it before you trust it.",
                False,
            ),
        ),
        (
            {"repair_pending": True},
            1,
            ("note", f"{NAME} waits for a reset to replace broken memory: reset it when nobody uses it.", False),
        ),
        (
            {"repair_failed": True, "uncorrected_errors": 3, "repair_pending": True},
            1,
            (
                "note",
                f"{NAME} has broken memory that can no longer be replaced: do not trust it, and have it changed.",
                False,
            ),
        ),
    ],
)
def test_what_is_wrong_with_a_gpu_is_said(state: dict[str, Any], workers: int, expected: tuple[str, str, bool]) -> None:
    assert judged(workers, **state) == [expected]


ROUGH = "Quadruped-Velocity-Rough"
SMALL_GPU: dict[str, Any] = {"total_bytes": 24 * GIB, "free_bytes": 23 * GIB}
# Of each environment 836,000 bytes, and 24 steps of 330 + 7 numbers of 4 bytes: 868,352. 200 MiB are for a context.


def plan_on_gpus(*words: str) -> TrainPlan:
    return plan_training(parse_train([*words]), {}, seen(2))


@pytest.mark.parametrize(
    ("flags", "workers", "state", "expected"),
    [
        # 65,536 * 868,352 + 200 MiB are 53.2 GiB. (23 GiB - 200 MiB) / 868,352 are 28,198.5.
        (
            ("--num-envs", "65536"),
            1,
            {},
            (
                f"{NAME} has 23.0 GiB of memory free, but a worker with 65,536 environments takes at least 53.2 GiB: "
                "pass --num-envs 28198 or fewer."
            ),
        ),
        # (11.5 GiB - 200 MiB) / 868,352 are 13,978.5.
        (
            ("--gpu-ids", "0", "--nproc-per-node", "2", "--num-envs", "32768"),
            2,
            {},
            (
                f"{NAME} has 23.0 GiB of memory free, but 2 workers with 32,768 environments each take at least "
                "53.4 GiB: pass --num-envs 13978 or fewer."
            ),
        ),
        (
            ("--gpu-ids", "0", "1", "--num-envs-total", "131072"),
            1,
            {},
            (
                f"{NAME} has 23.0 GiB of memory free, but a worker with 65,536 environments takes at least 53.2 GiB: "
                "pass --num-envs-total 56396 or fewer."
            ),
        ),
        (
            ("--num-envs", "65536"),
            1,
            {"total_bytes": 80 * GIB, "holders": (OTHER,)},
            (
                f"{NAME} has 23.0 GiB of memory free, held by python (process 77, 3.0 GiB), but a worker with 65,536 "
                "environments takes at least 53.2 GiB: end what holds it, or pass --num-envs 28198 or fewer."
            ),
        ),
        (
            ("--num-envs", "1"),
            1,
            {"free_bytes": 200 * MIB},
            (
                f"{NAME} has 200 MiB of memory free, but a worker with 1 environment takes at least 201 MiB: "
                "end what holds it, or pass other --gpu-ids."
            ),
        ),
    ],
)
def test_more_environments_than_fit_are_refused_with_the_number_that_fits(
    flags: tuple[str, ...], workers: int, state: dict[str, Any], expected: str
) -> None:
    (found,) = judged(workers, plan=plan_on_gpus(ROUGH, *flags), **(SMALL_GPU | state))
    assert found == ("problem", expected, "end what holds it" in expected)


def test_the_number_of_environments_that_fits_is_not_refused() -> None:
    plan = plan_on_gpus(ROUGH, "--num-envs", "28198")
    assert judged(plan=plan, **SMALL_GPU) == []
    assert len(judged(plan=dataclasses.replace(plan, num_envs=28199), **SMALL_GPU)) == 1


def test_train_refuses_more_environments_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda _: (dataclasses.replace(IDLE, **SMALL_GPU),))
    plan = plan_on_gpus(ROUGH, "--num-envs", "65536", "--log-root", str(tmp_path))
    with pytest.raises(UsageError, match=r"takes at least 53\.2 GiB: pass --num-envs 28198 or fewer\.$"):
        preflight.preflight(plan, {}, seen(2))
    assert list(tmp_path.iterdir()) == []


def test_one_worker_takes_an_exclusive_gpu_only_while_nobody_else_has_it() -> None:
    assert judged(compute_mode="exclusive process") == []
    level, _, transient = judged(compute_mode="exclusive process", holders=(OTHER,))[0]
    assert (level, transient) == ("problem", True)


def test_a_gpu_that_may_be_another_one_is_not_refused() -> None:
    level, sentence, _ = judged(sure=False, compute_mode="prohibited")[0]
    assert level == "note"
    assert "prohibited" in sentence


# The driver -------------------------------------------------------------------------------------------------------

BUILT_WITH = {"torch": (13, 2), "warp-lang": (13, 4)}


@pytest.mark.parametrize(
    ("driver", "built_with", "expected"),
    [
        (Driver(release="580.65.06", cuda=(13, 0)), BUILT_WITH, ("ok", "580.65.06, which supports CUDA 13.0.")),
        # A forward-compatibility package.
        (Driver(release="550.54.14", cuda=(13, 0)), BUILT_WITH, ("ok", "550.54.14, which supports CUDA 13.0.")),
        (Driver(release="550.54.14", cuda=(12, 4)), {"torch": (12, 8)}, ("ok", "550.54.14, which supports CUDA 12.4.")),
        (Driver(release="580.65.06"), BUILT_WITH, ("ok", "580.65.06.")),
        (
            Driver(release="550.54.14", cuda=(12, 4)),
            BUILT_WITH,
            (
                "problem",
                (
                    "The NVIDIA driver is 550.54.14, which supports CUDA 12.4, but CUDA 13 is needed by "
                    "torch (built with CUDA 13.2) and warp-lang (built with CUDA 13.4): "
                    "install driver 580 or newer, or pass --gpu-ids None to use the CPU."
                ),
            ),
        ),
        (
            Driver(release="575.64"),
            {"torch": (12, 8), "warp-lang": (13, 4)},
            (
                "problem",
                (
                    "The NVIDIA driver is 575.64, but CUDA 13 is needed by warp-lang (built with CUDA 13.4): "
                    "install driver 580 or newer, or pass --gpu-ids None to use the CPU."
                ),
            ),
        ),
        (
            Driver(release="580.65.06", cuda=(13, 0)),
            {"torch": (14, 0)},
            (
                "problem",
                (
                    "The NVIDIA driver is 580.65.06, which supports CUDA 13.0, but CUDA 14 is needed by "
                    "torch (built with CUDA 14.0): install a newer driver, or pass --gpu-ids None to use the CPU."
                ),
            ),
        ),
        (
            Driver(release="535.104.05", cuda=(12, 2)),
            {"torch": (12, 8)},
            (
                "note",
                (
                    "The NVIDIA driver is 535.104.05, which supports CUDA 12.2, and before CUDA 12.4 some steps cannot "
                    "be recorded as graphs: expect them to be slower, or update the driver."
                ),
            ),
        ),
    ],
)
def test_a_driver_has_to_support_the_major_version_of_cuda_that_packages_were_built_with(
    driver: Driver, built_with: dict[str, tuple[int, int]], expected: tuple[str, str]
) -> None:
    finding = preflight.judge_driver(driver, built_with)
    assert (finding.level, finding.sentence) == expected
    level = "note" if expected[0] == "problem" else expected[0]
    assert preflight.judge_driver(driver, built_with, wanted=False) == dataclasses.replace(finding, level=level)


@pytest.mark.parametrize("environ", [{}, {**TORCHRUN, "MASTER_ADDR": "127.0.0.1"}])
def test_a_driver_that_is_too_old_is_refused_where_gpus_are_wanted(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_health, "read_driver", lambda: Driver(release="550.54.14", cuda=(12, 4)))
    monkeypatch.setattr(preflight, "read_built_with", lambda: BUILT_WITH)
    on_gpus = plan_of("--log-root", str(tmp_path), gpus=seen(2), environ=environ)
    with pytest.raises(UsageError, match=r"The NVIDIA driver is 550\.54\.14, .* but CUDA 13 is needed by torch"):
        preflight.preflight(on_gpus, environ, seen(2))
    on_cpu = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), gpus=seen(2), environ=environ)
    assert not any("driver" in note for note in preflight.preflight(on_cpu, environ, seen(2)))
    assert list(tmp_path.iterdir()) == []


# The whole --------------------------------------------------------------------------------------------------------


def test_a_machine_that_has_all_gets_no_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=8 * GIB))
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path))
    assert preflight.preflight(plan, {"WARP_CACHE_PATH": str(tmp_path)}, seen(0)) == ()


def test_it_takes_a_fraction_of_a_second_and_no_torch(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from shoal.cli.parse import parse_train; from shoal.plan.devices import visible_gpus\n"
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
    monkeypatch.setattr(host, "disk", lambda _: Disk(total=GIB, free=0))
    with pytest.raises(UsageError, match=r"has 0 bytes free"):
        make_plan(parse_train(["Cartpole-Swingup", "--gpu-ids", "None", "--log-root", str(tmp_path)]))


def test_notes_come_behind_those_of_the_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "memory", lambda: Memory(total=8 * GIB, available=300 * MIB))
    plan = make_plan(parse_train(["Cartpole-Swingup", "--gpu-ids", "None", "--log-root", str(tmp_path)]))
    assert plan.notes[-1].startswith("Only 300 MiB of memory are available")


def test_only_the_gpus_of_the_plan_are_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []

    def states(gpus: list[gpu_health.Gpu]) -> tuple[GpuState, ...]:
        asked.extend(gpu.index for gpu in gpus)
        return tuple(dataclasses.replace(IDLE, index=gpu.index, holders=(OTHER,)) for gpu in gpus)

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
    with pytest.raises(UsageError, match=r"keeps compiled kernels in /proc/k, but /proc (takes no file|cannot be wri)"):
        preflight.preflight(plan, {"WARP_CACHE_PATH": "/proc/k"}, seen(0))


def test_a_temporary_directory_that_was_wished_and_cannot_be_had_is_noted(tmp_path: Path) -> None:
    finding = preflight.judge_temporary({"TMPDIR": str(tmp_path / "nowhere")})
    assert finding.level == "note"
    assert finding.sentence.startswith(f"TMPDIR is {tmp_path}/nowhere, which cannot be written: temporary files go to ")


# Row 12: a host name that does not resolve.


def test_a_meeting_place_that_does_not_resolve_is_named_within_five_seconds(tmp_path: Path) -> None:
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), environ=TORCHRUN)
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"meet at 'nowhere\.invalid' \(MASTER_ADDR\), but that name does not resolve"):
        preflight.preflight(plan, TORCHRUN, seen(0))
    assert time.monotonic() - started < 5


def test_one_machine_alone_needs_no_name(tmp_path: Path) -> None:
    for words in ((), ("--nproc-per-node", "2")):
        plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path), *words)
        assert preflight.needed_names(plan, {}) == ()


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
        f"Error: --log-root asks for {where}/logs/Cartpole-Swingup, but {where} cannot be written: "
        "pass a directory that you can write to."
    )


def test_a_log_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    assert refused(tmp_path) == (
        f"Error: --log-root asks for logs/Cartpole-Swingup, but {tmp_path}/logs is no directory: "
        "pass a directory that you can write to."
    )


def test_a_disk_without_room_for_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with tiny_disk(tmp_path / "disk", "size=64k") as where:
        last = refused(tmp_path, "--log-root", str(where))
        assert list(where.iterdir()) == []
    assert last.startswith(f"Error: The disk of {where} has 64.0 KiB free, but a checkpoint and the rest of a run take")


def test_a_run_that_became_read_only_cannot_go_on(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.checkpoints_dir.mkdir(parents=True)
    assert list(preflight.judge_run_files(run)) == []
    with tiny_disk(run.checkpoints_dir, "size=64k", "ro"):
        (finding,) = preflight.judge_run_files(run)
    assert finding.level == "problem"
    assert finding.truth == f"The run {run.path} cannot go on, because checkpoints in it cannot be written"


def test_a_run_that_goes_on_knows_the_size_of_its_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = tmp_path / "run" / "checkpoints" / "000010"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").write_bytes(bytes(3 * MIB))
    plan = plan_of("--gpu-ids", "None", "--log-root", str(tmp_path))
    start = Start(model=str(checkpoint / "model.pt"), mode="continue")
    plan = dataclasses.replace(plan, continued=RunDir(tmp_path / "run"), start=start)
    monkeypatch.setattr(host, "disk", lambda _: Disk(total=GIB, free=3 * MIB))
    with pytest.raises(UsageError, match=r"take 3\.1 MiB: make room"):
        preflight.preflight(plan, {}, seen(0))
