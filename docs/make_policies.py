"""Make the policies that ship: train each, evaluate it, and write `src/shoal/tasks/policies`.

    python docs/make_policies.py [NAME ...]

Without names it makes all of them, one after another: on two CPU cores most of a day, on one GPU an hour. A run that is
in `logs/policies` already is not trained again. Of a checkpoint only the actor is kept, with weights of 16 bits; what
the manifest says of returns and successes holds for that file.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal.config.plain import from_plain
from shoal.envs.capabilities import capabilities_of
from shoal.envs.vec_env import build_vec_env
from shoal.plan.resume import find_model
from shoal.plan.rundir import RunDir
from shoal.sim.isolation import isolated
from shoal.tasks import registry
from shoal.tasks.registry import POLICIES

LOGS = Path("logs/policies")
EVALUATION = ("--num-episodes", "100", "--num-envs", "50", "--seeds", "7")
"""Another seed than that of the training."""
DIGITS = 5
"""Significant digits of numbers in the manifest: the last ones differ between machines."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a policy is made."""

    task: str
    name: str = ""
    """Of the policy. Default: the task's."""
    env: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the environment that are not the task's defaults."""
    training: tuple[str, ...] = ()
    """Other flags of the training."""
    seed: int = 1

    def flags(self) -> list[str]:
        """Return the flags of the environment."""
        return [word for name, value in self.env.items() for word in (f"--env.{name.replace('_', '-')}", str(value))]


RECIPES = {
    each.name or each.task: each
    for each in (
        Recipe(task="Quadruped-Velocity-Flat"),
        Recipe(task="Quadruped-Velocity-Rough"),
        Recipe(
            name="Go2-Velocity-Flat",
            task="Quadruped-Velocity-Flat",
            env={"robot": "go2"},
            training=("--max-iterations", "600"),
        ),
        Recipe(task="G1-Velocity-Flat", training=("--max-iterations", "1730"), seed=42),
        Recipe(task="Arm-Lift-Cube"),
        Recipe(task="Hand-Reorient-Cube", training=("--max-iterations", "950")),
        Recipe(task="Humanoid-Tracking-Flat", training=("--num-envs", "256", "--max-iterations", "600")),
        Recipe(task="Cartpole-Swingup"),
    )
}
"""The policies by name, in the order of the menu."""


def make(name: str, recipe: Recipe, folder: Path, logs: Path) -> dict[str, Any]:
    """Train a policy, unless `logs` has its run, write its file, and return its entry of the manifest."""
    spec = registry.resolve(recipe.task)
    words = ["train", recipe.task, "--seed", str(recipe.seed), *recipe.flags(), *recipe.training]
    log_root = logs / name
    if not log_root.is_dir():
        _shoal(*words, "--log-root", str(log_root))
    model = find_model(str(log_root), spec, "best")
    run, file = RunDir(model.parents[2]), folder / f"{name}.pt"
    folder.mkdir(exist_ok=True)
    state = torch.load(model, weights_only=True)
    actor = {key: _halved(key, each) for key, each in state["actor_state_dict"].items()}
    torch.save({"actor_state_dict": actor, "iter": state["iter"]}, file)
    launch = json.loads(run.run_json.read_text(encoding="utf-8"))["launches"][-1]
    return {
        "task": recipe.task,
        "env": recipe.env,
        "command": " ".join(words),
        "seed": recipe.seed,
        "steps": (state["iter"] + 1) * launch["plan"]["samples_per_iteration"],
        "devices": launch["plan"]["devices"],
        "commit": (launch["git"] or {}).get("commit"),
        "versions": {
            each: launch["versions"][each] for each in ("shoal", "torch", "mujoco", "warp-lang", "rsl-rl-lib")
        },
        "evaluation": {"command": " ".join(["evaluate", recipe.task, *recipe.flags(), *EVALUATION])}
        | evaluate(file, recipe),
        "interface": interface(recipe.task, recipe.env),
    }


def _halved(name: str, weights: torch.Tensor) -> torch.Tensor:
    """Return weights of 16 bits. Normalisers keep 32: their ranges are those of the observations."""
    is_weight = weights.is_floating_point() and "normalizer" not in name
    return weights.half() if is_weight else weights


def evaluate(file: Path, recipe: Recipe, *more: str) -> dict[str, Any]:
    """Evaluate a policy, and return mean and interval of its return, and of its success where the task has one."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        words = ("--checkpoint", str(file.absolute()), "--gpu-ids", "None", "--out", str(out))
        _shoal("evaluate", recipe.task, *recipe.flags(), *EVALUATION, *words, *more)
        (job,) = json.loads((out / "results.json").read_text(encoding="utf-8"))["jobs"]
    summary = job["summary"]
    return {name: _rounded(summary[name]) for name in ("return", "success") if summary[name] is not None}


def _shoal(*words: str) -> None:
    print("shoal", *words, flush=True)  # noqa: T201
    subprocess.run((sys.executable, "-m", "shoal", *words), check=True)


def interface(task: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Return what the weights of a policy stand for: the columns it observes, and what its actions do to the joints."""
    spec = registry.resolve(task)
    config = from_plain(spec.env, changes, "env").in_play().undisturbed()
    with isolated("cpu"):
        env = build_vec_env(spec, config, num_envs=1, device="cpu", seed=1)
        deployment = capabilities_of(env).deployment()
        terms = {"observations": deployment.get("observations", {}).get("policy", [])}
        terms["actions"] = list(deployment.get("actions", {}).values())
        joints = ("joint_names", "default_joint_pos", "joint_stiffness", "joint_damping", "joint_torque_limits")
        kept = ("name", "columns", "scale", "clip", "history_length")
        return _rounded(
            {"columns": env.get_observations()["policy"].shape[-1], "step_dt": capabilities_of(env).picture().step_dt}
            | {kind: [{key: each.get(key) for key in kept} for each in found] for kind, found in terms.items()}
            | {key: deployment[key] for key in joints if key in deployment}
        )


def _rounded(value: Any) -> Any:  # noqa: ANN401  As JSON.
    """Return plain values with few digits."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def text_of(entries: dict[str, dict[str, Any]]) -> str:
    """Return the manifest as JSON, with a line for each part of an entry."""
    texts = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(key)}: {json.dumps(part)}" for key, part in each.items())
        for name, each in entries.items()
    ]
    return "{\n" + "},\n".join(texts) + "}\n}\n"


def main() -> None:
    """Make the policies that are named, or all."""
    manifest = POLICIES / "manifest.json"
    for name in sys.argv[1:] or RECIPES:
        entry = make(name, RECIPES[name], POLICIES, LOGS)
        entries = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}
        entries[name] = entry
        ordered = {each: entries[each] for each in RECIPES if each in entries}
        manifest.write_text(text_of(ordered), encoding="utf-8")


if __name__ == "__main__":
    main()
