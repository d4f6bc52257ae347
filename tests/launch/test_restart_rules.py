"""When a training starts again, after which pause, from where and with which workers: the rules, without processes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fake_devices import seen
from support.stories import Listener

from shoal.cli.parse import parse_train
from shoal.errors import TerminatedRunError, UsageError, WorkerLostError
from shoal.launch.restarts import Restarts
from shoal.plan.checkpoints import MANIFEST, MODEL, sha256
from shoal.plan.nodes import NodePlan, Nodes
from shoal.plan.training import plan_training
from shoal.signals import StopRequests
from shoal.timing import LONGEST_PAUSE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.config import TrainConfig
    from shoal.errors import ShoalError
    from shoal.machine.gpus import VisibleGpus
    from shoal.plan.rundir import RunDir
    from shoal.plan.training import TrainPlan


class Story:
    """A training that loses workers, and what is decided each time."""

    def __init__(self, run: RunDir, words: str, gpus: int = 0) -> None:
        self.run = run
        self.gpus = seen(gpus)
        plan = plan_training(parse_train(["Cartpole-Swingup", *words.split()]), {}, self.gpus)
        self.restarts = Restarts(plan)
        self.listener = Listener()
        self.stop = StopRequests()

    def save(self, iteration: int) -> None:
        path = self.run.checkpoint_dir(iteration)
        path.mkdir(parents=True)
        (path / MODEL).write_bytes(b"weights")
        told = {MODEL: {"bytes": 7, "sha256": sha256(path / MODEL)}}
        (path / MANIFEST).write_text(json.dumps({"files": told}), encoding="utf-8")

    def lose(self, rank: int | None = 0) -> TrainPlan:
        lost = WorkerLostError("Lost a rank.", rank=rank)
        with pytest.MonkeyPatch.context() as patch:
            self.surround(patch)
            return self.restarts.after(lost, self.run, self.listener, self.stop)

    def surround(self, patch: pytest.MonkeyPatch) -> None:
        """Let a restart find what the story has."""
        patch.setattr("shoal.launch.restarts.visible_gpus", lambda: self.gpus)


def test_without_the_flag_a_loss_ends_the_run_in_its_own_words(run_dir: RunDir) -> None:
    with pytest.raises(WorkerLostError, match=r"^Lost a rank\.$"):
        Story(run_dir, "--gpu-ids None").lose()


def test_the_next_launch_goes_on_from_the_newest_whole_checkpoint_in_the_same_directory(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 1")
    story.save(10)
    story.save(20)
    (run_dir.checkpoint_dir(20) / MODEL).write_bytes(b"weigh")
    plan = story.lose()
    assert (plan.continued, plan.start_iteration) == (run_dir, 10)
    assert plan.start is not None
    assert plan.start.model == str((run_dir.checkpoint_dir(10) / "model.pt").absolute())
    assert plan.start.mode == "continue"
    assert any("000020 is damaged and was passed over" in line for line in story.listener.lines)


def test_without_a_checkpoint_it_begins_again_in_the_same_directory(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 1")
    plan = story.lose()
    assert (plan.continued, plan.start, plan.start_iteration) == (run_dir, None, 0)
    said = (
        "Starting again in 1 s from the beginning: there is no checkpoint yet (try 1 of 1 without a newer checkpoint)."
    )
    assert story.listener.lines == ["Lost a rank.", said]


def test_restarts_without_progress_are_counted_and_given_up(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 2")
    story.lose()
    story.lose()
    with pytest.raises(WorkerLostError, match=r"^Lost a rank\. Gave up after 2 restarts without a newer checkpoint\.$"):
        story.lose()


def test_a_newer_checkpoint_makes_all_restarts_available_again(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 1")
    for iteration in range(1, 6):
        story.save(iteration)
        assert story.lose().start_iteration == iteration
    with pytest.raises(WorkerLostError, match="Gave up after 1 restart without"):
        story.lose()


def test_pauses_double_up_to_a_minute(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 9")
    assert story.restarts.pause_s == 0
    pauses: list[float] = []
    for _ in range(8):
        story.lose()
        pauses.append(story.restarts.pause_s)
    assert pauses == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_restart_waits_once_for_the_memory_of_the_worker_that_was_lost(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[TrainPlan] = []
    monkeypatch.setattr("shoal.launch.restarts.wait_for_memory", lambda plan, _gpus, _refuse: waited.append(plan))
    monkeypatch.setattr(Restarts, "pause_s", 0.0)
    story = Story(run_dir, "--gpu-ids None --max-restarts 9")
    story.restarts.pause(run_dir, story.stop)
    assert waited == []  # The first launch.
    plan = story.lose()
    for _ in range(2):
        story.restarts.pause(run_dir, story.stop)
    assert waited == [plan]


def test_a_signal_ends_the_pause_and_the_run(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 9")
    for _ in range(8):
        story.lose()
    story.stop.counts["SIGUSR1"] = 1
    with pytest.raises(TerminatedRunError, match="SIGUSR1 ended the run at once"):
        story.restarts.pause(run_dir, story.stop)


def test_after_a_signal_nothing_is_started_again(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --max-restarts 9")
    story.stop.counts["SIGTERM"] = 1
    with pytest.raises(WorkerLostError, match=r"^Lost a rank\.$"):
        story.lose()


def test_a_gpu_that_is_gone_takes_its_worker_along(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids all --max-restarts 1 --min-workers 2 --num-envs 100", gpus=3)
    story.gpus = without(story.gpus, 1)
    plan = story.lose(rank=1)
    # The third GPU is the second one now.
    assert (plan.devices, plan.world_size, plan.backend) == (("cuda:0", "cuda:1"), 2, "nccl")
    told = (
        "Going on with 2 of 3 workers, 100 environments each: 200 in all, 300 before. The learning rate is not changed."
    )
    assert story.listener.lines[-1] == told


def test_two_losses_of_gpus_are_followed(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids 1 2 3 --max-restarts 2 --min-workers 1", gpus=4)
    story.gpus = without(story.gpus, 0)
    assert story.lose(rank=None).devices == ("cuda:0", "cuda:1", "cuda:2")
    story.gpus = without(story.gpus, 1)
    plan = story.lose(rank=None)
    assert plan.devices == ("cuda:0", "cuda:1")
    story.save(1)
    story.gpus = without(story.gpus, 0)
    plan = story.lose(rank=None)
    assert (plan.devices, plan.backend) == (("cuda:0",), None)


@pytest.mark.parametrize(("flags", "least"), [("", 2), ("--min-workers 2", 2)])
def test_with_too_few_gpus_left_it_is_not_started_again(run_dir: RunDir, flags: str, least: int) -> None:
    story = Story(run_dir, f"--gpu-ids 0 1 --max-restarts 1 {flags}", gpus=2)
    story.gpus = without(story.gpus, 0)
    with pytest.raises(
        WorkerLostError, match=f"not started again: 1 of 2 workers are left, and {least} are needed\\.$"
    ):
        story.lose()


@pytest.mark.parametrize(
    ("total", "workers", "each", "told"),
    [(600, 3, 300, "600 in all, as before"), (500, 5, 125, "500 in all, as before"), (9, 3, 4, "8 in all, 9 before")],
)
def test_a_total_of_environments_is_kept_if_it_divides(
    run_dir: RunDir, total: int, workers: int, each: int, told: str
) -> None:
    words = f"--gpu-ids None --nproc-per-node {workers} --max-restarts 2 --min-workers 1 --num-envs-total {total}"
    story = Story(run_dir, f"{words} --agent.algorithm.num-mini-batches 1")
    story.lose(rank=2)
    plan = story.lose(rank=2)
    assert (plan.world_size, plan.config.num_envs) == (workers - 1, each)
    assert told in story.listener.lines[-1]


def test_a_learner_that_cannot_use_the_samples_of_fewer_workers_is_not_started_again(run_dir: RunDir) -> None:
    """Groups of two fill the two environments of each of three workers, but not the three of each of two."""
    words = "--gpu-ids None --nproc-per-node 3 --max-restarts 2 --min-workers 1 --num-envs-total 6"
    story = Story(run_dir, f"{words} --learner grpo --agent.group-size 2")
    assert story.lose(rank=2).config.num_envs == 2
    with pytest.raises(WorkerLostError, match=r"It was not started again: with 2 workers, --agent\.group-size 2 was"):
        story.lose(rank=2)


def test_a_rank_gives_up_its_place_only_when_it_is_lost_twice_without_progress(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids None --nproc-per-node 3 --max-restarts 9 --min-workers 2")
    assert story.lose(rank=1).world_size == 3
    assert story.lose(rank=2).world_size == 3
    story.save(5)
    assert story.lose(rank=2).world_size == 3
    assert story.lose(rank=2).world_size == 2
    assert story.lose(rank=0).world_size == 2
    assert story.lose(rank=0).world_size == 2  # No fewer than were asked for.


def test_ranks_that_are_counted_anew_are_not_taken_for_those_before(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids all --max-restarts 9 --min-workers 1", gpus=4)
    story.lose(rank=2)
    assert story.lose(rank=2).devices == ("cuda:0", "cuda:1", "cuda:3")
    # Rank 2 has the fourth GPU now, which was not lost before.
    assert story.lose(rank=2).devices == ("cuda:0", "cuda:1", "cuda:3")
    assert story.lose(rank=2).devices == ("cuda:0", "cuda:1")
    story.lose(rank=1)
    story.gpus = without(story.gpus, 0)
    assert story.lose(rank=1).devices == ("cuda:0",)  # The second, by its new name.
    assert story.lose(rank=0).devices == ("cuda:0",)


def test_two_workers_of_one_gpu_are_told_apart(run_dir: RunDir) -> None:
    story = Story(run_dir, "--gpu-ids 1 --nproc-per-node 3 --max-restarts 9 --min-workers 1", gpus=2)
    story.lose(rank=0)
    assert story.lose(rank=0).world_size == 2
    assert story.lose(rank=0).world_size == 2
    assert story.lose(rank=0).world_size == 1


def without(gpus: VisibleGpus, index: int) -> VisibleGpus:
    """The GPUs that are left, which are numbered again."""
    left = [gpu for gpu in gpus.gpus if gpu.index != index]
    return replace(gpus, gpus=tuple(replace(gpu, index=place) for place, gpu in enumerate(left)))


# Several nodes -----------------------------------------------------------------------------------------------------


class FarStory(Story):
    """A training on machines a, b and c with two workers each, of which some may be away."""

    def __init__(self, run: RunDir, words: str) -> None:
        self.away: set[str] = set()
        self.trouble: ShoalError | None = None
        self.hears = ""
        self.gone = ""
        self.run = run
        config = parse_train(["Cartpole-Swingup", "--hosts", "a", "b", "c", *words.split()])
        plan = plan_training(config, {}, seen(0), lambda: self.probe_hosts(config, raised, lambda: None))
        self.restarts = Restarts(plan)
        self.listener = Listener()
        self.stop = StopRequests()

    def surround(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            "shoal.launch.restarts.probe_hosts", lambda _environ, config, _tasks, *rest: self.probe_hosts(config, *rest)
        )
        patch.setattr("shoal.launch.restarts.LONGEST_PAUSE_S", 0.0)  # They are waited for before the probe.

    def probe_hosts(
        self, config: TrainConfig, on_missing: Callable[[ShoalError], None], check: Callable[[], None]
    ) -> Nodes:
        if self.hears:
            self.stop.counts[self.hears] = 1
            check()
        if self.trouble is not None:
            raise self.trouble
        for host in sorted(self.away):
            on_missing(WorkerLostError(f"Node {host} is away."))
        there = [host for host in config.hosts if host not in self.away]
        gpus = {host: [gpu for gpu in (f"GPU-{host}0", f"GPU-{host}1") if gpu != self.gone] for host in there}
        plans = tuple(
            NodePlan(host=host, devices=tuple(f"cuda:{each}" for each in range(len(own))), uuids=tuple(own))
            for host, own in gpus.items()
        )
        return Nodes(nodes=plans, rendezvous=f"address of {there[0]}")


def raised(error: ShoalError) -> None:
    """Take no machine for away."""
    raise error


def hosts_of(plan: TrainPlan) -> list[str]:
    """Each machine of a plan, with the number of its workers."""
    return [f"{node.host}{len(node.devices)}" for node in plan.nodes]


def test_a_machine_that_is_away_is_left_out_and_taken_back(run_dir: RunDir) -> None:
    story = FarStory(run_dir, "--max-restarts 1 --min-workers 2")
    story.away = {"a"}
    plan = story.lose(rank=None)
    assert (hosts_of(plan), plan.world_size, plan.rendezvous) == (["b2", "c2"], 4, "address of b")
    assert "Node a is away." in story.listener.lines
    assert story.listener.lines[-1].startswith("Going on with 4 of 6 workers, ")
    story.save(1)
    story.away = set()
    plan = story.lose(rank=None)
    assert (hosts_of(plan), plan.world_size) == (["a2", "b2", "c2"], 6)
    assert story.listener.lines[-1].startswith("Going on with 6 workers, ")


@pytest.mark.parametrize(("flags", "least"), [("", 6), ("--min-workers 5", 5)])
def test_with_too_few_machines_left_it_is_not_started_again(run_dir: RunDir, flags: str, least: int) -> None:
    story = FarStory(run_dir, f"--max-restarts 1 {flags}")
    story.away = {"b"}
    said = rf"It was not started again: 4 of 6 workers are left, and {least} are needed\. Node b is away\.$"
    with pytest.raises(WorkerLostError, match=said):
        story.lose(rank=None)


def test_machines_that_refuse_now_are_told_of(run_dir: RunDir) -> None:
    story = FarStory(run_dir, "--max-restarts 1 --min-workers 1")
    story.trouble = UsageError("Node b differs.")
    with pytest.raises(WorkerLostError, match=r"0 of 6 workers are left, and 1 are needed\. Node b differs\.$"):
        story.lose(rank=None)


def test_a_rank_that_is_lost_twice_gives_up_its_place_on_its_machine(run_dir: RunDir) -> None:
    story = FarStory(run_dir, "--max-restarts 9 --min-workers 3")
    assert hosts_of(story.lose(rank=3)) == ["a2", "b2", "c2"]
    plan = story.lose(rank=3)  # b's second
    assert (hosts_of(plan), plan.devices, plan.world_size) == (
        ["a2", "b1", "c2"],
        ("cuda:0", "cuda:1", "cuda:0", "cuda:0", "cuda:1"),
        5,
    )
    story.save(1)
    story.lose(rank=2)
    plan = story.lose(rank=2)  # b's first, so that nobody is left there
    assert (hosts_of(plan), plan.world_size) == (["a2", "c2"], 4)


def test_ranks_of_machines_that_are_counted_anew_are_not_taken_for_those_before(run_dir: RunDir) -> None:
    story = FarStory(run_dir, "--max-restarts 9 --min-workers 1")
    story.lose(rank=3)
    assert hosts_of(story.lose(rank=3)) == ["a2", "b1", "c2"]
    assert hosts_of(story.lose(rank=3)) == ["a2", "b1", "c2"]  # c's first, which was not lost before.
    story.away = {"a"}
    assert hosts_of(story.lose(rank=None)) == ["b1", "c2"]
    story.gone = "GPU-c0"
    plan = story.lose(rank=1)
    assert hosts_of(plan) == ["b1", "c1"]
    assert hosts_of(story.lose(rank=1)) == ["b1", "c1"]  # c's second, which has the same number now.
    assert hosts_of(story.lose(rank=1)) == ["b1"]
    story.gone = ""
    story.save(1)
    assert hosts_of(story.lose(rank=None)) == ["b1", "c1"]  # c's first is back; its second stays left out.


def test_a_signal_ends_the_look_at_machines_and_the_run(run_dir: RunDir) -> None:
    story = FarStory(run_dir, "--max-restarts 1")
    story.hears = "SIGTERM"
    with pytest.raises(TerminatedRunError, match="SIGTERM ended the run at once"):
        story.lose(rank=None)
