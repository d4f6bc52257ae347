"""The story of converting: policies of plain rsl_rl, old and new, train and play here; code in a file does not run."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from rsl_rl.runners import OnPolicyRunner
from support.commands import SMALL
from support.hostile import write_hostile
from support.stories import carry_out

from shoal.cli import main
from shoal.cli.parse import parse
from shoal.commands.convert import convert
from shoal.commands.play import play
from shoal.config import RslRlConfig
from shoal.config.rsl_rl import to_rsl_rl
from shoal.envs.vec_env import WarpVecEnv
from shoal.errors import UsageError
from shoal.learn.checkpoints import read_checkpoint
from shoal.sim.isolation import isolated
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TASK = "Cartpole-Swingup"
IN_5_BUT_NOT_BEFORE = {"mlp.": "{name}.", "obs_normalizer.": "{name}_obs_normalizer.", "distribution.std_param": "std"}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What plain rsl_rl leaves of two iterations."""
    log_dir = tmp_path_factory.mktemp("rsl_rl")
    spec = registry.resolve(TASK)
    with isolated("cpu"), contextlib.redirect_stdout(io.StringIO()):
        env = WarpVecEnv(spec.load_builder()(spec.env, num_envs=16, device="cpu", seed=0))
        assert isinstance(spec.agent, RslRlConfig)
        OnPolicyRunner(env, to_rsl_rl(spec.agent), log_dir=str(log_dir)).learn(2)
    return log_dir / "model_1.pt"


@pytest.fixture(scope="module")
def older(theirs: Path) -> Path:
    """The same, as rsl_rl 3 would have saved it."""
    saved = torch.load(theirs, weights_only=True)
    merged: dict[str, Any] = {}
    for name in ("actor", "critic"):
        for key, value in saved.pop(f"{name}_state_dict").items():
            begin, before = next(each for each in IN_5_BUT_NOT_BEFORE.items() if key.startswith(each[0]))
            merged[before.format(name=name) + key.removeprefix(begin)] = value
    file = theirs.with_name("model_old.pt")
    torch.save({"model_state_dict": merged, **saved}, file)
    return file


def shoal(*words: str) -> int:
    """Run a command to its end; return its exit code."""
    try:
        main.shoal(words)
    except UsageError as error:
        return error.exit_code
    return 0


def returns_of(model: Path) -> list[float]:
    """What a policy earns."""
    words = [TASK, "--checkpoint", str(model), "--episodes", "3", "--gpu-ids", "None", "--env.episode-length-s", "0.4"]
    return [each["return"] for each in play(parse("play", words)[0]).episodes]


def test_a_checkpoint_of_plain_rsl_rl_plays_as_it_is_and_converted(theirs: Path, older: Path, tmp_path: Path) -> None:
    earned = returns_of(theirs)
    for file, layout in ((theirs, "rsl_rl 5"), (older, "rsl_rl 1 to 3")):
        output = tmp_path / file.name
        *_, told, _ = convert(parse("convert", [str(file), "--output", str(output)])[0])
        assert told == f"Converted {file}, which has the layout of {layout}, to {output}."
        assert returns_of(output) == earned
    with pytest.raises(UsageError, match="is a checkpoint of an older rsl_rl"):
        returns_of(older)


def test_a_training_begins_with_the_weights_of_a_file(theirs: Path, older: Path, log_root: Path) -> None:
    convert(parse("convert", [str(older)])[0])
    plain = older.with_name("model_old_plain.pt")
    wanted = read_checkpoint(theirs)["actor_state_dict"]["mlp.0.weight"]
    # A learning rate of next to nothing leaves the weights as they came.
    still = ("--agent.algorithm.learning-rate", "1e-12", "--agent.algorithm.schedule", "fixed")
    for file in (theirs, plain):
        run = carry_out(log_root, TASK, "--checkpoint", str(file), "--max-iterations", "1", *still).run
        trained = read_checkpoint(run.checkpoint_dir(1) / "model.pt")["actor_state_dict"]
        torch.testing.assert_close(trained["mlp.0.weight"], wanted, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "{file}"),
        ("train", TASK, "--checkpoint", "{file}", "--max-iterations", "1", *SMALL, "--log-root", "{root}"),
        ("play", TASK, "--checkpoint", "{file}", "--gpu-ids", "None"),
    ],
    ids=lambda words: words[0],
)
def test_code_in_a_file_is_refused_and_not_run(words: Sequence[str], theirs: Path, tmp_path: Path) -> None:
    file = tmp_path / "model_1.pt"
    marker = write_hostile(file, torch.load(theirs, weights_only=True))
    assert shoal(*(word.format(file=file, root=tmp_path / "logs") for word in words)) == 2
    assert not marker.exists()


def test_what_play_refuses_names_the_command_that_helps(theirs: Path, tmp_path: Path) -> None:
    file = tmp_path / "model_1.pt"
    marker = write_hostile(file, torch.load(theirs, weights_only=True))
    with pytest.raises(UsageError) as refusal:
        returns_of(file)
    assert str(refusal.value).endswith(
        f"or make it plain with `shoal convert {file} --trust` if you trust the people it is from."
    )
    assert not marker.exists()
    notes = convert(parse("convert", [str(file), "--trust"])[0])[:-2]
    assert marker.exists()  # It is as hostile as it looks.
    assert notes == []  # What the call returned was None.
    marker.rmdir()
    assert returns_of(tmp_path / "model_1_plain.pt") == returns_of(theirs)
    assert not marker.exists()


def test_the_command_says_what_it_has_left_out(older: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = older.with_name("plain.pt")
    assert shoal("convert", str(older), "--output", str(output)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "optimizer_state_dict was left out: it belongs to the order of parameters in the older layout.",
        f"Converted {older}, which has the layout of rsl_rl 1 to 3, to {output}.",
        f"To start from it: train TASK --checkpoint {output}",
    ]


def test_a_file_does_not_replace_itself(theirs: Path) -> None:
    before = theirs.read_bytes()
    with pytest.raises(UsageError, match="which is the file that is converted: pass another one"):
        convert(parse("convert", [str(theirs), "--output", str(theirs.parent / "." / theirs.name)])[0])
    assert theirs.read_bytes() == before
