"""The story of exporting: which policy is taken, where its files go, and what a training leaves by itself."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
import pytest
import torch
from support.commands import FAULTY, SMALL_WITH_EXPORT
from support.stories import carry_out
from tensordict import TensorDict

from shoal.cli.parse import parse
from shoal.commands.export import Exported, _onnx_file, export
from shoal.config import ExportConfig
from shoal.envs.vec_env import build_vec_env
from shoal.errors import UsageError
from shoal.learn.checkpoints import read_checkpoint
from shoal.learn.groups import World
from shoal.learn.learner import build_learner
from shoal.sim.isolation import isolated
from shoal.tasks import registry
from shoal.text import pairs

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.plan.rundir import RunDir

TASK = "Cartpole-Swingup"
ACTOR = ("--agent.actor.hidden-dims", "16", "16")
"""Not the task's own, so that whoever builds the networks again has to read the run."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A training of three iterations, with a checkpoint after two."""
    words = (TASK, "--max-iterations", "3", "--agent.save-interval", "2", *ACTOR)
    return carry_out(tmp_path_factory.mktemp("logs"), *words, small=SMALL_WITH_EXPORT).run


def export_of(run: RunDir, *words: str) -> Exported:
    """Do what `shoal export TASK WORDS` does."""
    return export(parse("export", [TASK, "--log-root", str(run.path.parent.parent), *words])[0])


def answers(file: Path, observations: torch.Tensor) -> np.ndarray:
    """The actions of an exported policy."""
    return np.asarray(onnxruntime.InferenceSession(file).run(None, {"obs": observations.numpy()})[0])


def told_by(file: Path) -> dict[str, str]:
    """The metadata of an exported policy."""
    return onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map


def test_a_training_exports_what_its_last_checkpoint_plays(run: RunDir) -> None:
    config = parse("export", [TASK, "--log-root", str(run.path.parent.parent)])[0]
    seen = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    with isolated("cpu"), torch.inference_mode():
        env = build_vec_env(registry.resolve(TASK), config.env, num_envs=1, device="cpu", seed=0)
        learner = build_learner(env, config, World())
        learner.restore(read_checkpoint(run.checkpoint_dir(3) / "model.pt"), weights_only=True)
        wanted = learner.policy()(TensorDict({"policy": seen}, batch_size=[1000]))
    np.testing.assert_allclose(answers(run.policy_onnx, seen), wanted.numpy(), atol=1e-5)  # Both compute in 32 bits.
    assert told_by(run.policy_onnx)["checkpoint"] == f"{run.name}/checkpoints/000003"


def test_the_command_writes_the_same_again(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "new" / "cartpole.onnx"
    exported = export_of(run, "--out", str(out))
    *metadata, last = exported.lines()
    assert last == f"Exported the policy to {out} and {out.with_suffix('.pt2')}."
    assert exported.to_plain() == {"metadata": told_by(out), "files": [str(out), str(out.with_suffix(".pt2"))]}
    assert out.with_suffix(".pt2").is_file()
    assert told_by(out) == told_by(run.policy_onnx)
    assert sorted(metadata) == sorted(pairs(told_by(out).items()))
    seen = torch.randn(10, 5)
    assert (answers(out, seen) == answers(run.policy_onnx, seen)).all()


def test_an_older_checkpoint_is_another_policy(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "older.onnx"
    export_of(run, "--checkpoint", str(run.checkpoint_dir(2)), "--out", str(out))
    assert told_by(out)["iteration"] == "2"
    seen = torch.randn(10, 5)
    assert (answers(out, seen) != answers(run.policy_onnx, seen)).any()


def test_without_out_the_files_go_into_the_run(run: RunDir) -> None:
    shutil.rmtree(run.exports_dir)
    export_of(run)
    assert run.policy_onnx.is_file()
    assert run.policy_onnx.with_suffix(".pt2").is_file()


def test_a_file_from_elsewhere_is_exported_beside_itself(run: RunDir, tmp_path: Path) -> None:
    lone = tmp_path / "taken_home.pt"
    shutil.copy(run.checkpoint_dir(3) / "model.pt", lone)
    export_of(run, "--checkpoint", str(lone), *ACTOR)
    assert told_by(tmp_path / "taken_home.onnx")["checkpoint"] == "taken_home.pt"


def test_a_failed_export_costs_one_warning(log_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = f"{FAULTY}:CannotSayWhatItsActionsMean"
    outcome = carry_out(log_root, task, "--max-iterations", "1", small=SMALL_WITH_EXPORT)
    assert outcome.reports[0].iteration == 1
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    checkpoint = outcome.run.checkpoint_dir(1)
    assert warning.getMessage() == (
        "The policy was not exported (LookupError: no robot). "
        f"To try again: shoal export {task} --checkpoint {checkpoint}"
    )
    assert not outcome.run.exports_dir.exists()


@pytest.mark.soak
def test_no_export_leaves_no_export(log_root: Path) -> None:
    assert not carry_out(log_root, TASK, "--max-iterations", "1").run.exports_dir.exists()


def test_a_run_whose_exports_lie_elsewhere_by_a_link_is_refused(run_dir: RunDir, tmp_path: Path) -> None:
    run_dir.params_dir.mkdir()
    run_dir.train_yaml.touch()
    run_dir.exports_dir.symlink_to(tmp_path)
    with pytest.raises(UsageError, match=r"exports is a link to .*, and what is written there would land elsewhere"):
        _onnx_file(ExportConfig(task="Cartpole-Swingup"), run_dir.checkpoint_dir(1) / "model.pt")
