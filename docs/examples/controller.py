"""Control a robot in plain MuJoCo with an exported policy: the numbers come from its metadata, nothing from Shoal.

python docs/examples/controller.py POLICY.onnx ROBOT.xml
"""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

import mujoco
import numpy as np
import onnxruntime
from numpy.typing import ArrayLike


def in_base(data: mujoco.MjData, vector: ArrayLike) -> np.ndarray:
    """Rotate a vector from the world to the base's frame."""
    turned, back = np.zeros(3), np.zeros(4)
    mujoco.mju_negQuat(back, data.qpos[3:7])
    mujoco.mju_rotVecQuat(turned, np.asarray(vector, dtype=float), back)
    return turned


class Controller:
    """A policy with the observations, servos and period that its metadata describe."""

    def __init__(self, policy: str) -> None:
        """Read the file."""
        self.session = onnxruntime.InferenceSession(policy)
        metadata = self.session.get_modelmeta().custom_metadata_map

        def read(name: str) -> Any:  # noqa: ANN401  JSON.
            return json.loads(metadata[name])

        self.servos = list(zip(*map(read, SERVO), strict=True))
        self.home = dict(zip(read("joint_names"), read("default_joint_pos"), strict=True))
        self.targets = dict(zip(read("actuator_names"), read("joint_target_limits"), strict=True))
        self.physics_step_s = read("physics_step_s")
        self.decimation = round(read("control_period_s") / self.physics_step_s)
        self.observed = [term for group in read("observation_groups") for term in read("observations")[group]]
        self.pasts = [deque[Any](maxlen=term["history"]) for term in self.observed]
        (self.acted,) = read("actions").values()
        self.action = np.zeros(len(self.acted["columns"]), np.float32)
        self.commands = {name: np.zeros(len(columns)) for name, columns in read("commands").items()}

    def build(self, robot: str) -> mujoco.MjModel:
        """Return the robot on a plane, with the policy's servos and time step."""
        spec = mujoco.MjSpec.from_file(robot)
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 0.05), contype=1, conaffinity=1)
        for name, kp, kd, limit in self.servos:
            spec.actuator(name).set_to_position(kp=kp, kv=kd)
            spec.actuator(name).forcerange = (-limit, limit)
        spec.option.timestep = self.physics_step_s
        return spec.compile()

    def observe(self, data: mujoco.MjData) -> np.ndarray:
        """Return what the policy observes."""
        for term, past in zip(self.observed, self.pasts, strict=True):
            value = np.asarray(OBSERVATIONS[term["function"], term["unit"]](self, data, term))
            value = value.clip(-term["clip"], term["clip"]) if term["clip"] else value
            past.extend([value * term["scale"]] * (1 if past else term["history"]))
        return np.concatenate([value for past in self.pasts for value in past]).astype(np.float32)

    def step(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Observe, act, and simulate until the next action; return observation and action."""
        observation = self.observe(data)
        (actions,) = self.session.run(["actions"], {"obs": observation[None]})
        limit = self.acted["clip"]
        self.action = np.asarray(actions)[0].clip(-limit, limit)
        for name, scale, action in zip(self.acted["columns"], self.acted["scale"], self.action, strict=True):
            joint = data.model.joint(data.model.actuator(name).trnid[0]).name
            data.actuator(name).ctrl = np.clip(self.home[joint] + scale * action, *self.targets[name])
        mujoco.mj_step(data.model, data, self.decimation)
        return observation, self.action


SERVO = ("actuator_names", "joint_stiffness", "joint_damping", "joint_torque_limits")
OBSERVATIONS: dict[tuple[str, str], Any] = {
    ("base_lin_vel", "m/s"): lambda _, data, _term: in_base(data, data.qvel[:3]),
    ("base_ang_vel", "rad/s"): lambda _, data, _term: data.qvel[3:6],
    ("projected_gravity", ""): lambda _, data, _term: in_base(data, (0.0, 0.0, -1.0)),
    ("velocity_command", ""): lambda self, _data, term: self.commands[term["parameters"]["command"]],
    ("joint_pos_rel", "rad or m"): lambda self, data, term: [
        data.joint(name).qpos[0] - self.home[name] for name in term["columns"]
    ],
    ("joint_vel_rel", "rad/s or m/s"): lambda _, data, term: [data.joint(name).qvel[0] for name in term["columns"]],
    ("last_action", ""): lambda self, _data, _term: self.action,
}
"""Observation terms that this robot can measure, by function and unit."""

if __name__ == "__main__":
    controller = Controller(sys.argv[1])
    controller.commands["twist"][0] = 0.5
    model = controller.build(sys.argv[2])
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    while data.time < 5.0:  # noqa: PLR2004  Seconds.
        controller.step(data)
    x, y, z = data.qpos[:3]
    sys.stdout.write(f"After {data.time:.0f} s the robot is at x = {x:.2f}, y = {y:.2f}, z = {z:.2f} m.\n")
