"""From words to a configuration: the task among flags, the forms of `--gpu-ids`, and files of saved flags."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.fake_devices import machine, mig_gpu, seen

from shoal.cli.parse import parse, parse_train, split_task
from shoal.cli.registry import COMMANDS
from shoal.config import ConvertConfig, RslRlConfig
from shoal.config.plain import to_plain
from shoal.errors import UsageError
from shoal.machine.gpus import resolve
from shoal.plan.changes import flatten
from shoal.plan.rundir import RunDir
from shoal.plan.training import plan_training
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from shoal.config import ExportConfig, PlayConfig, TrainConfig

TASK = "Cartpole-Swingup"


OF_EACH_KIND = ("Cartpole-Swingup", "Quadruped-Velocity-Rough", "Hopper-v5", "G1-Velocity-Flat", "Arm-Lift-Cube")
"""Tasks whose flags are read in CI; `make test-soak` has them all."""


@pytest.mark.parametrize(
    "words",
    [
        "{task} --gpu-ids 0 1",
        "--gpu-ids 0 1 {task}",
        "--gpu-ids 0 1 --task {task}",
        "--task={task} --gpu-ids 0 1",
        "--gpu-ids 0 {task} 1",
    ],
)
@pytest.mark.parametrize("task", [TASK, "some/file.py:Task", "some/file.py"])
def test_the_task_may_stand_anywhere(words: str, task: str) -> None:
    assert split_task(words.format(task=task).split(), COMMANDS["train"]) == (task, ["--gpu-ids", "0", "1"])


@pytest.mark.parametrize(
    "line",
    [
        "--learner mine.py:Mine {task}",
        "--config x.yaml --agent.actor.class-name net.py:Net {task}",
        "--run-name Cartpole-Balance {task}",
        "--agent.teacher-task Cartpole-Balance --task {task}",
        "{task} --agent.actor.class-name net.py:Net",
    ],
)
def test_the_value_of_a_flag_is_not_the_task(line: str) -> None:
    words = line.format(task=TASK).split()
    assert split_task(words, COMMANDS["train"])[0] == TASK
    rest = [word for word in words if word not in {TASK, "--task", "--agent.teacher-task", "Cartpole-Balance"}]
    assert split_task(rest, COMMANDS["train"]) == (None, rest)


def test_words_without_a_task_have_none() -> None:
    assert split_task(["--seed", "1"], COMMANDS["train"]) == (None, ["--seed", "1"])
    assert split_task([], COMMANDS["train"]) == (None, [])


def test_the_first_word_is_the_task_whatever_it_is() -> None:
    assert split_task(["Cartpole-Swingupp", "--seed", "1"], COMMANDS["train"]) == ("Cartpole-Swingupp", ["--seed", "1"])


@pytest.mark.parametrize("flag", ["0 1", "0,1", "[0,1]", "[0, 1]", "0, 1", "all"])
def test_gpus_are_named_in_any_of_the_usual_ways(flag: str) -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", *flag.split()]), {}, seen(2))
    assert (plan.devices, plan.launch_mode, plan.backend) == (("cuda:0", "cuda:1"), "spawned", "nccl")


def test_gpus_before_the_task_are_gpus() -> None:
    plan = plan_training(parse_train(["--gpu-ids", "0", "1", TASK]), {}, seen(2))
    assert plan.devices == ("cuda:0", "cuda:1")


@pytest.mark.parametrize("word", ["None", "none"])
def test_none_means_the_cpu_even_where_there_are_gpus(word: str) -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", word]), {}, seen(2))
    assert (plan.devices, plan.launch_mode, plan.backend, plan.notes) == (("cpu",), "in process", None, ())


def test_no_flag_means_the_first_gpu() -> None:
    plan = plan_training(parse_train([TASK]), {}, seen(2))
    assert (plan.devices, plan.launch_mode) == (("cuda:0",), "in process")


def test_no_flag_and_no_gpu_means_the_cpu_and_says_so() -> None:
    plan = plan_training(parse_train([TASK]), {}, seen(0))
    assert plan.devices == ("cpu",)
    assert len(plan.notes) == 1


def test_two_workers_on_the_cpu_talk_through_gloo() -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", "None", "--nproc-per-node", "2"]), {}, seen(0))
    assert (plan.devices, plan.launch_mode, plan.backend) == (("cpu", "cpu"), "spawned", "gloo")


def test_two_workers_on_one_gpu_share_it_through_gloo() -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", "0", "--nproc-per-node", "2"]), {}, seen(1))
    assert (plan.devices, plan.launch_mode, plan.backend) == (("cuda:0", "cuda:0"), "spawned", "gloo")


def test_a_total_is_divided_among_the_workers() -> None:
    words = [TASK, "--gpu-ids", "None", "--nproc-per-node", "4", "--num-envs-total", "1024"]
    plan = plan_training(parse_train(words), {}, seen(0))
    assert (plan.config.num_envs, plan.world_size) == (256, 4)
    assert plan.summary()["samples_per_iteration"] == 1024 * plan.config.agent.num_steps_per_env


def test_as_many_mini_batches_as_samples_are_fine() -> None:
    words = [TASK, "--num-envs", "1", "--agent.num-steps-per-env", "4", "--agent.algorithm.num-mini-batches", "4"]
    assert plan_training(parse_train(words), {}, seen(0)).summary()["mini_batch_size"] == 1


@pytest.mark.parametrize(
    "task", [task if task in OF_EACH_KIND else pytest.param(task, marks=pytest.mark.soak) for task in registered()]
)
def test_the_task_decides_the_defaults_and_flags_override_them(task: str) -> None:
    spec = registered()[task]
    assert parse_train([task]) == spec.defaults()
    assert parse_train([task, "--num-envs", "8"]) == replace(spec.defaults(), num_envs=8)


def test_later_files_override_earlier_ones_and_flags_override_both(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(f"task: {TASK}\nseed: 1\nnum_envs: 16\nmax_iterations: 5\n", encoding="utf-8")
    second.write_text("seed: 2\nnum_envs: 32\n", encoding="utf-8")
    config = parse_train(["--config", str(first), f"--config={second}", "--num-envs", "64"])
    assert (config.task, config.seed, config.num_envs, config.max_iterations) == (TASK, 2, 64, 5)


def test_a_typed_number_of_environments_ends_a_saved_total(tmp_path: Path) -> None:
    saved = tmp_path / "train.yaml"
    saved.write_text(f"task: {TASK}\nnum_envs_total: 64\n", encoding="utf-8")
    assert parse_train(["--config", str(saved)]).num_envs_total == 64
    assert parse_train(["--config", str(saved), "--num-envs", "8"]).num_envs_total is None


@pytest.mark.parametrize("words", [["--save-interval", "7"], ["--save_interval=7"], ["--agent.save-interval", "7"]])
def test_the_interval_of_checkpoints_may_be_said_in_short(words: list[str]) -> None:
    assert parse_train([TASK, *words]).agent.save_interval == 7


@pytest.mark.parametrize(
    "line",
    [
        "a.pt --trust --output b.pt",
        "--trust a.pt --output b.pt",
        "--output b.pt --trust a.pt",
        "--output=b.pt a.pt --trust",
    ],
)
def test_a_file_may_stand_anywhere(line: str) -> None:
    assert parse("convert", line.split())[0] == ConvertConfig(file="a.pt", trust=True, output="b.pt")


def test_resume_latest_is_resume() -> None:
    with pytest.raises(UsageError) as plain:
        parse_train([TASK, "--resume", "--log-root", "nowhere"])
    with pytest.raises(UsageError, match=re.escape(str(plain.value))):
        parse_train([TASK, "--resume", "latest", "--log-root", "nowhere"])


def test_a_value_out_of_range_is_answered_with_the_default_of_the_task() -> None:
    with pytest.raises(UsageError, match=r"^--num-envs is -5, but must be at least 1\. The default is 512\.$"):
        parse_train([TASK, "--num-envs", "-5"])


@pytest.mark.parametrize(
    ("command", "words"),
    [("play", (TASK, "--policy", "zero", "--episodes")), ("doctor", ("--nproc-per-node",))],
)
def test_a_number_of_twenty_digits_is_refused(command: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=rf"^{words[-1]} is 9{{20}}, but must be at most 2147483647\.$"):
        parse(command, [*words, "9" * 20])


def run_of_a_task(task: str, log_root: Path) -> RunDir:
    """A run of this task, whose checkpoint is empty."""
    run = RunDir(log_root / task / "2026-01-01_00-00-00")
    checkpoint = run.checkpoint_dir(1)
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").touch()
    files = {"model.pt": {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}}
    (checkpoint / "manifest.json").write_text(json.dumps({"files": files}), encoding="utf-8")
    run.params_dir.mkdir()
    run.train_yaml.write_text(yaml.safe_dump(to_plain(parse_train([task]))), encoding="utf-8")
    return run


@pytest.mark.parametrize("trained", ["Hopper-v5", "Cartpole-Balance"])
def test_the_run_of_another_task_is_answered_with_that_task(trained: str, tmp_path: Path) -> None:
    task = "Walker2d-v5" if trained == "Hopper-v5" else TASK
    path = str(run_of_a_task(trained, tmp_path).path)
    told = rf"^The run {path} is of the task {trained}, and not of {task}: pass {trained}, or another run\.$"
    with pytest.raises(UsageError, match=told):
        parse_train([task, "--resume", path, "--log-root", str(tmp_path)])
    if task == TASK:  # The configurations of the others have the same fields.
        with pytest.raises(UsageError, match=told):
            parse("play", [task, "--checkpoint", path, "--log-root", str(tmp_path)])


def test_an_exported_policy_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").touch()
    with pytest.raises(
        UsageError, match=r"policy\.onnx is an exported policy, and a checkpoint is needed: pass .*evaluate"
    ):
        parse("play", [TASK, "--checkpoint", str(tmp_path / "policy.onnx")])


def test_bench_has_an_interval_of_checkpoints_of_its_own() -> None:
    assert parse("bench", [TASK, "--save-interval", "7"])[0].save_interval == 7


def test_bench_takes_the_tasks_number_of_environments() -> None:
    assert parse("bench", [TASK])[0].num_envs == registered()[TASK].num_envs


# What torchrun decided ------------------------------------------------------------------------------------------

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}


def test_under_torchrun_a_process_joins_as_the_rank_that_it_is() -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", "None"]), TORCHRUN, seen(0))
    assert (plan.launch_mode, plan.world_size, plan.devices, plan.backend) == ("joined", 4, ("cpu", "cpu"), "gloo")
    assert plan.rank is not None
    assert (plan.rank.rank, plan.rank.local_rank) == (3, 1)


def test_one_worker_on_each_of_two_machines_needs_a_backend() -> None:
    environ = {**TORCHRUN, "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    assert plan_training(parse_train([TASK, "--gpu-ids", "None"]), environ, seen(0)).backend == "gloo"
    assert plan_training(parse_train([TASK]), environ, seen(1)).backend == "nccl"
    part = resolve(machine(mig_gpu(0, (1, 0))), None)  # NCCL needs a whole GPU.
    assert plan_training(parse_train([TASK]), environ, part).backend == "gloo"


@pytest.mark.parametrize("words", [["--nnodes", "2"], ["--node_rank=0"], ["--master-addr", "a"], ["--master_port=1"]])
def test_a_flag_of_torchrun_is_answered_with_the_line_to_type(words: list[str]) -> None:
    flag = words[0].partition("=")[0]
    with pytest.raises(UsageError, match=rf"has no flag {flag}: type `python -m torch\.distributed\.run --nnodes=2 "):
        parse_train([TASK, *words])


def test_variables_left_over_are_noted_and_do_not_make_a_rank() -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", "None"]), {"RANK": "3", "WORLD_SIZE": "4"}, seen(0))
    assert (plan.launch_mode, plan.world_size) == ("in process", 1)
    assert plan.notes == ("RANK, WORLD_SIZE are set, but no launcher started this process: ignoring them.",)


# Rank files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "flag", "expected"),
    [
        (None, None, "<run>/torchrunx"),
        (None, "files", "files"),
        (None, "", None),
        ("other", "files", "other"),
        ("other", None, "other"),
        ("", "files", None),
    ],
)
def test_the_environment_wins_over_the_flag_and_the_flag_over_the_default(
    tmp_path: Path, variable: str | None, flag: str | None, expected: str | None
) -> None:
    environ = {} if variable is None else {"TORCHRUNX_LOG_DIR": variable}
    words = [
        TASK,
        "--gpu-ids",
        "None",
        "--nproc-per-node",
        "2",
        *([] if flag is None else ["--torchrunx-log-dir", flag]),
    ]
    plan = plan_training(parse_train(words), environ, seen(0))
    base = plan.log_base(RunDir(tmp_path), environ)
    assert (base and str(base).replace(str(tmp_path), "<run>")) == expected


@pytest.mark.parametrize(
    ("words", "num_gpus", "num_envs"),
    [
        ((), 0, 256),
        ((), 1, 4096),
        (("--gpu-ids", "0", "1"), 2, 4096),
        (("--gpu-ids", "None"), 1, 256),
        (("--num-envs", "64"), 1, 64),
        (("--learner", "fast_sac"), 1, 256),
    ],
)
def test_a_robot_has_more_environments_on_a_gpu_unless_their_number_is_given(
    words: tuple[str, ...], num_gpus: int, num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.parse.visible_gpus", lambda: seen(num_gpus))
    assert parse_train(["Quadruped-Velocity-Flat", *words]).num_envs == num_envs


def test_a_saved_configuration_keeps_its_number_of_environments_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.cli.parse.visible_gpus", lambda: seen(1))
    (tmp_path / "train.yaml").write_text("num_envs: 256\n", encoding="utf-8")
    words = ["Quadruped-Velocity-Flat", "--config", str(tmp_path / "train.yaml")]
    assert parse_train(words).num_envs == 256


def test_one_worker_has_no_rank_files() -> None:
    plan = plan_training(parse_train([TASK, "--torchrunx-log-dir", "files"]), {}, seen(0))
    assert plan.log_base(RunDir(Path("run")), {}) is None


@pytest.mark.parametrize("flag", ["--policy", "--checkpoint", "--agent"])
@pytest.mark.parametrize("kind", ["zero", "random"])
def test_actions_without_a_policy_ask_for_no_checkpoint(kind: str, flag: str, tmp_path: Path) -> None:
    words = [TASK, flag, kind, "--env.pole-mass", "0.3", "--log-root", str(tmp_path)]
    asked = parse("play", words)[0]
    assert asked.checkpoint == kind
    assert getattr(asked.env, "pole_mass") == 0.3  # noqa: B009  A field of this task's own.


# The run of another


@pytest.fixture
def another_s(tmp_path: Path) -> Path:
    """A checkpoint of a run that names a class to import."""
    run = RunDir(tmp_path / "theirs" / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text("agent: {actor: {class_name: 'evil:Model'}}\n", encoding="utf-8")
    checkpoint = run.checkpoint_dir(100)
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.pt").touch()
    (checkpoint / "manifest.json").write_text('{"files": {}}', encoding="utf-8")
    return checkpoint / "model.pt"


def actor_class(config: TrainConfig | PlayConfig | ExportConfig) -> str:
    assert isinstance(config.agent, RslRlConfig)
    return config.agent.actor.class_name


@pytest.mark.parametrize("command", ["play", "export"])
def test_a_class_of_another_s_run_is_imported_only_when_its_user_trusts_it(
    another_s: Path, tmp_path: Path, command: str
) -> None:
    words = [TASK, "--checkpoint", str(another_s), "--log-root", str(tmp_path / "mine")]
    with pytest.raises(UsageError, match=r"would import 'evil:Model' \(agent.actor.class_name\).* pass --trust"):
        parse(command, words)
    assert actor_class(parse(command, [*words, "--trust"])[0]) == "evil:Model"
    assert actor_class(parse(command, [*words[:-1], str(tmp_path)])[0]) == "evil:Model"


@pytest.mark.parametrize("task", ["Quadruped-Velocity-Rough", "G1-Velocity-Flat"])
def test_a_run_of_another_with_mirrored_copies_imports_nothing_that_its_task_does_not_name(
    task: str, another_s: Path, tmp_path: Path
) -> None:
    symmetry = "{enabled: true, use_data_augmentation: true, data_augmentation_func: 'shoal.mdp.symmetry:mirror'}"
    RunDir(another_s.parents[2]).train_yaml.write_text(
        f"agent: {{algorithm: {{symmetry: {symmetry}}}}}\n", encoding="utf-8"
    )
    words = [task, "--checkpoint", str(another_s), "--log-root", str(tmp_path / "mine")]
    config = parse("play", words)[0]
    assert isinstance(config.agent, RslRlConfig)
    assert config.agent.algorithm.symmetry.enabled


def test_a_link_below_the_log_root_does_not_make_another_s_run_one_s_own(another_s: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "theirs").symlink_to(tmp_path / "theirs")
    linked = tmp_path / "mine" / another_s.relative_to(tmp_path)
    with pytest.raises(UsageError, match="pass --trust"):
        parse("play", [TASK, "--checkpoint", str(linked), "--log-root", str(tmp_path / "mine")])[0]


def test_a_run_of_another_is_resumed_only_with_the_configuration_that_its_user_names(
    another_s: Path, tmp_path: Path
) -> None:
    run = RunDir(another_s.parents[2])
    words = [TASK, "--resume", str(run.path), "--log-root", str(tmp_path / "mine")]
    with pytest.raises(UsageError, match=r"would import 'evil:Model'.* pass --config .*train.yaml"):
        parse_train(words)
    assert actor_class(parse_train([*words, "--config", str(run.train_yaml)])) == "evil:Model"


SAVED = """
env:
  events: {push: {interval: [3, 3]}, foot_friction: {ranges: [0.3, 1.2]}}
  observations: {policy: {projected_gravity: {noise: 0.2}}}
