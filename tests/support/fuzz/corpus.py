"""Valid examples of every kind of file that Shoal reads from others, made by its own commands and writers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import yaml
from support.fuzz.harness import Place, Server

from shoal.jobs.ledger import Ledger, prepare
from shoal.jobs.results import read_jobs

TASK = "Cartpole-Swingup"
CPU = ("--gpu-ids", "None")
RUN = f"logs/{TASK}/2026-01-01_00-00-00"
_SMALL = {
    "num_envs": 4,
    "max_iterations": 2,
    "agent.num_steps_per_env": 4,
    "agent.save_interval": 1,
    "agent.actor.hidden_dims": [8],
    "agent.critic.hidden_dims": [8],
    "env.episode_length_s": 0.1,
}
_QUADRUPED = Path(__file__).parents[3] / "src" / "shoal" / "tasks" / "quadruped" / "quadruped.xml"
_DIVERGED = """
import sys
from pathlib import Path
from support.diverged_envs import RUNAWAY, bouncing, dump_of, step_until_lost
from shoal.sim.isolation import isolated
from shoal.sim.nan.dump import write_dump
with isolated("cpu"):
    task = bouncing(engine="mujoco", runaway=RUNAWAY)
    step_until_lost(task)
    write_dump(dump_of(task), Path(sys.argv[1]))
