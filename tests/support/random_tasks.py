"""Random robots, and random tasks from the library of terms for them."""

# ruff: noqa: S311  Nothing here is secret.

from __future__ import annotations

import inspect
import random
import re
from importlib import import_module
from typing import Any, ClassVar, get_args

import mujoco
import warp as wp

from shoal import mdp
from shoal.mdp.accesses import python_of
from shoal.mdp.annotations import hints_of, takes
from shoal.mdp.noise import Gaussian, Uniform
from shoal.mdp.sensors import CONTACT_FIELDS
from shoal.mdp.terms import CHOICES

DECLARATIONS: dict[str, Any] = {
    "actions": mdp.Action,
    "commands": mdp.Command,
    "contacts": mdp.Contact,
    "observations": mdp.Obs,
    "rewards": mdp.Reward,
    "terminations": mdp.Done,
    "events": mdp.Event,
}
RETURNED: dict[str, tuple[Any, ...]] = {
    "actions": (None,),
    "commands": (None,),
    "contacts": (bool,),
    "observations": (float, wp.vec2, wp.vec3, wp.vec4, wp.spatial_vector),
    "rewards": (float,),
    "terminations": (bool,),
    "events": (None,),
}
"""What the functions of a group return."""
WITH_A_FILE = {"learned_actuator"}
"""Functions that need more than numbers and names."""


def library(group: str) -> list[Any]:
    """Return the functions of a group, those that they call among them."""
    functions = map(python_of, vars(import_module(f"shoal.mdp.{group}")).values())
    return [
        each
        for each in functions
        if inspect.isfunction(each)
        and each.__name__ not in WITH_A_FILE
        and [*inspect.signature(each).parameters][:2] == ["state", "env"]
        and inspect.signature(each).return_annotation in RETURNED[group]
    ]


class Robot:
    """A robot with a fixed or a free base, some joints, and actuators for some of them in any order."""

    def __init__(self, rng: random.Random) -> None:
        """Draw it."""
        self.rng = rng
        self.joints: list[str] = []
        self.actuated: list[str] = []
        base = self._body("base", self._chain(0), free=rng.random() < 0.5)
        floor = '<geom name="floor" type="plane" size="5 5 0.1"/>' if rng.random() < 0.7 else ""
        self.xml = f"""<mujoco><compiler angle="radian"/><worldbody>{floor}{base}</worldbody>
            <tendon>{self._tendon()}</tendon><actuator>{self._actuators()}</actuator>
            <sensor>{self._sensors()}</sensor></mujoco>"""

    def _body(self, name: str, children: str, *, free: bool = False, joint: str = "") -> str:
        shape = self.rng.choice(['type="sphere" size="0.05"', 'type="box" size="0.05 0.04 0.03"'])
        return f"""<body name="{name}" pos="0 0.1 {1.0 if name == "base" else 0.1}">{"<freejoint/>" if free else joint}
            <geom name="{name}_geom" {shape} density="800"/><site name="{name}_site" pos="0 0 0.1"/>{children}</body>"""

    def _chain(self, depth: int) -> str:
        if depth == 4 or self.rng.random() < 0.2 * depth:
            return ""
        kind = self.rng.choices(["hinge", "slide", "ball"], [7, 2, 1])[0]
        axis = "" if kind == "ball" else f'axis="{self.rng.choice(["1 0 0", "0 1 0", "0 0 1"])}"'
        limit = 'range="-1 1.5"' if kind != "ball" and self.rng.random() < 0.5 else ""
        name = f"{kind}{depth}"
        if kind != "ball":
            self.joints.append(name)
        joint = f'<joint name="{name}" type="{kind}" {axis} {limit} damping="0.5" armature="0.05"/>'
        return self._body(f"link{depth}", self._chain(depth + 1), joint=joint)

    def _tendon(self) -> str:
        if len(self.joints) < 2 or self.rng.random() < 0.7:
            return ""
        terms = "".join(f'<joint joint="{each}" coef="0.5"/>' for each in self.joints[:2])
        self.actuated.append('tendon="tendon"')
        return f'<fixed name="tendon">{terms}</fixed>'

    def _actuators(self) -> str:
        targets = [f'joint="{each}"' for each in self.joints if self.rng.random() < 0.8] + self.actuated
        self.rng.shuffle(targets)
        kinds = ["motor", 'position kp="10" kv="1"', 'velocity kv="2"', 'motor gear="3"']
        limits = ["", 'ctrlrange="-1 1"', 'forcerange="-2 2"']
        drawn = [(self.rng.choice(kinds), each, self.rng.choice(limits)) for each in targets]
        return "".join(f'<{kind} name="a{at}" {each} {limit}/>' for at, (kind, each, limit) in enumerate(drawn))

    def _sensors(self) -> str:
        kinds = ['<gyro name="gyro" site="base_site"/>', '<subtreeangmom name="momentum" body="base"/>']
        return "".join(each for each in kinds if self.rng.random() < 0.5)


def random_task(seed: int) -> type[mdp.TermsTask[Any]]:
    """Return a task with random terms on a random robot."""
    rng = random.Random(seed)
    robot = Robot(rng)

    def build_spec(_cls: type, _config: Any) -> mujoco.MjSpec:
        return mujoco.MjSpec.from_string(robot.xml)

    groups = _Terms(rng, mujoco.MjModel.from_xml_string(robot.xml)).groups()
    config = mdp.task_config(mdp.TermsConfig, physics_dt=0.005, decimation=2, episode_length_s=0.05, **groups)
    return type("RandomTask", (mdp.TermsTask,), {"config": config, "build_spec": classmethod(build_spec)})


