"""Communication checks on this machine: timings, and failed launches."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support import faulty_tasks
from support.fake_devices import seen

from shoal.config import DoctorConfig
from shoal.doctor import communication, context
from shoal.doctor.context import DoctorContext
from shoal.errors import TerminatedRunError, TrainingFailedError, WorkerLostError

if TYPE_CHECKING:
    from shoal.doctor.communication import Rows, Timings
    from shoal.errors import ShoalError
    from shoal.plan.training import TrainPlan

KILLED = "Lost rank 1 on localhost in collective: killed by SIGKILL. It has no checkpoint yet: start it again."
HUNG = "Rank 1 on a: no progress for 90 s in collective: its process is stopped. It has no checkpoint yet."


class Launches:
    """Stands for real launches: what each takes, and the errors of those that fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.001) -> None:
        self.plans: list[TrainPlan] = []
        self.seconds = seconds
        self.errors: dict[tuple[str | None, int], ShoalError] = {}
        monkeypatch.setattr(communication, "launch_probe", self)

    def __call__(self, plan: TrainPlan, numbers: int) -> tuple[Timings, Rows]:
        """Launch a short training."""
        self.plans.append(plan)
        error = self.errors.get((plan.backend, plan.world_size))
        if error is not None:
            raise error
        return {"latency": self.seconds, "gradient": self.seconds, "bytes": 4.0 * numbers}, []


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def fields(visible: int, **config: Any) -> list[tuple[str, str, str, bool]]:
    """What both checks find."""
    examined = DoctorContext(config=DoctorConfig(**config), environ={}, gpus=seen(visible), log=lambda _: None)
    examined.__dict__["torch"] = {}
    found = [*communication.gloo(examined), *communication.nccl(examined)]
    return [(finding.topic, finding.level, finding.sentence, finding.transient) for finding in found]


def test_as_many_ranks_as_workers_communicate(launches: Launches) -> None:
    assert fields(0, nproc_per_node=3) == [
        ("gloo, 3 ranks", "ok", "1.00 ms for a number, 1.00 ms for 1.76 MB of gradients.", False),
    ]
    assert [(plan.launch_mode, plan.devices) for plan in launches.plans] == [("spawned", ("cpu",) * 3)]


def test_gpus_communicate_through_both_backends(launches: Launches) -> None:
    assert [topic for topic, *_ in fields(3)] == ["gloo, 3 ranks", "nccl, 3 ranks"]
    assert [(plan.backend, plan.devices) for plan in launches.plans] == [
        ("gloo", ("cpu", "cpu", "cpu")),
        ("nccl", ("cuda:0", "cuda:1", "cuda:2")),
    ]


def test_one_rank_does_not_communicate(launches: Launches) -> None:
    assert fields(1, nproc_per_node=1) == []
    assert launches.plans == []


def test_slow_communication_is_noted(launches: Launches) -> None:
    launches.seconds = 0.1
    ((_, level, sentence, _),) = fields(0)
    assert level == "note"
    assert sentence.startswith("all_reduce is slow: 100.00 ms for a number, 100.00 ms for 1.76 MB of gradients: ")


def test_a_launch_that_fails_is_a_problem(launches: Launches) -> None:
    launches.errors["gloo", 4] = WorkerLostError(HUNG)
    ((topic, level, sentence, transient),) = fields(0, nproc_per_node=4)
    assert (topic, level, transient) == ("gloo", "problem", False)
    reason = "Rank 1 on a: no progress for 90 s in collective: its process is stopped"
    assert sentence.startswith(f"all_reduce through gloo failed among 4 ranks: {reason}: train with one worker, and ")


def test_a_rank_that_was_killed_is_worth_another_try(launches: Launches) -> None:
    launches.errors["nccl", 2] = WorkerLostError(KILLED)
    _, level, sentence, transient = fields(2)[-1]
    assert (level, transient) == ("problem", True)
    assert "look for what killed it" in sentence


def test_a_broken_nccl_is_answered_with_settings_to_try(launches: Launches) -> None:
    launches.errors["nccl", 2] = TrainingFailedError("it hung")
    topic, level, sentence, _ = fields(2)[-1]
    assert (topic, level) == ("nccl", "problem")
    assert sentence.startswith("all_reduce through nccl failed among 2 ranks: it hung: export NCCL_P2P_DISABLE=1 or ")


def test_a_signal_ends_the_examination(launches: Launches) -> None:
    launches.errors["gloo", 2] = TerminatedRunError("Ended by SIGTERM.")
    with pytest.raises(TerminatedRunError):
        fields(0)


@pytest.mark.spawn
@pytest.mark.slow
def test_a_rank_that_dies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "DEFAULT_TASK", f"{faulty_tasks.__file__}:DiesInStartup")
    ((topic, level, sentence, transient),) = fields(0)
    assert (topic, level, transient) == ("gloo", "problem", True)
    assert sentence.startswith("all_reduce through gloo failed among 2 ranks: Lost rank 1 on ")
    assert "killed by SIGKILL" in sentence
    assert sentence.endswith(": look for what killed it, such as the kernel when memory runs out, and try again.")


@pytest.mark.spawn
@pytest.mark.gpu(count=2, real="NCCL itself is tried")
def test_two_gpus_communicate_through_nccl() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "doctor", "--gpu-ids", "0", "1", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    levels = {finding["topic"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}
    assert levels["nccl, 2 ranks"] == "ok"
