"""Checks of GPUs and of the driver, on machines that are not there."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from support.fake_devices import GIB, gpu_uuid, seen

from shoal.checks.resources import check_driver, check_gpu
from shoal.cli.parse import parse_train
from shoal.machine import gpu_health
from shoal.machine.gpu_health import GpuState
from shoal.plan.training import TrainPlan, plan_training

if TYPE_CHECKING:
    from shoal.checks.findings import Finding

MIB = 2**20
NAME = "GPU 0 (NVIDIA H200)"


def plan_on_gpus(*words: str) -> TrainPlan:
    return plan_training(parse_train([*words]), {}, seen(2))


def fields(finding: Finding) -> tuple[str, str, bool]:
    return finding.level, finding.sentence, finding.transient


# GPUs -------------------------------------------------------------------------------------------------------------

IDLE = GpuState(
    index=0, name="NVIDIA H200", uuid=gpu_uuid(0), total_bytes=141 * GIB, free_bytes=141 * GIB, compute_mode="default"
)
OTHER = "python (process 77, 3.0 GiB)"


def findings(workers: int = 1, *, plan: TrainPlan | None = None, **state: Any) -> list[tuple[str, str, bool]]:
    """What is found of an idle GPU with these changes."""
    plan = plan or plan_on_gpus("Cartpole-Swingup", "--num-envs", "1")
    return [fields(finding) for finding in check_gpu(dataclasses.replace(IDLE, **state), workers, plan)]


def test_an_idle_healthy_gpu_has_no_findings() -> None:
    assert findings() == []
    assert findings(4) == []


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
            {"free_bytes": 199 * MIB, "holders": f"process 9 (4.0 GiB), {OTHER}, process 8"},
            1,
            (
                "problem",
                (
                    f"{NAME} has 199 MiB of memory free, held by process 9 (4.0 GiB), python (process 77, 3.0 GiB), "
                    "process 8, but a worker with 1 environment takes at least 200 MiB: end what holds it, or pass "
                    "other --gpu-ids."
                ),
                True,
            ),
        ),
        (
            {"total_bytes": 300 * MIB, "free_bytes": 300 * MIB},
            2,
            (
                "problem",
                (
                    f"{NAME} has 300 MiB of memory free, but 2 workers with 1 environment each take at least "
                    "400 MiB: pass other --gpu-ids."
                ),
                False,
            ),
        ),
        (
            {"holders": OTHER},
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
            ("note", f"{NAME} waits for a reset to replace broken memory: reset it when it is idle.", False),
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
def test_faults_of_a_gpu_are_reported(state: dict[str, Any], workers: int, expected: tuple[str, str, bool]) -> None:
    assert findings(workers, **state) == [expected]


ROUGH = "Quadruped-Velocity-Rough"
SMALL_GPU: dict[str, Any] = {"total_bytes": 24 * GIB, "free_bytes": 23 * GIB}
# Of each environment 203,000 bytes, and 24 steps of 330 + 7 numbers of 4 bytes: 235,352. 200 MiB are for a context.


@pytest.mark.parametrize(
    ("flags", "workers", "state", "expected"),
    [
        # 262,144 * 235,352 + 200 MiB are 57.7 GiB. (23 GiB - 200 MiB) / 235,352 are 104,041.4.
        (
            ("--num-envs", "262144"),
            1,
            {},
            (
                f"{NAME} has 23.0 GiB of memory free, but a worker with 262,144 environments takes at least 57.7 GiB: "
                "pass --num-envs 104041 or fewer."
            ),
        ),
        # (11.5 GiB - 200 MiB) / 235,352 are 51,575.2.
        (
            ("--gpu-ids", "0", "--nproc-per-node", "2", "--num-envs", "131072"),
            2,
            {},
            (
                f"{NAME} has 23.0 GiB of memory free, but 2 workers with 131,072 environments each take at least "
                "57.8 GiB: pass --num-envs 51575 or fewer."
            ),
        ),
        (
            ("--gpu-ids", "0", "1", "--num-envs-total", "524288"),
            1,
            {},
            (
                f"{NAME} has 23.0 GiB of memory free, but a worker with 262,144 environments takes at least 57.7 GiB: "
                "pass --num-envs-total 208082 or fewer."
            ),
        ),
        (
            ("--num-envs", "262144"),
            1,
            {"total_bytes": 80 * GIB, "holders": OTHER},
            (
                f"{NAME} has 23.0 GiB of memory free, held by python (process 77, 3.0 GiB), but a worker with 262,144 "
                "environments takes at least 57.7 GiB: end what holds it, or pass --num-envs 104041 or fewer."
            ),
        ),
        (
            ("--num-envs", "1"),
            1,
            {"free_bytes": 199 * MIB},
            (
                f"{NAME} has 199 MiB of memory free, but a worker with 1 environment takes at least 200 MiB: "
                "end what holds it, or pass other --gpu-ids."
            ),
        ),
    ],
)
def test_more_environments_than_fit_are_refused_with_the_number_that_fits(
    flags: tuple[str, ...], workers: int, state: dict[str, Any], expected: str
) -> None:
    (found,) = findings(workers, plan=plan_on_gpus(ROUGH, *flags), **(SMALL_GPU | state))
    assert found == ("problem", expected, "end what holds it" in expected)


def test_the_number_of_environments_that_fits_is_not_refused() -> None:
    plan = plan_on_gpus(ROUGH, "--num-envs", "104041")
    assert findings(plan=plan, **SMALL_GPU) == []
    assert (
        len(
            findings(
                plan=dataclasses.replace(plan, config=dataclasses.replace(plan.config, num_envs=104042)), **SMALL_GPU
            )
        )
        == 1
    )


def test_an_exclusive_gpu_takes_one_worker_while_it_is_idle() -> None:
    assert findings(compute_mode="exclusive process") == []
    level, _, transient = findings(compute_mode="exclusive process", holders=OTHER)[0]
    assert (level, transient) == ("problem", True)


# The driver -------------------------------------------------------------------------------------------------------

BUILT_WITH = {"torch": (13, 2), "warp-lang": (13, 4)}


@pytest.mark.parametrize(
    ("driver", "built_with", "expected"),
    [
        (("580.65.06", (13, 0)), BUILT_WITH, ("ok", "580.65.06, which supports CUDA 13.0.")),
        # A forward-compatibility package.
        (("550.54.14", (13, 0)), BUILT_WITH, ("ok", "550.54.14, which supports CUDA 13.0.")),
        (("550.54.14", (12, 4)), {"torch": (12, 8)}, ("ok", "550.54.14, which supports CUDA 12.4.")),
        (("580.65.06", None), BUILT_WITH, ("ok", "580.65.06.")),
        (
            ("550.54.14", (12, 4)),
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
            ("575.64", None),
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
            ("580.65.06", (13, 0)),
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
            ("535.104.05", (12, 2)),
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
    driver: tuple[str, tuple[int, int] | None],
    built_with: dict[str, tuple[int, int]],
    expected: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_health, "read_driver", lambda: gpu_health.Driver(*driver))
    monkeypatch.setattr(gpu_health, "read_built_with", lambda: built_with)
    (finding,) = check_driver()
    assert (finding.level, finding.sentence) == expected
    level = "note" if expected[0] == "problem" else expected[0]
    assert finding.as_note() == dataclasses.replace(finding, level=level)
