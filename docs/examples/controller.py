"""Control a robot in plain MuJoCo with an exported policy: the numbers come from its metadata, nothing from Shoal.

python docs/examples/controller.py POLICY.onnx ROBOT.xml
"""

import json
import sys
from collections import deque

import mujoco
import numpy as np
import onnxruntime


class Controller:
    """A policy that observes and moves a robot, which stands on a plane and has the policy's servos."""

    def __init__(self, policy: str, robot: str) -> None:
        self.session = onnxruntime.InferenceSession(policy)
        texts = self.session.get_modelmeta().custom_metadata_map
        self.metadata = metadata = {key: json.loads(text) for key, text in texts.items() if text.startswith(("[", "{"))}
        spec = mujoco.MjSpec.from_file(robot)
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 0.05), contype=1, conaffinity=1)
        self.period, spec.option.timestep = float(texts["control_period_s"]), float(texts["physics_step_s"])
        gains = zip(*(metadata[f"joint_{each}"] for each in ("stiffness", "damping", "torque_limits")), strict=True)
        for name, (kp, kd, limit) in zip(metadata["actuator_names"], gains, strict=True):
            spec.actuator(name).set_to_position(kp=kp, kv=kd)
            spec.actuator(name).forcerange = (-limit, limit)
        self.data = mujoco.MjData(spec.compile())
        self.home = dict(zip(metadata["joint_names"], metadata["default_joint_pos"], strict=True))
        self.terms = [term for group in metadata["observation_groups"] for term in metadata["observations"][group]]
        self.pasts = [deque(maxlen=term["history"]) for term in self.terms]
        self.commands = {name: np.zeros(len(columns)) for name, columns in metadata["commands"].items()}
        self.action = np.zeros(len(self.home))

    def measure(self, term: dict) -> np.ndarray:
        """Return the present value of an observation."""
        to_world, qvel = np.empty(9), self.data.qvel
        mujoco.mju_quat2Mat(to_world, self.data.qpos[3:7])
        joints = [self.data.joint(name) for name in term["columns"] if name in self.home]
        values = {
            "base_lin_vel": qvel[:3] @ to_world.reshape(3, 3),
            "base_ang_vel": qvel[3:6],
            "projected_gravity": -to_world[6:],
            "velocity_command": self.commands.get(term["parameters"].get("command")),
            "joint_pos_rel": [joint.qpos[0] - self.home[joint.name] for joint in joints],
            "joint_vel_rel": [joint.qvel[0] for joint in joints],
            "last_action": self.action,
        }
        limit = term["clip"] or np.inf
        return term["scale"] * np.clip(values[term["function"]], -limit, limit)

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        """Observe, act, and simulate until the next action; return observation and action."""
        for term, past in zip(self.terms, self.pasts, strict=True):
            past.extend([self.measure(term)] * (1 if past else term["history"]))
        observation = np.concatenate([value for past in self.pasts for value in past]).astype(np.float32)
        (acted,) = self.metadata["actions"].values()
        action = self.session.run(["actions"], {"obs": observation[None]})[0][0]
        self.action = action.clip(-acted["clip"], acted["clip"])
        target = self.metadata["default_joint_pos"] + np.multiply(acted["scale"], self.action)
        self.data.ctrl[:] = target.clip(*np.transpose(self.metadata["joint_target_limits"]))
        mujoco.mj_step(self.data.model, self.data, round(self.period / self.data.model.opt.timestep))
        return observation, self.action


if __name__ == "__main__":
    controller = Controller(*sys.argv[1:])
    controller.commands["twist"][0] = 0.5
    data = controller.data
    mujoco.mj_resetDataKeyframe(data.model, data, 0)
    for _ in range(round(5 / controller.period)):
        controller.step()
    x, y, z = data.qpos[:3]
    sys.stdout.write(f"After {data.time:.0f} s the robot is at x = {x:.2f}, y = {y:.2f}, z = {z:.2f} m.\n")
