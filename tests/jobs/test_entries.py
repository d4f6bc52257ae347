"""Jobs files: what an entry may say, the grid that its lists make, and what each job then holds."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from support.bombs import YAML

from shoal.config.evaluate import JobEntry
from shoal.config.plain import from_plain, to_plain
from shoal.errors import UsageError
from shoal.jobs.entries import Overrides, expand, read_entries, resolve_policies
from shoal.plan.job import Job
from shoal.plan.rundir import RunDir
from shoal.tasks.registry import resolve

if TYPE_CHECKING:
    from pathlib import Path

TASK = "Cartpole-Swingup"
ROUGH = "Quadruped-Velocity-Rough"
ENTRIES = [{"name": "a", "task": TASK}, {"name": "b", "task": "Cartpole-Balance", "seed": [1, 2]}]
HEAVY = ("torch", "warp", "mujoco", "rsl_rl", "tensordict", "torchrunx")

TASK_FILE = """
from dataclasses import dataclass, field
from shoal.config import EnvConfig

@dataclass(frozen=True, kw_only=True)
class Motor:
    strength_range: tuple[float, float] = (1.0, 1.0)
    gain: float = 1.0

@dataclass(frozen=True, kw_only=True)
class KiteConfig(EnvConfig):
    model_fields = ("robot",)
    robot: str = ""
    motor: Motor = field(default_factory=Motor)

class Kite:
    config = KiteConfig()
