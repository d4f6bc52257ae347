"""Actuators that are networks: torch evaluates the same weights, and MuJoCo steps with their torques."""

# ruff: noqa: ARG003

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp as wp
from torch import nn

from shoal.errors import UsageError
from shoal.mdp.config import TermsConfig, task_config
from shoal.mdp.networks import read_network
from shoal.mdp.task import TermsTask
from shoal.mdp.terms import Action, Done, Event, Obs, Reward

ARM = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <body name="upper">
      <joint name="shoulder" axis="0 1 0" damping="0.2"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" contype="0"/>
      <body name="lower" pos="0 0 -0.3">
        <joint name="elbow" axis="0 1 0" damping="0.2"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.3" size="0.03" contype="0"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="elbow" joint="elbow" gear="-2" forcerange="-2 2"/>
    <motor name="shoulder" joint="shoulder"/>
  </actuator>
</mujoco>
"""
NUM_ENVS, STEPS, DECIMATION, STALL, NO_LOAD = 3, 25, 2, 6.0, 8.0
SCALES = {"pos_scale": 2.0, "vel_scale": -0.3, "torque_scale": 5.0}
JOINTS = [1, 0]
"""Of the actuators, in their order."""


class Lstm(nn.Module):
    """An LSTM with a linear layer behind it, as Isaac Lab's `ActuatorNetLSTM` has."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 8, num_layers=2, batch_first=True)
        self.out = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        y, state = self.lstm(x[:, None], state)
        return self.out(y[:, 0]), state


def mlp(function: type[nn.Module] = nn.ELU, history: int = 3) -> nn.Module:
    """Return an MLP as Isaac Lab's and mjlab's are."""
    return nn.Sequential(nn.Linear(2 * history, 32), function(), nn.Linear(32, 16), function(), nn.Linear(16, 1))


def saved(module: nn.Module, path: Path) -> str:
    """Write the weights of a module; return the file."""
    torch.save(module.state_dict(), path / "net.pt")
    return str(path / "net.pt")


def build(file: str, *, engine: str = "mujoco", device: str = "cpu", **changes: Any) -> TermsTask[TermsConfig]:
    """Build arms whose motors follow a network, and whose episodes end at different times."""
    values = {"scale": 0.5, "saturation_effort": STALL, "velocity_limit": NO_LOAD, **SCALES, **changes}

    class Arm(TermsTask[TermsConfig]):
        config = task_config(
            TermsConfig,
            engine=engine,
            decimation=DECIMATION,
            actions={"x": Action("learned_actuator", actuators=".*", network_file=file, **values)},
            observations={"policy": {"angles": Obs("joint_pos_rel", joints=".*")}},
            rewards={"alive": Reward("is_alive", weight=1.0)},
            terminations={"far": Done("joint_pos_out_of_manual_limit", joints="elbow", bounds=(-0.3, 0.3))},
            events={
                "start": Event(
                    "reset_joints_by_offset", "reset", joints=".*", position=(-0.3, 0.3), velocity=(-5.0, 5.0)
                )
            },
        )

        @classmethod
        def build_model(cls, config: TermsConfig) -> mujoco.MjModel:
            return mujoco.MjModel.from_xml_string(ARM)

    return Arm(Arm.config, num_envs=NUM_ENVS, device=device, seed=0)


class Oracle:
    """The networks of one environment in torch, as Isaac Lab's and mjlab's actuators call them."""

    def __init__(self, module: nn.Module, *, speeds_first: bool = False) -> None:
        self.module, self.speeds_first = module, speeds_first
        self.history: list[np.ndarray] = []
        self.state = (torch.zeros(2, 2, 8), torch.zeros(2, 2, 8))

    def torques(self, data: mujoco.MjData, targets: np.ndarray) -> np.ndarray:
        """Return the torques of the joints of both actuators, (2,), and remember their inputs."""
        speed = data.qvel[JOINTS]
        now = np.stack([SCALES["pos_scale"] * (targets - data.qpos[JOINTS]), SCALES["vel_scale"] * speed], axis=1)
        if isinstance(self.module, Lstm):
            outputs, self.state = self.module(torch.tensor(now, dtype=torch.float32), self.state)
        else:
            length = self.module[0].in_features // 2  # pyright: ignore[reportIndexIssue]
            self.history = [now, *(self.history or [now] * length)][:length]  # mjlab's buffer begins full of the first.
            parts = [np.stack([each[:, at] for each in self.history], axis=1) for at in (0, 1)]
            row = np.concatenate(parts[::-1] if self.speeds_first else parts, axis=1)
            outputs = self.module(torch.tensor(row, dtype=torch.float32))
        torques = SCALES["torque_scale"] * outputs.detach().numpy()[:, 0]
        return np.clip(torques, STALL * (-1.0 - speed / NO_LOAD), STALL * (1.0 - speed / NO_LOAD))