"""
PUSH, FRICTION = "events.push.interval", "events.foot_friction.ranges"
GRAVITY, SPEEDS = "observations.policy.projected_gravity.noise", "observations.policy.joint_vel.noise"


@pytest.mark.parametrize(
    ("program", "task"), [("play", "Quadruped-Velocity-Flat"), ("evaluate", "Quadruped-Velocity-Rough")]
)
def test_a_policy_plays_without_the_pushes_and_the_noise_of_its_training(
    program: str, task: str, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / task / "2026-01-01_00-00-00")
    model = run.checkpoint_dir(1) / "model.pt"
    model.parent.mkdir(parents=True)
    model.touch()
    run.train_yaml.parent.mkdir()
    run.train_yaml.write_text(SAVED, encoding="utf-8")

    def disturbances(*words: str) -> dict[str, Any]:
        env = parse(program, [task, *words])[0].env
        found = flatten({"env": to_plain(env)})
        return {
            name.removeprefix("env."): found[name]
            for name in found
            if name.endswith((".noise", "push.interval", "friction.ranges"))
        }

    calm = disturbances("--policy", "zero")
    assert calm.pop(FRICTION) == [0.4, 1.2]
    assert calm.pop(PUSH) == [0.0, 0.0]
    assert set(calm.values()) == {0.0}
    trained = disturbances("--checkpoint", str(model))
    assert trained.pop(FRICTION) == [0.3, 1.2]  # Environments still differ.
    assert trained == calm | {PUSH: [0.0, 0.0]}
    kept = disturbances("--checkpoint", str(model), "--disturbances")
    assert (kept[PUSH], kept[GRAVITY], kept[SPEEDS]) == ([3.0, 3.0], 0.2, 1.5)
    assert disturbances("--policy", "zero", "--disturbances")[PUSH] == [4.0, 12.0]
    assert disturbances("--policy", "zero", "--env.events.push.interval", "2", "3")[PUSH] == [2.0, 3.0]


def test_numbers_by_pattern_are_one_flag_that_replaces_all_of_them() -> None:
    env: Any = parse_train(["G1-Velocity-Flat", "--env.stiffness", ".*_knee_joint", "90", "waist.*", "20.5"]).env
    assert env.stiffness == {".*_knee_joint": 90.0, "waist.*": 20.5}
    assert env.damping == parse_train(["G1-Velocity-Flat"]).env.damping  # pyright: ignore[reportAttributeAccessIssue]
    env = parse_train(["Quadruped-Velocity-Flat", "--env.actuators", ".*_hip", "velocity", ".*_calf", "none"]).env
    assert env.actuators == {".*_hip": "velocity", ".*_calf": "none"}


@pytest.mark.parametrize("words", [(".*_knee_joint",), (".*_knee_joint", "much")])
def test_a_pattern_without_a_number_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(
        UsageError, match=r"^--env\.stiffness cannot be read \(.*\): pass --env\.stiffness \[PATTERN FLOAT \.\.\.\]\.$"
    ):
        parse_train(["G1-Velocity-Flat", "--env.stiffness", *words])
