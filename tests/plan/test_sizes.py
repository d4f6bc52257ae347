"""What a training takes at least: hand-worked numbers, and bounds that a real checkpoint keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import bouncing_task
from support.fake_devices import seen

from shoal.cli.parse import parse_train
from shoal.config import ModelConfig, PpoConfig, RslRlConfig
from shoal.plan.sizes import checkpoints_to_come, experience_bytes_per_env, gpu_bytes_per_env
from shoal.plan.training import TrainPlan, plan_training


def plan_of(*words: str) -> TrainPlan:
    return plan_training(parse_train(["Cartpole-Swingup", "--gpu-ids", "None", *words]), {}, seen(0))


def agent_with(*hidden: int, optimizer: str = "adam") -> RslRlConfig:
    usual = RslRlConfig()
    algorithm = PpoConfig(optimizer=optimizer)  # pyright: ignore[reportArgumentType]
    return replace(
        usual,
        actor=replace(usual.actor, hidden_dims=hidden),
        critic=ModelConfig(hidden_dims=hidden),
        algorithm=algorithm,
    )


@pytest.mark.parametrize(
    ("hidden", "optimizer", "numbers"),
    [
        # One input, one output: (1+1)*3 + (3+1)*1 = 10 weights for each network, with two moments each.
        ((3,), "adam", 2 * 10 * 3),
        ((3,), "sgd", 2 * 10 * 1),
        ((3,), "rmsprop", 2 * 10 * 2),
        # (1+1)*4 + (4+1)*5 + (5+1)*1 = 39.
        ((4, 5), "adamw", 2 * 39 * 3),
        # -1 is as wide as the input, which has one number at least: (1+1)*1 + (1+1)*1 = 4.
        ((-1,), "sgd", 2 * 4),
    ],
)
def test_a_checkpoint_holds_weights_and_what_the_optimizer_keeps(
    hidden: tuple[int, ...], optimizer: str, numbers: int
) -> None:
    assert agent_with(*hidden, optimizer=optimizer).checkpoint_floats == numbers


def test_experience_grows_with_environments_and_steps() -> None:
    plan = plan_of("--num-envs", "100", "--agent.num-steps-per-env", "10")
    assert experience_bytes_per_env(plan) == 10 * (5 + 7) * 4  # An observation of the cart-pole has 5 numbers.


def test_a_replay_buffer_is_experience_of_all_its_steps() -> None:
    config = parse_train(["Quadruped-Velocity-Flat", "--gpu-ids", "0", "--learner", "fast_sac"])
    plan = plan_training(config, {}, seen(1))
    assert experience_bytes_per_env(plan) == 1024 * (96 + 4) * 4
    others = replace(config.agent, obs_groups={"actor": ("policy",), "critic": ("policy",)})
    plan = plan_training(replace(config, agent=others), {}, seen(1))
    assert experience_bytes_per_env(plan) == 1024 * (1 + 4) * 4, "Which part of all columns a group has is not known."


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), 203_000 + 24 * (330 + 7) * 4),
        (("--agent.num-steps-per-env", "10"), 203_000 + 10 * (330 + 7) * 4),
        # Rewards, commands and the terrain's size change no array of an environment; what is kept only adds to them.
        (
            ("--env.rewards.feet-slip.weight", "0", "--env.terrain-levels", "3", "--env.on-nan", "stop"),
            203_000 + 24 * (330 + 7) * 4,
        ),
        # With other settings that matter, nothing is known of the environment.
        (("--env.nconmax", "16"), 24 * (1 + 7) * 4),
        (("--env.njmax", "4096"), 24 * (1 + 7) * 4),
        (("--env.observations.policy.joint-pos.history-length", "2"), 24 * (1 + 7) * 4),
    ],
)
def test_the_gpu_memory_of_an_environment_is_declared_for_settings_that_leave_it_alone(
    flags: tuple[str, ...], expected: int
) -> None:
    config = parse_train(["Quadruped-Velocity-Rough", "--gpu-ids", "0", *flags])
    assert gpu_bytes_per_env(plan_training(config, {}, seen(1))) == expected


def test_a_task_of_the_user_s_own_has_no_declared_memory() -> None:
    config = parse_train(
        [f"{bouncing_task.__file__}:BouncingTask", "--gpu-ids", "0", "--agent.num-steps-per-env", "10"]
    )
    assert gpu_bytes_per_env(plan_training(config, {}, seen(1))) == 10 * (1 + 7) * 4


@pytest.mark.parametrize(("iterations", "interval", "count"), [(100, 50, 2), (101, 50, 3), (49, 50, 1), (50, 50, 1)])
def test_checkpoints_to_come_are_counted_with_the_last(iterations: int, interval: int, count: int) -> None:
    plan = plan_of("--max-iterations", str(iterations), "--agent.save-interval", str(interval))
    assert checkpoints_to_come(plan) == count


def test_a_run_that_goes_on_writes_only_the_rest() -> None:
    plan = plan_of("--max-iterations", "100", "--agent.save-interval", "10")
    assert checkpoints_to_come(replace(plan, start_iteration=75)) == 3  # 80, 90, 100.