"""


def make_corpus(place: Place, server: Server) -> None:
    """Fill the given folder of a place."""
    given = place.given
    given.mkdir()

    def run(name: str, *words: str | Path) -> None:
        answer = server.run(place, [name, *map(str, words)], seconds=120)
        assert answer.code == 0, (name, words, answer.output)

    small = [f"--{name.replace('_', '-')}={value}" for name, value in _SMALL.items() if not isinstance(value, list)]
    small += ["--agent.actor.hidden-dims", "8", "--agent.critic.hidden-dims", "8"]
    logs = ("--log-root", given / "logs")
    run("train", TASK, *small, *CPU, *logs, "--logger", "none")
    (trained,) = (given / "logs" / TASK).iterdir()
    trained.rename(given / RUN)
    checkpoint = given / RUN / "checkpoints" / "000002"
    shutil.copy(given / RUN / "params" / "train.yaml", given / "config.yaml")
    shutil.copy(checkpoint / "model.pt", given / "model.pt")
    shutil.copytree(given / RUN / "exports", given / "exported")

    entries = [
        {"name": "trained", "task": TASK, "policy": str(checkpoint)},
        {"name": "still", "task": TASK, "policy": "zero", "seed": [1, 2], "variations": {"episode_length_s": 0.1}},
    ]
    shared = {"num_envs": 2, "num_episodes": 4}
    _write_yaml(given / "jobs.yaml", [entry | shared for entry in entries])
    (given / "jobs.json").write_text(json.dumps({"jobs": [entries[0] | shared]}), encoding="utf-8")
    for out in ("out", "other"):
        run("evaluate", "--jobs", given / "jobs.yaml", "--out", given / out, *CPU, *logs)
    _make_unfinished(given / "out", given / "unfinished")

    _write_yaml(
        given / "sweep.yaml",
        {
            "name": "rates",
            "task": TASK,
            "trials": 2,
            "parameters": {"agent.algorithm.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
            "fixed": _SMALL | {"max_iterations": 1},
        },
    )
    run("shoal", "sweep", given / "sweep.yaml", *CPU, *logs)
    steps = {"agent.algorithm.gamma": {"low": 0.9, "high": 0.99, "step": 0.03}, "seed": {"choices": [1, 2]}}
    _write_yaml(given / "grid.yaml", {"name": "steps", "task": TASK, "sampler": "grid", "parameters": steps})

    run("shoal", "motion", "squats", "--end", "0.3", "--out", given / "motion.npz")
    with np.load(given / "motion.npz") as motion:
        base = np.concatenate([motion["body_pos_w"][:, 0], motion["body_quat_w"][:, 0][:, [1, 2, 3, 0]]], axis=1)
        np.savetxt(given / "motion.csv", np.concatenate([base, motion["joint_pos"]], axis=1), delimiter=",")
    subprocess.run(
        [sys.executable, "-c", _DIVERGED, str(given / "diverged.npz")], check=True, cwd=Path(__file__).parents[2]
    )
    _make_robots(given / "robot")
    (given / "rl_games.yaml").write_text(_RL_GAMES, encoding="utf-8")
    user = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "rl_games.yaml"), (*user, "commit", "-q", "-m", "One file")):
        subprocess.run(["git", "-C", given, *words], check=True)


def _write_yaml(file: Path, data: object) -> None:
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def _make_unfinished(out: Path, unfinished: Path) -> None:
    """Make an evaluation that was killed: a job has one part that is done, one that failed, and one in progress."""
    unfinished.mkdir()
    shutil.copy(out / "manifest.json", unfinished)
    jobs = read_jobs(out)
    episodes = (out / jobs[0].name / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    prepare(unfinished, jobs)
    (unfinished / "ranks").mkdir()
    ledger = Ledger(out=unfinished, jobs=jobs)
    for number in (0, 1):
        claim = ledger.claim()
        assert claim is not None
        claim.write(json.loads(episodes[2 * number]))
        if number == 0:
            claim.write(json.loads(episodes[1]))
            ledger.complete(claim, seconds=0.5)
        else:
            ledger.fail(claim, "ValueError: It was tried.", "A traceback.\n")


def _make_robots(folder: Path) -> None:
    """Write the quadruped that ships as an MJCF with an include and a mesh, and a small URDF."""
    folder.mkdir()
    text = _QUADRUPED.read_text(encoding="utf-8")
    begin, end = text.index("<default>"), text.index("</default>\n  <worldbody>") + len("</default>\n")
    (folder / "defaults.xml").write_text(f"<mujoco>{text[begin:end]}</mujoco>\n", encoding="utf-8")
    mesh = '<include file="defaults.xml"/><asset><mesh name="head" file="head.obj"/></asset>\n'
    robot = text[:begin] + mesh + text[end:]
    robot = robot.replace(
        '<geom name="head" type="box" size="0.035 0.04 0.04"', '<geom name="head" type="mesh" mesh="head"'
    )
    (folder / "robot.xml").write_text(robot, encoding="utf-8")
    points = [(0.0, 0.0, 0.0), (0.05, 0.0, 0.0), (0.0, 0.05, 0.0), (0.0, 0.0, 0.05)]
    lines = [f"v {x} {y} {z}" for x, y, z in points] + ["f 1 3 2", "f 1 2 4", "f 1 4 3", "f 2 3 4"]
    (folder / "head.obj").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "robot.urdf").write_text(_URDF, encoding="utf-8")


_LINK = """  <link name="{0}"><inertial><origin xyz="0 0 0"/><mass value="1"/>
    <inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/></inertial>
    <collision><geometry><sphere radius="0.1"/></geometry></collision></link>
"""
_URDF = f"""<robot name="arm">
{_LINK.format("base")}{_LINK.format("tip")}  <joint name="elbow" type="revolute">
    <parent link="base"/><child link="tip"/><origin xyz="0 0 0.3"/><axis xyz="0 1 0"/>
    <limit lower="-1" upper="1" effort="10" velocity="5"/></joint>
</robot>
"""

_RL_GAMES = """params:
  algo: {name: a2c_continuous}
  model: {name: continuous_a2c_logstd}
  network:
    name: actor_critic
    separate: false
    space:
      continuous:
        mu_activation: None
        sigma_activation: None
        mu_init: {name: default}
        sigma_init: {name: const_initializer, val: 0}
        fixed_sigma: true
    mlp: {units: [8], activation: elu, initializer: {name: default}}
  config:
    name: Cartpole
    normalize_input: true
    normalize_value: true
    normalize_advantage: true
    gamma: 0.99
    tau: 0.95
    learning_rate: 0.0003
    lr_schedule: adaptive
    kl_threshold: 0.008
    grad_norm: 1.0
    entropy_coef: 0.0
    truncate_grads: true
    e_clip: 0.2
    clip_value: true
    horizon_length: 4
    minibatch_size: 4
    mini_epochs: 1
    critic_coef: 2
"""