class _Terms:
    """Draws declarations for a model."""

    names: ClassVar[dict[str, Any]] = {
        "joint": mujoco.mjtObj.mjOBJ_JOINT,
        "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
        "geom": mujoco.mjtObj.mjOBJ_GEOM,
        "body": mujoco.mjtObj.mjOBJ_BODY,
        "site": mujoco.mjtObj.mjOBJ_SITE,
        "sensor": mujoco.mjtObj.mjOBJ_SENSOR,
        "tendon": mujoco.mjtObj.mjOBJ_TENDON,
        "pair": mujoco.mjtObj.mjOBJ_PAIR,
        "camera": mujoco.mjtObj.mjOBJ_CAMERA,
        "light": mujoco.mjtObj.mjOBJ_LIGHT,
        "material": mujoco.mjtObj.mjOBJ_MATERIAL,
    }

    def __init__(self, rng: random.Random, model: mujoco.MjModel) -> None:
        self.rng, self.model = rng, model
        self.contacts: list[str] = []

    def groups(self) -> dict[str, Any]:
        """Return the terms of all groups."""
        most = {"actions": 2, "commands": 1, "contacts": 1, "rewards": 4, "terminations": 1, "events": 3}
        drawn: dict[str, Any] = {}
        for group, count in most.items():
            drawn[group] = {f"{group}_{at}": self.term(group) for at in range(self.rng.randint(0, count))}
            if group == "contacts":
                self.contacts = [*drawn[group]]
        shown = {name: {f"o{at}": self.term("observations") for at in range(3)} for name in ("policy", "critic")}
        return drawn | {"observations": dict([*shown.items()][: self.rng.randint(1, 2)])}

    def term(self, group: str) -> Any:
        """Return one declaration."""
        function = self.rng.choice(library(group))
        if function.__name__ == "touches":
            return self.sensed()
        given = {}
        hints = hints_of(function)
        for name, parameter in [*inspect.signature(function).parameters.items()][2:]:
            rule = takes(hints[name])
            is_passed = name in {"i", "first", "action", "is_new"} or (rule and not rule.said)
            if not is_passed and (parameter.default is inspect.Parameter.empty or self.rng.random() < 0.3):
                given[name] = self.value(hints[name])
        if given.get("distribution") == "gaussian":  # A mean and a standard deviation: nothing becomes negative.
            given |= {
                name: (1.0, 0.01) for name, value in given.items() if isinstance(value, tuple) and len(value) == 2
            }
        if group == "rewards":
            given["weight"] = self.rng.uniform(-1.0, 1.0)
        if group == "commands":
            columns = dict.fromkeys(("lin_vel_x", "lin_vel_y", "ang_vel_z"), "1")
            given |= {"columns": columns, "resampling_time": (0.02, 0.04)}
        if group == "events":
            has_interval = "interval" in given or self.rng.random() < 0.5
            given["mode"] = self.rng.choice(["interval", "step"] if has_interval else ["startup", "reset"])
            given |= {"interval": (0.01, 0.03)} if has_interval else {}
        if group == "observations" and self.rng.random() < 0.5:
            noise = self.rng.choice([0.1, Gaussian(0.1), Uniform(-0.1, 0.2, operation="scale")])
            given |= {"noise": noise, "bias": self.rng.choice([0.0, 0.1]), "history_length": self.rng.randint(0, 2)}
            given |= {"delay_max_lag": self.rng.randint(0, 2), "delay_hold_prob": self.rng.choice([0.0, 0.5, 1.0])}
        return DECLARATIONS[group](function.__name__, **given)

    def sensed(self) -> Any:
        """Return contacts of MuJoCo's sensor."""
        mode, kind = self.rng.choice([("bodies", "body"), ("geoms", "geom"), ("subtrees", "body")])
        given: dict[str, Any] = {mode: self.pattern(kind, several=True), "num_slots": self.rng.randint(1, 2)}
        if self.rng.random() < 0.5:
            given["secondary_body"] = "world"
        fields = tuple(self.rng.sample([*CONTACT_FIELDS], self.rng.randint(1, 7)))
        return mdp.Contact(fields=fields, reduce=self.rng.choice(["mindist", "maxforce", "netforce"]), **given)

    def value(self, annotation: Any) -> Any:
        """Return a value of a parameter."""
        rule = takes(annotation)
        what = rule.what if rule else ""
        if rule and what in {*self.names, "root"}:
            return self.pattern("body" if what == "root" else what, several=not (rule.is_one or what == "root"))
        words = {"command": ["commands_0"], "contact": self.contacts or ["none"]}
        words |= {each: get_args(choice) for each, choice in CHOICES.items()}
        if what in words:
            return self.rng.choice(words[what])
        if what in {"grid", "axes"}:
            return (0.4, 0.2, 0.2) if what == "grid" else (self.rng.randint(0, 1),)
        if vector := re.search(r"vec(\d)", str(annotation)):
            return tuple(sorted(self.rng.uniform(0.8, 1.2) for _ in range(int(vector[1]))))
        if annotation is bool:
            return self.rng.random() < 0.5
        return self.rng.uniform(0.1, 1.0)

    def pattern(self, kind: str, *, several: bool) -> str:
        """Return a pattern of names of a kind."""
        fields = {"joint": "njnt", "actuator": "nu", "camera": "ncam", "material": "nmat"}
        count = getattr(self.model, fields.get(kind, f"n{kind}"))
        names = [mujoco.mj_id2name(self.model, self.names[kind], at) for at in range(count)]
        named = [each for each in names if each and each != "world"]
        if several and self.rng.random() < 0.6:
            return ".*"
        return self.rng.choice(named or ["none"])
