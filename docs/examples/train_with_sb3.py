"""PPO of stable-baselines3 on a task of Shoal, through Gymnasium.

uv pip install stable-baselines3
python docs/examples/train_with_sb3.py Cartpole-Swingup
"""

import argparse
import sys
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecMonitor


class Sb3VecEnv(VecEnv):
    """A vector environment of Gymnasium with autoreset in the same step, as stable-baselines3 has them."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> np.ndarray:
        """Begin a new episode everywhere, with the seed of `seed` at first."""
        seed = self._seeds[0]
        self._reset_seeds()
        return self.env.reset(seed=seed)[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Take the actions."""
        self.actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """Step; where an episode ended, its last observation and why are in the environment's own dict."""
        seen, rewards, terminated, truncated, infos = self.env.step(self.actions)
        each: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(terminated | truncated):
            each[index]["terminal_observation"] = infos["final_obs"][index]
            each[index]["TimeLimit.truncated"] = bool(truncated[index] and not terminated[index])
        return seen, rewards, terminated | truncated, each

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ANN401
        """Return an attribute, which all environments share."""
        return [getattr(self.env, attr_name, None) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ANN401
        """Refuse: the environments share their attributes."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:  # noqa: ANN401
        """Refuse: there is no environment of one."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:  # noqa: ANN401
        """Return that none is wrapped."""
        del wrapper_class
        return [False for _ in self._get_indices(indices)]


def train(task: str, steps: int, num_envs: int = 64) -> float:
    """Train a policy, and return the mean return of the last 100 episodes."""
    env = gymnasium.make_vec(f"shoal.gym:shoal/{task}", num_envs=num_envs, device="cpu")
    model = PPO("MlpPolicy", VecMonitor(Sb3VecEnv(env)), n_steps=128, batch_size=1024, device="cpu", verbose=1, seed=1)
    model.learn(steps)
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    return sum(returns) / max(1, len(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="Cartpole-Swingup")
    parser.add_argument("--steps", type=int, default=1_000_000)
    options = parser.parse_args()
    sys.stdout.write(f"Mean return {train(options.task, options.steps):.2f}\n")
