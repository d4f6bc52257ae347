"""rl_games as a learner: its schedules, its central critic, and what of its files is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.fake_devices import seen
from support.learner_agents import CENTRAL_VALUE, RL_GAMES, new_loop, rl_games_file
from support.learners import train

from shoal.cli.parse import parse_train
from shoal.errors import UsageError
from shoal.plan.training import plan_training

if TYPE_CHECKING:
    from shoal.config import AgentConfig

LINEAR: dict[str, AgentConfig] = {
    "legacy": replace(RL_GAMES, lr_schedule="linear", learning_rate=3e-4),
    "standard": replace(RL_GAMES, lr_schedule="linear", learning_rate=3e-4, schedule_type="standard"),
    "a file": replace(RL_GAMES, yaml=rl_games_file(lr_schedule="linear", learning_rate=3e-4, max_epochs=1000)),
    "a file with frames": replace(
        RL_GAMES, yaml=rl_games_file(lr_schedule="linear", learning_rate=3e-4, max_epochs=-1, max_frames=1000)
    ),
}
RATES = [1e-6 + 2.99e-4 * left for left in (3 / 4, 2 / 4, 1 / 4, 0)]
"""Of four epochs. After epoch e of n, rl_games' rate is 1e-6 + (first - 1e-6) * (n - e) / n."""


def rates_of(loop: Any) -> list[float]:
    """The learning rate of each iteration, which the optimizer also has in the end."""
    rates = [row["Loss/learning_rate"] for row in train(loop).rows]
    assert loop.learner.agent.optimizer.param_groups[0]["lr"] == rates[-1]
    return rates


@pytest.mark.parametrize("case", LINEAR)
def test_a_linear_learning_rate_falls_over_all_iterations(case: str) -> None:
    assert rates_of(new_loop("rl_games", agent=LINEAR[case])) == pytest.approx(RATES)


def test_a_linear_learning_rate_goes_on_after_a_resume() -> None:
    first = new_loop("rl_games", agent=LINEAR["legacy"])
    story = train(first, lambda: {"SIGTERM": first.iteration == 1})
    assert first.iteration == 2
    second = new_loop("rl_games", agent=LINEAR["legacy"], seed=9)
    second.restore(dict(story.saved[2]))
    assert rates_of(second) == pytest.approx(RATES[2:])


def test_a_bonus_for_entropy_that_falls_goes_on_after_a_resume() -> None:
    # After epoch e of n it is 1e-4 + (first - 1e-4) * (n - e) / n.
    file = rl_games_file(lr_schedule="linear", schedule_entropy=True, entropy_coef=0.01)
    loop = new_loop("rl_games", agent=replace(RL_GAMES, yaml=file))
    story = train(loop, lambda: {"SIGTERM": loop.iteration == 1})
    other: Any = new_loop("rl_games", agent=replace(RL_GAMES, yaml=file), seed=9)
    other.restore(dict(story.saved[2]))
    assert other.learner.agent.entropy_coef == pytest.approx(1e-4 + 0.0099 / 2)


def test_the_central_critics_learning_rate_falls_over_all_iterations() -> None:
    loop: Any = new_loop("rl_games central value", max_iterations=5)
    train(loop, lambda: {"SIGTERM": loop.iteration == 1})
    # Two of five epochs are done, and the rate began at 1e-3.
    critic = loop.learner.agent.central_value_net
    assert critic.optimizer.param_groups[0]["lr"] == pytest.approx(1e-6 + 9.99e-4 * 3 / 5)


def test_rl_games_leaves_no_directory() -> None:
    loop: Any = new_loop("rl_games central value")
    directory = Path(loop.learner.agent.train_dir)
    train(loop)
    assert not directory.exists()


@pytest.mark.parametrize("case", [{}, {"central_value_config": CENTRAL_VALUE}])
def test_samples_need_not_divide_by_the_length_of_sequences(case: dict[str, Any]) -> None:
    # 6 steps in 8 environments.
    agent = replace(RL_GAMES, yaml=rl_games_file(seq_length=32, **case))
    assert len(train(new_loop("rl_games", agent=agent)).rows) == 4


RNN = {"name": "lstm", "units": 8, "layers": 1}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (rl_games_file(network={"rnn": RNN}), "a recurrent network (rnn)"),
        (
            rl_games_file(
                central_value_config=CENTRAL_VALUE | {"network": CENTRAL_VALUE["network"] | {"rnn": RNN}},
            ),
            "a recurrent network (rnn)",
        ),
        (rl_games_file(normalize_rms_advantage=True), "normalize_rms_advantage"),
    ],
)
def test_what_a_file_asks_for_in_vain_is_refused_at_once(text: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(text, encoding="utf-8")
    words = ["Cartpole-Swingup", "--gpu-ids", "None", "--learner", "rl_games", "--agent.yaml", str(file)]
    with pytest.raises(UsageError) as caught:
        plan_training(parse_train(words), {}, seen(0))
    assert str(caught.value) == (
        f"--agent.yaml {file} asks for {what}, which this learner does not have: remove it there."
    )