"""


def write_checkpoint(run: RunDir, iteration: int, **manifest: object) -> Path:
    """Write a valid checkpoint without weights, and return its model file."""
    model = run.checkpoint_dir(iteration) / "model.pt"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"weights")
    files = {"model.pt": {"bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}
    (model.parent / "manifest.json").write_text(json.dumps({"files": files, **manifest}), encoding="utf-8")
    return model


def damage(model: Path) -> Path:
    model.write_bytes(b"weighty")
    return model


@pytest.fixture
def run(log_root: Path) -> RunDir:
    """The newest run of the cart-pole, with three checkpoints of which the first is the best."""
    run = RunDir(log_root / TASK / "2026-01-02_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text(
        f"task: {TASK}\nlearner: fast_sac\nenv: {{pole_mass: 0.3}}\nagent: {{num_steps_per_env: 7}}\n", encoding="utf-8"
    )
    for iteration, score in ((50, 9.0), (100, 1.0), (150, 2.0)):
        write_checkpoint(run, iteration, score=score, metric="return")
    return run


@pytest.fixture
def task_file(tmp_path: Path) -> Path:
    file = tmp_path / "kites.py"
    file.write_text(TASK_FILE, encoding="utf-8")
    return file


def jobs_of(log_root: Path, task: Any = TASK, policy: Any = "zero", **keys: Any) -> list[Job]:
    """The jobs of one entry."""
    entry = from_plain(JobEntry, {"name": "walk", "task": task, "policy": policy, **keys})
    return expand([entry], log_root=str(log_root))


def policies(log_root: Path, text: str) -> list[Any]:
    return resolve_policies(str(log_root), resolve(TASK), text)


# Files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs.yaml", yaml.safe_dump(ENTRIES)),
        ("jobs.yaml", yaml.safe_dump({"jobs": ENTRIES})),
        ("jobs.json", json.dumps({"$schema": "jobs.schema.json", "jobs": ENTRIES}, indent="\t")),
    ],
)
def test_a_file_is_a_list_of_entries_or_has_one(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_entries(tmp_path / name) == [
        JobEntry(name="a", task=TASK),
        JobEntry(name="b", task="Cartpole-Balance", seed=(1, 2)),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[", r"--jobs .*jobs.yaml cannot be read \(it is no plain YAML: .*\): pass a file such as jobs.yaml"),
        *(
            (text, r"--jobs .*jobs.yaml cannot be read \(.{8,}\): pass a file such as jobs.yaml")
            for text in YAML.values()
        ),
        ("walk", r"--jobs .*jobs.yaml holds no list of entries"),
        ("[]", r"--jobs .*jobs.yaml holds no list of entries"),
        ("{job: []}", r"In .*jobs.yaml: the key 'job' is given, but .* Did you mean 'jobs'\?"),
        ("[walk]", r"In .*jobs.yaml, entry 1: JobEntry is 'walk', but must be a mapping"),
        ("[{name: a, task: b}, {task: b}]", r"In .*jobs.yaml, entry 2: the key 'name' is missing"),
        ("[{name: a}]", r"In .*jobs.yaml, entry 'a': the key 'task' is missing"),
        ("[{name: a, task: b, policies: c}]", r"entry 'a': policies is given, .* Did you mean 'policy'\?"),
        ("[{name: a, task: b, seed: -1}]", r"entry 'a': seed is -1, but must lie in"),
        ("[{name: a, task: b, seed: [1, -1]}]", r"seed is \(1, -1\), but must lie in"),
        ("[{name: a, task: b, seed: []}]", r"seed is \(\), but must lie in"),
        ("[{name: a, task: b, seed: true}]", "seed is True, but must be a whole number or a list"),
        ("[{name: a, task: []}]", r"task is \(\), but must not be empty"),
        ("[{name: a, task: b, num_envs: 0}]", "num_envs is 0, but must be at least 1. The default is 64."),
        ("[{name: a, task: b, timeout: 0}]", "timeout is 0.0, but must be above 0"),
        (
            "[{name: a, task: b, num_steps: 5, num_episodes: 6}]",
            "num_steps is 5 and num_episodes is 6, but they exclude",
        ),
        ("[{name: a, task: b}, {name: a, task: c}]", "In .*jobs.yaml: Two entries have the name 'a'"),
    ],
)
def test_a_wrong_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=sentence):
        read_entries(file)


# The grid


def test_lists_make_a_grid_whose_names_say_what_differs(log_root: Path) -> None:
    found = jobs_of(log_root, policy=["zero", "random"], seed=[1, 3], variations={"decimation": [2, 4], "gravity": 9.0})
    assert [job.name for job in found][-3:] == [
        "walk-policy2-seed1-decimation4",
        "walk-policy2-seed3-decimation2",
        "walk-policy2-seed3-decimation4",
    ]
    assert len({job.name for job in found}) == 2 * 2 * 2
    last = found[-1]
    assert (last.policy, last.seed, last.variation) == ("random", 3, {"decimation": 4, "gravity": 9.0})
    assert (last.env["decimation"], last.env["gravity"], last.env["pole_mass"]) == (4, 9.0, 0.1)


def test_a_single_value_is_not_in_the_name(log_root: Path) -> None:
    assert [job.name for job in jobs_of(log_root, seed=[2], variations={"decimation": [3]})] == ["walk"]


def test_each_task_has_its_own_environment(log_root: Path) -> None:
    swingup, balance = jobs_of(log_root, task=[TASK, "Cartpole-Balance"])
    assert (swingup.name, balance.name) == ("walk-Cartpole-Swingup", "walk-Cartpole-Balance")
    assert "centred_margin" in swingup.env
    assert "fallen_angle" in balance.env


def test_a_list_is_one_value_of_a_field_that_is_a_list(log_root: Path) -> None:
    (job,) = jobs_of(log_root, ROUGH, variations={"terrains": ["boxes", "hill"]})
    assert job.variation == {"terrains": ["boxes", "hill"]}
    found = jobs_of(log_root, ROUGH, variations={"terrains": [["boxes", "hill"], ["pit"]], "only_level": [0, None]})
    assert [job.name for job in found] == [
        *("walk-terrainsboxes_hill-only_level0", "walk-terrainsboxes_hill-only_levelnull"),
        *("walk-terrainspit-only_level0", "walk-terrainspit-only_levelnull"),
    ]
    assert found[1].env["only_level"] is None


def test_nested_fields_have_dotted_names(log_root: Path, task_file: Path) -> None:
    changes = {"motor.strength_range": [[0.8, 1.2], [0.5, 1]], "motor.gain": "1e-3"}
    wide, wider = jobs_of(log_root, f"{task_file}:Kite", variations=changes)
    assert wide.name == "walk-motor.strength_range0.8_1.2"
    assert wider.env["motor"] == {"strength_range": [0.5, 1.0], "gain": 1e-3}
    assert wider.variation == {"motor.strength_range": [0.5, 1.0], "motor.gain": 1e-3}


def test_limits_that_depend_on_one_another_change_together(log_root: Path) -> None:
    (job,) = jobs_of(log_root, ROUGH, variations={"terrain_levels": 30, "only_level": 20})
    assert (job.env["terrain_levels"], job.env["only_level"]) == (30, 20)


def test_long_values_are_numbered(log_root: Path) -> None:
    every = ["rough", "boxes", "hill", "pit", "stairs_down", "stairs_up"]
    found = jobs_of(log_root, ROUGH, variations={"terrains": [every, every[:1]]})
    assert [job.name for job in found] == ["walk-terrains1", "walk-terrains2"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [({}, (100, None)), ({"num_episodes": 7}, (7, None)), ({"num_steps": 9}, (None, 9))],
)
def test_a_job_has_one_length(log_root: Path, keys: dict[str, int], expected: tuple[int | None, int | None]) -> None:
    (job,) = jobs_of(log_root, **keys)
    assert (job.num_episodes, job.num_steps) == expected


def test_a_job_is_of_plain_values_that_come_back_from_json(log_root: Path, run: RunDir) -> None:
    (job,) = jobs_of(log_root, policy=str(run.path), variations={"decimation": 3}, timeout=5, record=True)
    assert job.timeout == 5.0
    assert from_plain(Job, json.loads(json.dumps(to_plain(job)))) == job


def test_a_control_follows_each_job_in_the_same_environments(log_root: Path, run: RunDir) -> None:
    found = jobs_of(log_root, policy=[str(run.path), "random"], control=True)
    names = ["walk-policy1", "walk-policy1-control", "walk-policy2", "walk-policy2-control"]
    assert [job.name for job in found] == names
    trained, control = found[:2]
    assert control.env["pole_mass"] == 0.3
    assert control == replace(trained, name="walk-policy1-control", policy="zero", learner=None, agent=None)


# What an entry names


def test_the_environment_and_the_learner_are_those_of_the_run(log_root: Path, run: RunDir) -> None:
    trained, zero = jobs_of(log_root, policy=["latest", "zero"])
    assert (trained.env["pole_mass"], zero.env["pole_mass"]) == (0.3, 0.1)
    assert (trained.learner, zero.learner, zero.agent) == ("fast_sac", None, None)
    assert trained.agent is not None
    assert trained.agent["num_steps_per_env"] == 7
    assert trained.policy == str(run.checkpoint_dir(150) / "model.pt")


def test_an_exported_policy_has_the_environment_of_its_run(log_root: Path, run: RunDir) -> None:
    run.exports_dir.mkdir()
    run.policy_onnx.touch()
    (job,) = jobs_of(log_root, policy=str(run.policy_onnx))
    assert (job.policy, job.env["pole_mass"], job.learner) == (str(run.policy_onnx), 0.3, None)


def test_a_checkpoint_in_no_run_has_the_learner_of_its_manifest(log_root: Path, tmp_path: Path) -> None:
    model = write_checkpoint(RunDir(tmp_path / "copied"), 10, learner="fast_sac")
    (job,) = jobs_of(log_root, policy=str(model.parent))
    assert (job.policy, job.learner) == (str(model), "fast_sac")


def test_the_pushes_and_the_noise_of_training_are_off_unless_a_variation_has_them(log_root: Path) -> None:
    calm, pushed = jobs_of(log_root, ROUGH, variations={"events.push.interval": [[0.0, 0.0], [4.0, 8.0]]})
    intervals = [job.env["events"]["push"]["interval"] for job in (calm, pushed)]
    assert intervals == [[0.0, 0.0], [4.0, 8.0]]
    noises = [each["noise"] for each in calm.env["observations"]["policy"].values()]
    assert (set(noises), calm.env["curriculum"]) == ({0.0}, False)


def test_given_configurations_replace_those_of_the_run(log_root: Path, run: RunDir) -> None:
    base = from_plain(resolve(TASK).env, {"pole_mass": 0.7, "decimation": 5})
    agent = replace(resolve(TASK).agent_of("fast_sac"), num_steps_per_env=11)
    entry = JobEntry(name="a", task=TASK, policy=str(run.path), variations={"decimation": 3})
    overrides = Overrides(env=base, agent=agent, learner="fast_sac")
    (job,) = expand([entry], log_root=str(log_root), overrides=overrides)
    assert (job.env["pole_mass"], job.env["decimation"]) == (0.7, 3)
    assert job.agent is not None
    assert job.agent["num_steps_per_env"] == 11


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("text", "iterations"),
    [
        ("latest", [150]),
        ("best", [50]),
        ("all", [50, 100, 150]),
        ("{run}", [150]),
        ("{run}/checkpoints", [50, 100, 150]),
        ("{run}/checkpoints/000100", [100]),
        ("{run}/checkpoints/000100/model.pt", [100]),
    ],
)
def test_checkpoints_are_found(log_root: Path, run: RunDir, text: str, iterations: list[int]) -> None:
    models = [run.checkpoint_dir(iteration) / "model.pt" for iteration in iterations]
    assert policies(log_root, text.format(run=run.path)) == models


def test_damaged_checkpoints_are_passed_over_and_refused_where_they_are_named(log_root: Path, run: RunDir) -> None:
    damaged = damage(run.checkpoint_dir(150) / "model.pt").parent
    for text in ("latest", str(run.path)):
        assert policies(log_root, text) == [run.checkpoint_dir(100) / "model.pt"]
    assert [model.parent.name for model in policies(log_root, "all")] == ["000050", "000100"]
    with pytest.raises(UsageError, match=r"The checkpoint .*000150 is damaged: model.pt does not have the SHA-256 sum"):
        policies(log_root, str(damaged))


def test_files_and_classes_are_absolute(log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("policy.onnx", "policy.pt2", "robot.xml"):
        (tmp_path / name).touch()
    (tmp_path / "kites.py").write_text(TASK_FILE, encoding="utf-8")
    (tmp_path / "acting.py").write_text("raise RuntimeError\nclass Pilot: ...\n", encoding="utf-8")
    names = ["policy.onnx", "policy.pt2", "acting.py:Pilot"]
    with pytest.raises(
        UsageError, match=r"policy\.pt2 is a program of torch\.export, .*: pass the \.onnx or \.pt file"
    ):
        jobs_of(log_root, "kites.py:Kite", names)
    found = jobs_of(tmp_path, "kites.py:Kite", names, config={"a": [1]}, variations={"robot": "robot.xml"})
    assert [job.policy for job in found] == [f"{tmp_path}/{name}" for name in names]
    assert [job.config for job in found] == [{}, {}, {"a": [1]}]
    assert found[0].task == f"{tmp_path}/kites.py:Kite"
    assert found[0].env["robot"] == str(tmp_path / "robot.xml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("the-latest", "The policy 'the-latest' does not exist. Did you mean 'latest'?"),
        ("{tmp}/policy.onx", "The policy '{tmp}/policy.onx' does not exist. Did you mean 'policy.onnx'?"),
        ("{tmp}/notes.txt", "The policy '{tmp}/notes.txt' is no .pt, .onnx or .pt2 file."),
        ("{tmp}", "{tmp} is a directory, but no checkpoint, which would hold a model.pt"),
        ("{tmp}/begun", "The run {tmp}/begun has no whole checkpoint"),
        ("{tmp}/begun/checkpoints", "The run {tmp}/begun has no whole checkpoint"),
        ("{tmp}/acting.py:Pilto", "{tmp}/acting.py has no class 'Pilto'. Did you mean 'Pilot'?"),
        (
            "{tmp}/actin.py:Pilot",
            "The policy '{tmp}/actin.py:Pilot' is a class of {tmp}/actin.py, which does not exist",
        ),
        ("{tmp}/broken.py:Pilot", "{tmp}/broken.py of the policy '{tmp}/broken.py:Pilot' is no Python"),
        ("json.decode:JSONDecoder", "The policy 'json.decode:JSONDecoder' is a class of json.decode, which does not"),
        ("nowhere.at.all:Pilot", "is a class of nowhere.at.all, which does not exist"),
        (":Pilot", "The policy ':Pilot' is a class of , which does not exist"),
        ("json.decoder:JSONDecode", "json/decoder.py has no class 'JSONDecode'. Did you mean 'JSONDecoder'?"),
    ],
)
def test_a_policy_that_is_not_there_is_refused(text: str, sentence: str, log_root: Path, tmp_path: Path) -> None:
    for name in ("policy.onnx", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "begun" / "checkpoints").mkdir(parents=True)
    (tmp_path / "acting.py").write_text("class Pilot: ...\n", encoding="utf-8")
    (tmp_path / "broken.py").write_text("class Pilot:\n", encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        policies(log_root, text.format(tmp=tmp_path))
    assert sentence.format(tmp=tmp_path) in str(refused.value)


@pytest.mark.parametrize("text", ["json.decoder:JSONDecoder", "json:JSONDecoder", "math:sin"])
def test_classes_of_modules_are_found_where_they_can_be_read(text: str, log_root: Path) -> None:
    assert policies(log_root, text) == [text]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"task": "Cartpole-Swing"}, "entry 'walk', task: There is no task 'Cartpole-Swing'. Did you mean"),
        ({"policy": "{tmp}/no.onnx"}, "entry 'walk', policy: The policy '{tmp}/no.onnx' does not exist"),
        ({"policy": "latest"}, "entry 'walk', policy: There is no run with a checkpoint in"),
        ({"config": {"a": 1}}, "entry 'walk': config is given, but policy is 'zero', and only a class"),
        (
            {"variations": {"decimaton": 2}},
            "entry 'walk', variations: env.decimaton is given, but SwingupConfig has no such field. Did you mean",
        ),
        ({"variations": {"decimation": [2, 0]}}, "variations: env.decimation is 0, but must be at least 1"),
        ({"variations": {"decimation": []}}, "variations: env.decimation is [], but must be a whole number"),
        ({"variations": {"gravity.x": [1]}}, "variations: env.gravity is {'x': 1}, but must be a number"),
        ({"seed": [1, 1]}, "In jobs.yaml: Two jobs have the name 'walk-seed1'"),
        ({"name": "a/b"}, "In jobs.yaml: The job's name 'a/b' has a slash in it"),
    ],
)
def test_errors_name_file_entry_and_key(
    keys: dict[str, Any], sentence: str, log_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = json.dumps([{"name": "walk", "task": TASK, "policy": "zero", **keys}]).replace("{tmp}", str(tmp_path))
    file = tmp_path / "jobs.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        expand(read_entries(file), log_root=str(log_root), source=file.relative_to(tmp_path))
    assert str(refused.value).startswith("In jobs.yaml")
    assert sentence.replace("{tmp}", str(tmp_path)) in str(refused.value)


def test_another_s_run_needs_trust(log_root: Path, run: RunDir, tmp_path: Path) -> None:
    run.train_yaml.write_text("agent: {actor: {class_name: 'evil:Model'}}\n", encoding="utf-8")
    entry = JobEntry(name="walk", task=TASK, policy=str(run.path))
    with pytest.raises(UsageError, match=r"would import 'evil:Model' .* pass --trust"):
        expand([entry], log_root=str(tmp_path / "mine"))
    assert expand([entry], log_root=str(tmp_path / "mine"), trust=True) == expand([entry], log_root=str(log_root))


def test_planning_imports_nothing_heavy(log_root: Path, run: RunDir) -> None:
    script = f"""
import sys
from shoal.config.evaluate import JobEntry
from shoal.jobs.entries import expand
entry = JobEntry(name="a", task=({TASK!r}, "Cartpole-Swingup-Mujoco"), policy=({str(run.path)!r}, "torch.nn:Module"))
print(len(expand([entry], log_root={str(log_root)!r})), [name for name in {HEAVY} if name in sys.modules])
"""
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert printed.stdout == "4 []\n"


# Limits


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "keys",
    [
        {"num_episodes": 10**12},
        {"num_episodes": 10**6, "num_envs": 1},
        {"num_steps": 10, "rebuilds": 10**12},
        {"seed": list(range(20_000))},
        {
            "variations": {
                "pole_mass": [1 + n / 1000 for n in range(200)],
                "cart_mass": [1 + n / 1000 for n in range(200)],
            }
        },
    ],
    ids=", ".join,
)
def test_more_jobs_or_parts_than_can_be_planned_are_refused_at_once(keys: dict[str, Any], log_root: Path) -> None:
    with pytest.raises(
        UsageError, match="The jobs are more than 10,000, or their parts of num_envs episodes more than 100,000: give"
    ):
        jobs_of(log_root, **keys)