def compare(task: TermsTask[Any], module: nn.Module, **more: Any) -> list[float]:
    """Compare controls and states of some steps with MuJoCo's; return all torques of the last physics steps."""
    oracles = [Oracle(module, **more) for _ in range(NUM_ENVS)]
    rng, seen = np.random.default_rng(0), list[float]()
    gears, ended = task.model.actuator_gear[:, 0], 0
    for _ in range(STEPS):
        sent = rng.uniform(-2, 2, (NUM_ENVS, 2)).astype(np.float32)
        before = task.qpos.numpy().copy(), task.qvel.numpy().copy()
        task.actions.assign(sent)
        task.run("act", "physics")
        after = [each.numpy().copy() for each in (task.qpos, task.qvel, task.ctrl)]
        for env, oracle in enumerate(oracles):
            data = mujoco.MjData(task.model)
            data.qpos[:], data.qvel[:] = before[0][env], before[1][env]
            for _ in range(DECIMATION):
                data.ctrl[:] = oracle.torques(data, 0.5 * sent[env]) / gears
                mujoco.mj_step(task.model, data)
            seen += (data.ctrl * gears).tolist()
            for ours, theirs in zip(after, (data.qpos, data.qvel, data.ctrl), strict=True):
                np.testing.assert_allclose(ours[env], theirs, rtol=1e-5, atol=1e-5)
        task.run("reward", "close", "reset", "interval", "derive", "observe")
        for env in np.flatnonzero(task.done.numpy()):
            oracles[env], ended = Oracle(module, **more), ended + 1
    assert 2 <= ended < STEPS * NUM_ENVS
    return seen


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_an_mlp_acts_before_each_physics_step_as_in_torch_and_forgets_its_inputs_when_an_episode_begins(
    engine: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    module = mlp()
    torques = compare(build(saved(module, tmp_path), engine=engine), module)
    assert np.ptp(torques) > 2.0


@pytest.mark.parametrize("engine", ["mujoco", "mjwarp"])
def test_an_lstm_acts_as_in_torch_and_begins_each_episode_with_a_state_of_zeros(engine: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Lstm()
    task = build(saved(module, tmp_path), engine=engine)
    compare(task, module)
    (memory,) = (array for name, array in task.arrays.items() if name.endswith("network_file"))
    assert memory.shape == (NUM_ENVS, 2 * (2 + 2 * 2 * 8)), "its state is in checkpoints"


@pytest.mark.parametrize(("name", "function"), [("relu", nn.ReLU), ("softsign", nn.Softsign), ("tanh", nn.Tanh)])
def test_an_mlp_has_any_of_the_activations_and_may_get_the_speeds_first(
    name: str, function: type[nn.Module], tmp_path: Path
) -> None:
    torch.manual_seed(2)
    module = mlp(function, history=2)
    compare(build(saved(module, tmp_path), activation=name, input_order="vel_pos"), module, speeds_first=True)


def test_a_delayed_action_of_a_network_acts_steps_later(tmp_path: Path) -> None:
    torch.manual_seed(0)
    file = saved(mlp(), tmp_path)
    lags: Any = {"delay_min_lag": 1, "delay_max_lag": 1}
    late, early = build(file, **lags), build(file)
    for action, before in ((1.0, 0.0), (-2.0, 1.0)):
        for task, sent in ((late, action), (early, before)):
            task.actions.fill_(sent)
            task.run("act", "physics")
    np.testing.assert_array_equal(late.qpos.numpy(), early.qpos.numpy())


@pytest.mark.gpu
def test_on_a_gpu_a_network_is_part_of_the_graph_and_computes_what_it_does_on_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(1)
    file = saved(Lstm(), tmp_path)
    there, here = (build(file, engine="mjwarp", device=device) for device in ("cuda:0", "cpu"))
    assert there.graph.is_whole
    for _ in range(5):
        for task in (there, here):
            task.actions.fill_(0.5)
            task.step()
    wp.synchronize()
    np.testing.assert_allclose(there.ctrl.numpy(), here.ctrl.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 1)), r"it has 1\.weight, which is no weight of"),
        (nn.Sequential(nn.Linear(6, 1), nn.Flatten(), nn.BatchNorm1d(1)), r"it has 2\.weight, which is no"),
        (nn.GRU(2, 1), r"weight_ih_l0 has 3 rows, but those of an LSTM with 1 outputs are 4"),
        (nn.Sequential(nn.Linear(5, 1)), r"its layers have \[5\] inputs and \[1\] outputs, but must be a chain from a"),
        (nn.Sequential(nn.Linear(6, 8), nn.Linear(9, 1)), r"its layers have \[6, 9\] inputs and \[8, 1\] outputs"),
        (nn.Sequential(nn.Linear(6, 12)), r"its layers have \[6\] inputs and \[12\] outputs"),
        (nn.Sequential(nn.Linear(2, 129), nn.Linear(129, 1)), r"its layers .* with at most 128 between"),
        (nn.LSTM(2, 1, bidirectional=True, num_layers=2), r"its layers have \[2, 2, 2, 2\] inputs"),
        (nn.Identity(), r"its layers have \[0\] inputs and \[0\] outputs"),
    ],
)  # fmt: skip
def test_a_file_of_another_network_is_refused(module: nn.Module, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"^term\.file .*net\.pt cannot be read \({said}.*state_dict"):
        read_network("term.file", saved(module, tmp_path), wp.get_device("cpu"))


@pytest.mark.parametrize("content", [b"", b"weights", None, mlp()])
def test_a_file_without_weights_is_refused(content: bytes | nn.Module | None, tmp_path: Path) -> None:
    file = tmp_path / "net.pt"
    if isinstance(content, nn.Module):
        torch.jit.script(content).save(file)
    elif content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=r"^actions\.x\.network_file .*net\.pt cannot be read \(.*state_dict"):
        build(str(file))  # As a term of a task refuses it.


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    module = mlp()
    nn.init.constant_(module[4].bias, np.nan)  # pyright: ignore[reportIndexIssue]
    with pytest.raises(UsageError, match="weights that are not finite"):
        read_network("term.file", saved(module, tmp_path), wp.get_device("cpu"))


def test_a_run_keeps_the_weights_and_no_replay_is_kept(tmp_path: Path) -> None:
    file = saved(mlp(), tmp_path)
    task = build(file)
    assert task.config.model_files() == {"actions.x.network_file": file}
    with pytest.raises(
        UsageError, match=r"^--env\.on-nan stop was asked for, but actions\.x acts before each physics st"
    ):
        type(task)(task.config.change(on_nan="stop"), num_envs=1, device="cpu", seed=0)
