"""Shoal's functions for Python do what the commands do, and raise what these print."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import FAULTY

import shoal
from shoal import mdp
from shoal.tasks.cartpole.config import SwingupConfig

TASK = "Cartpole-Swingup"
POINTS = Path(__file__).parents[2] / "docs" / "examples" / "points_env.py"
SMALL: dict[str, Any] = {"gpu_ids": None, "num_envs": 16, "agent": {"num_steps_per_env": 8}}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of runs."""
    return str(tmp_path_factory.mktemp("logs"))


@pytest.fixture(scope="module")
def rows() -> list[Any]:
    """What `on_row` got."""
    return []


@pytest.fixture(scope="module")
def run(logs: str, rows: list[Any]) -> Path:
    """A run of three iterations on a pole of 0.2 kg."""
    return shoal.train(
        TASK, **SMALL, env={"pole_mass": 0.2}, max_iterations=3, log_root=logs, on_row=rows.append, seed=7
    )


# Names


def test_the_package_is_imported_without_torch_warp_and_mujoco() -> None:
    code = "import shoal, shoal.api, sys; print(sorted({'torch', 'warp', 'mujoco', 'rsl_rl'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_every_public_name_is_there_and_documented() -> None:
    assert [name for name in shoal.__all__ if not (getattr(shoal, name).__doc__ or "").strip()] == []
    assert shoal.make.__module__ == "shoal.api"
    assert set(mdp.__all__) >= {"Reward", "TermsTask"}
    stub = Path(shoal.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert sorted(re.findall(r"import (\w+) as \1", stub)) == sorted(shoal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'maek'"):
        shoal.maek  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


# Environments


@pytest.mark.parametrize("name", ["pole_mass", "pole-mass"])
def test_fields_of_the_environment_are_set_by_name(name: str) -> None:
    env = shoal.make(TASK, num_envs=4, device="cpu", env={name: 0.3})
    assert isinstance(env.cfg, SwingupConfig)
    assert (env.num_envs, env.device, env.cfg.pole_mass) == (4, "cpu", 0.3)


def test_the_seed_decides_the_episodes() -> None:
    one, same, other = (shoal.make(TASK, 4, "cpu", seed=seed).get_observations()["policy"] for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_environments_step_on_their_device_and_need_no_isolation(device: str) -> None:
    env, on_cpu = (shoal.make(TASK, 4, each, seed=3) for each in (device, "cpu"))
    for _ in range(20):
        actions = torch.full((4, 1), 0.5)
        seen, rewards, _, _ = env.step(actions.to(env.device))
        assert seen["policy"].device == torch.device(device)
        assert torch.allclose(rewards.cpu(), on_cpu.step(actions)[1], atol=1e-5)


def test_environments_of_a_file_of_ones_own_are_made() -> None:
    env = shoal.make(f"{POINTS}:Points", 3, "cpu")
    position = getattr(env, "position").clone()  # noqa: B009  Of the example's class.
    env.step(torch.tensor([[1.0, -0.5]]).repeat(3, 1))
    # The velocity is the action, and a step takes 0.1 s.
    moved = getattr(env, "position") - position  # noqa: B009
    assert torch.allclose(moved, torch.tensor([0.1, -0.05]), atol=1e-6)


def test_a_saved_configuration_makes_the_environments_of_a_training(run: Path) -> None:
    env = shoal.make(TASK, 2, "cpu", config=run / "params" / "train.yaml")
    assert isinstance(env.cfg, SwingupConfig)
    assert env.cfg.pole_mass == 0.2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "Cartpole-Swingup2"}, r"There is no task 'Cartpole-Swingup2'. Did you mean 'Cartpole-Swingup'\?"),
        ({"env": {"pole_mas": 1}}, r"no flag --env.pole-mas. Did you mean '--env.pole-mass'\?"),
        ({"env": {"pole_mass": -1}}, r"env.pole_mass is -1.0, but must be above 0"),
        ({"env": {"pole_mass": "--help"}}, r"--env.pole-mass cannot be read"),
        ({"env": {"step_graph": "--help"}}, r"no flag --help"),
        ({"env": {"pole_mass": (1, 2)}}, r"takes no '2' here"),
        ({"device": "cuda:7"}, r"GPU"),
        ({"device": "tpu"}, r"--gpu-ids"),
        ({"num_envs": 0}, r"--num-envs is 0, but must be at least 1"),
        ({"num_envs": True}, r"--num-envs lacks values"),
    ],
)
def test_what_cannot_be_made_is_refused_as_flags_are(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(shoal.UsageError, match=sentence):
        shoal.make(**{"task": TASK, "device": "cpu", **arguments})


def test_what_only_prints_is_refused() -> None:
    with pytest.raises(shoal.UsageError, match="help was passed, which prints"):
        shoal.train(TASK, help=True)
    with pytest.raises(shoal.UsageError, match="dry_run was passed, which prints"):
        shoal.evaluate(TASK, dry_run=True)


# Trainings


def test_a_training_returns_its_run_and_hands_out_its_metrics(run: Path, rows: list[Any]) -> None:
    assert [row["iteration"] for row in rows] == [1, 2, 3]
    table = shoal.metrics(run)
    assert [row["Train/total_steps"] for row in table] == [128.0, 256.0, 384.0]  # 16 environments, 8 steps.
    assert table == [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (run / "exports" / "policy.onnx").is_file()


@pytest.mark.spawn
@pytest.mark.slow
def test_several_workers_train_and_the_error_of_one_is_raised(
    tmp_path: Path, rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    two: dict[str, Any] = {**SMALL, "nproc_per_node": 2, "log_root": str(tmp_path), "export": False}
    rows.clear()
    run = shoal.train(TASK, **two, max_iterations=2, on_row=rows.append)
    assert [row["Train/total_steps"] for row in rows] == [256.0, 512.0]  # 2 workers, 16 environments, 8 steps.
    assert shoal.metrics(run) == rows
    monkeypatch.setenv("SHOAL_TEST_FAULTY_RANK", "1")
    with pytest.raises(shoal.ShoalError, match=r"Rank 1 on .* failed") as caught:
        shoal.train(f"{FAULTY}:Raises", **two)
    assert "TwoArgumentsError" in caught.value.details


def test_runs_are_rows(run: Path, logs: str) -> None:
    (row,) = shoal.runs(TASK, log_root=logs)
    assert (row["run"], row["state"], row["iteration"]) == (str(run), "finished", 3)
    assert row["changed"]["env.pole_mass"] == 0.2
    with pytest.raises(shoal.UsageError, match=r"is a run, and not a task: pass it to metrics\(\)"):
        shoal.runs(str(run), log_root=logs)


def test_an_interrupt_stops_with_a_checkpoint_and_the_training_goes_on(tmp_path: Path) -> None:
    logs = str(tmp_path)

    def interrupt(row: Any) -> None:
        if row["iteration"] == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="SIGINT ended the run after iteration 3, with a checkpoint"):
        shoal.train(TASK, **SMALL, max_iterations=5, log_root=logs, on_row=interrupt, export=False)
    (row,) = shoal.runs(log_root=logs)
    assert (row["state"], row["iteration"]) == ("interrupted", 3)
    going_on: list[Any] = []
    run = shoal.train(TASK, resume="latest", max_iterations=4, log_root=logs, on_row=going_on.append)
    assert (str(run), [row["iteration"] for row in going_on]) == (row["run"], [4])


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = shoal.train(TASK, **SMALL, max_iterations=1, log_root=str(tmp_path), export=False)
    shoal.evaluate(TASK, checkpoint=run, num_episodes=2, num_envs=2, gpu_ids=None, log_root=str(tmp_path))
    assert capfd.readouterr() == ("", "")


# Policies


def test_an_evaluation_is_a_row_for_each_job_with_the_statistics_of_its_episodes(
    run: Path, logs: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = shoal.evaluate(
        TASK, checkpoint=[run, "zero"], num_episodes=6, gpu_ids=None, log_root=logs, out=out, env={"pole_mass": 0.4}
    )
    assert [row["policy"] for row in rows] == [str(run / "checkpoints" / "000003" / "model.pt"), "zero"]
    for row in rows:
        lines = (out / row["name"] / "episodes.jsonl").read_text().splitlines()
        assert row["summary"]["return"]["mean"] == pytest.approx(
            np.mean([json.loads(each)["return"] for each in lines])
        )
    manifest = json.loads((out / "manifest.json").read_text())
    assert {job["env"]["pole_mass"] for job in manifest["jobs"]} == {0.4}


@pytest.mark.parametrize("file", ["exports/policy.onnx", "exports/policy.pt2", "checkpoints/000003/model.pt"])
def test_a_policy_acts_for_any_number_of_environments_in_every_format(run: Path, logs: str, file: str) -> None:
    policy, loaded = shoal.load_policy(run, device="cpu"), shoal.load_policy(run / file, device="cpu", log_root=logs)
    for count in (3, 8):
        env = shoal.make(TASK, count, "cpu")
        for _ in range(3):
            seen = env.get_observations()
            actions = loaded(seen)
            assert actions.shape == (count, 1)
            assert torch.allclose(actions, policy(seen), atol=1e-5)
            loaded.reset(env.step(actions)[2])


def test_a_policy_without_a_run_needs_its_task(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    file.write_bytes((run / "checkpoints" / "000003" / "model.pt").read_bytes())
    with pytest.raises(shoal.UsageError, match=r"is in no run: pass its task, load_policy\(policy, task\)"):
        shoal.load_policy(file)
    with pytest.raises(shoal.UsageError, match="does not fit"):
        shoal.load_policy(file, TASK, "cpu", agent={"actor.hidden_dims": (8, 8)})
    seen = shoal.make(TASK, 2, "cpu").get_observations()
    assert torch.equal(shoal.load_policy(file, TASK, "cpu")(seen), shoal.load_policy(run, device="cpu")(seen))


def test_the_code_that_anothers_run_names_as_its_task_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    (tmp_path / "params" / "train.yaml").write_text(f"task: {tmp_path}/evil.py:Task", encoding="utf-8")
    with pytest.raises(shoal.UsageError, match=r"is of the task .*evil\.py:Task, which is not registered"):
        shoal.load_policy(tmp_path)


def test_a_path_without_metrics_is_refused(tmp_path: Path) -> None:
    with pytest.raises(shoal.UsageError, match=r"has no metrics\.jsonl"):
        shoal.metrics(tmp_path)
