"""Control a robot in plain MuJoCo with an exported policy: the numbers come from its metadata, nothing from Shoal.

python docs/examples/controller.py POLICY.onnx ROBOT.xml [--friction 0.5] [--mass 1.1] [--delay 0.02]
"""

import argparse
import json
import sys
from collections import deque

import mujoco
import numpy as np
import onnxruntime

ACTIONS = ("joint_position", "gait_joint_position", "joint_velocity", "joint_effort")
"""Functions of actions that the controller knows: they set targets of actuators, or torques of motors."""


class Controller:
    """A policy that observes and moves a robot, which stands on a plane. It need not have the actuators.

    `friction` is that of all geoms instead of their own, `mass` a factor of all masses and inertias, and `delay` the
    time after which an action acts [s].
    """

    def __init__(
        self, policy: str, robot: str, *, friction: float | None = None, mass: float = 1.0, delay: float = 0.0
    ) -> None:
        self.session = onnxruntime.InferenceSession(policy)
        texts = self.session.get_modelmeta().custom_metadata_map
        self.metadata = metadata = {key: json.loads(text) for key, text in texts.items() if text.startswith(("[", "{"))}
        spec = mujoco.MjSpec.from_file(robot)
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 0.05), contype=1, conaffinity=1)
        self.period, spec.option.timestep = float(texts["control_period_s"]), float(texts["physics_step_s"])
        spec.option.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{texts['integrator'].upper()}")
        numbers = [metadata[f"joint_{each}"] for each in ("stiffness", "damping", "torque_limits", "target_limits")]
        numbers = zip(metadata["joint_names"], *numbers, strict=True)
        actuators = dict(zip(metadata["actuator_names"], numbers, strict=True))
        resisting = [metadata[f"joint_{each}"] for each in ("armature", "frictionloss", "viscous_damping")]
        for name, armature, friction_loss, damping in zip(metadata["joint_names"], *resisting, strict=True):
            joint = spec.joint(name)
            joint.armature, joint.frictionloss, joint.damping[0] = armature, friction_loss, damping
        self.home = metadata["default_pose"]
        self.acted = {}  # Offset, scale and limits of the control of each actuator, in the order of the actions.
        self.largest = np.array([acted["clip"] for acted in metadata["actions"].values() for _ in acted["columns"]])
        for name, acted in metadata["actions"].items():
            if acted["function"] not in ACTIONS or {"offset", "lower", "upper"} & {*acted["parameters"]}:
                sys.exit(
                    f"The action {name} is '{acted['function']}', but this controller knows {', '.join(ACTIONS)}, "
                    "without offset, lower and upper."
                )
            for column, scale in zip(acted["columns"], acted["scale"], strict=True):
                joint, kp, kd, forces, limits = actuators[column]
                actuator = spec.actuator(column) or spec.add_actuator(
                    name=column, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT
                )
                if acted["function"].endswith("joint_position"):
                    actuator.set_to_position(kp=kp, kv=kd)
                elif acted["function"] == "joint_velocity":
                    actuator.set_to_velocity(kv=kd)
                else:
                    actuator.set_to_motor()
                # All numbers are the joint's.
                actuator.gear, actuator.ctrllimited, actuator.forcerange = [1, 0, 0, 0, 0, 0], False, forces
                self.acted[column] = self.home[joint] * acted["function"].endswith("joint_position"), scale, limits
        for geom in spec.geoms if friction is not None else ():
            geom.friction[0] = friction
        model = spec.compile()
        model.body_mass *= mass
        model.body_inertia *= mass
        self.data = mujoco.MjData(model)
        mujoco.mj_setConst(model, self.data)  # What follows from masses, such as the weights of constraints.
        self.data.qpos[:] = metadata["default_qpos"]
        self.terms = [term for group in metadata["observation_groups"] for term in metadata["observations"][group]]
        self.pasts = [deque(maxlen=term["history_length"]) for term in self.terms]
        self.commands = {name: np.zeros(len(columns)) for name, columns in metadata["commands"].items()}
        self.action, self.steps = np.zeros(len(self.acted)), 0
        # Of each physics step to come: until the first action acts, the robot holds its pose.
        self.controls = deque([self.control(self.action)] * round(delay / model.opt.timestep))
        for term in self.terms:
            if term["function"] not in self.measure(term):
                sys.exit(
                    f"The observation {term['name']} is '{term['function']}', which this controller does not know."
                )

    def measure(self, term: dict) -> dict[str, np.ndarray]:
        """Return the present values of the columns of an observation, by the function of the observation."""
        to_world, qvel = np.empty(9), self.data.qvel
        mujoco.mju_quat2Mat(to_world, self.data.qpos[3:7])
        joints = [self.data.joint(name) for name in term["columns"] if name in self.home]
        acted = dict(zip(self.acted, self.action, strict=True))
        return {
            "base_lin_vel": qvel[:3] @ to_world.reshape(3, 3),
            "base_ang_vel": qvel[3:6],
            "projected_gravity": -to_world[6:],
            "velocity_command": self.commands.get(term["parameters"].get("command")),
            "joint_pos_rel": [joint.qpos[0] - self.home[joint.name] for joint in joints],
            "joint_vel_rel": [joint.qvel[0] for joint in joints],
            "gait_phase": [turn(2 * np.pi * self.clock(term)) for turn in (np.sin, np.cos)],
            "last_action": [acted.get(name) for name in term["columns"]],
        }

    def clock(self, term: dict) -> float:
        """Return how many periods of a term have passed."""
        return self.steps * self.period / term["parameters"].get("period", 1.0)

    def swings(self) -> np.ndarray:
        """Return how far the pose that actions are around is from the default one."""
        moved = []
        for acted in self.metadata["actions"].values():
            lift = np.zeros(len(acted["columns"]))
            if acted["function"] == "gait_joint_position":
                x, y, turn = self.commands[acted["parameters"]["command"]]
                phases = self.clock(acted) + np.array(acted["shift"])
                if np.hypot(x, y) + abs(turn) > acted["parameters"].get("command_threshold", 0.05):
                    lift = acted["swing"] * np.maximum(0, -np.sin(2 * np.pi * phases)) ** 2
            moved.extend(lift)
        return np.array(moved)

    def observe(self) -> np.ndarray:
        """Return what the policy observes: each term clipped, scaled, and with its history."""
        for term, past in zip(self.terms, self.pasts, strict=True):
            low, high = term["clip"] or (-np.inf, np.inf)
            value = np.clip(self.measure(term)[term["function"]], low, high) * term["scale"]
            past.extend([value] * (1 if past else term["history_length"]))
        return np.concatenate([value for past in self.pasts for value in past]).astype(np.float32)

    def step(self) -> tuple[np.ndarray, np.ndarray]:
        """Observe, act, and simulate until the next action; return observation and action."""
        observation = self.observe()
        action = self.session.run(["actions"], {"obs": observation[None]})[0][0]
        self.action = action.clip(-self.largest, self.largest)
        self.steps += 1
        control = self.control(self.action, self.swings())
        for _ in range(round(self.period / self.data.model.opt.timestep)):
            self.controls.append(control)
            self.data.ctrl[:] = self.controls.popleft()
            mujoco.mj_step(self.data.model, self.data)
        return observation, self.action

    def control(self, action: np.ndarray, swings: float | np.ndarray = 0.0) -> np.ndarray:
        """Return the controls of all actuators that follow from an action."""
        control = self.data.ctrl.copy()
        moves = np.broadcast_to(swings, action.shape)
        for (name, (offset, scale, limits)), acted, moved in zip(self.acted.items(), action, moves, strict=True):
            control[self.data.model.actuator(name).id] = np.clip(offset + scale * acted + moved, *limits)
        return control


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", help="policy.onnx of `shoal export`")
    parser.add_argument("robot", help="MJCF file")
    parser.add_argument("--friction", type=float, help="sliding friction of all geoms, instead of their own")
    parser.add_argument("--mass", type=float, default=1.0, help="factor of all masses and inertias")
    parser.add_argument("--delay", type=float, default=0.0, help="time after which an action acts [s]")
    controller = Controller(**vars(parser.parse_args()))
    controller.commands["twist"][0] = 0.5
    data = controller.data
    for _ in range(round(5 / controller.period)):
        controller.step()
    x, y, z = data.qpos[:3]
    sys.stdout.write(f"After {data.time:.0f} s the robot is at x = {x:.2f}, y = {y:.2f}, z = {z:.2f} m.\n")
