"""Every wish that cannot be granted: the words, and what the machine is like. Run as a program, it asks for them all.

It runs in a process of its own, because only there it can be seen that no refusal imports torch.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from support.fake_devices import seen

from shoal.checks.preflight import preflight
from shoal.cli import main
from shoal.cli.parse import parse_train
from shoal.errors import ShoalError
from shoal.plan.training import plan_training

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = ("torch", "warp", "mujoco", "rsl_rl", "tensordict", "torchrunx")

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}

SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "a1",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}

NO_LOGIN = {"HOME": "nowhere", "NETRC": "nowhere", "WANDB_API_KEY": "", "WANDB_MODE": "online"}
NO_LOGIN["WANDB_BASE_URL"] = "https://api.wandb.ai"


@dataclass(frozen=True)
class Wish:
    """What somebody typed, and where."""

    words: str
    """Everything after `shoal`; words are separated by spaces."""
    gpus: int = 0
    """GPUs of the machine; other commands than `train` look at the real machine."""
    environ: dict[str, str] = field(default_factory=dict[str, str])
    hidden: tuple[str, ...] = ()
    """Packages that this machine lacks."""


# fmt: off
WISHES = {
    # Commands and tasks.
    "a misspelt command": Wish("trian Cartpole-Swingup"),
    "a command that is gone": Wish("checkpoints latest"),
    "a list of tasks with a flag": Wish("tasks --gpu-ids"),
    "a misspelt task": Wish("train Cartpole-Swingupp"),
    "a task that is like no other": Wish("train Walker"),
    "no task": Wish("train --num-envs 4"),
    "two tasks": Wish("train --seed 1 Cartpole-Swingup --task Cartpole-Balance"),
    "a task flag without a task": Wish("train --seed 1 --task"),
    "a task file that is not there": Wish("train nowhere.py:Task"),
    "a task file that raises": Wish("train raises.py:Task"),
    "a task file without that class": Wish("train kites.py:Kit"),
    "a task file with several": Wish("train kites.py"),
    # Configuration files.
    "a configuration flag without a file": Wish("train Cartpole-Swingup --config"),
    "a configuration that is not there": Wish("train --config nowhere.yaml"),
    "a configuration that is no YAML": Wish("train --config broken.yaml"),
    "a configuration without names": Wish("train --config list.yaml"),
    "a configuration that names no task": Wish("train --config no_task.yaml"),
    "a configuration with a misspelt field": Wish("train --config misspelt.yaml"),
    # Numbers.
    "no environments": Wish("train Cartpole-Swingup --num-envs 0"),
    "no iterations": Wish("train Cartpole-Swingup --max-iterations 0"),
    "a negative seed": Wish("train Cartpole-Swingup --seed -1"),
    "a negative interval": Wish("train Cartpole-Swingup --check-replicas-every -1"),
    "a discount above one": Wish("train Cartpole-Swingup --agent.algorithm.gamma 1.5"),
    "fewer restarts than none": Wish("train Cartpole-Swingup --max-restarts -1"),
    "no worker at least": Wish("train Cartpole-Swingup --max-restarts 1 --min-workers 0"),
    "fewer workers without restarts": Wish("train Cartpole-Swingup --nproc-per-node 2 --min-workers 1"),
    "more workers at least than there are": Wish(
        "train Cartpole-Swingup --nproc-per-node 2 --max-restarts 1 --min-workers 3"
    ),
    "both numbers of environments": Wish("train Cartpole-Swingup --num-envs 4 --num-envs-total 8"),
    "a total that does not divide": Wish("train Cartpole-Swingup --nproc-per-node 2 --num-envs-total 1001"),
    "a total below the number of workers": Wish("train Cartpole-Swingup --nproc-per-node 4 --num-envs-total 3"),
    "more mini-batches than samples": Wish(
        "train Cartpole-Swingup --num-envs 1 --agent.num-steps-per-env 8 --agent.algorithm.num-mini-batches 9"
    ),
    "more mini-batches than sequences": Wish(
        "train Cartpole-Swingup --num-envs 2 --agent.algorithm.num-mini-batches 4 --agent.actor.class-name RNNModel"
    ),
    # Devices.
    "no workers": Wish("train Cartpole-Swingup --nproc-per-node 0"),
    "a GPU where there is none": Wish("train Cartpole-Swingup --gpu-ids 0"),
    "all GPUs where there is none": Wish("train Cartpole-Swingup --gpu-ids all"),
    "a GPU out of range": Wish("train Cartpole-Swingup --gpu-ids 3", gpus=2),
    "a negative GPU": Wish("train Cartpole-Swingup --gpu-ids -1", gpus=2),
    "a GPU twice": Wish("train Cartpole-Swingup --gpu-ids 0,0", gpus=2),
    "a GPU that is no number": Wish("train Cartpole-Swingup --gpu-ids first", gpus=2),
    "more GPUs than workers": Wish("train Cartpole-Swingup --gpu-ids 0 1 --nproc-per-node 1", gpus=2),
    "an engine that needs the CPU": Wish("train Cartpole-Swingup-Mujoco --gpu-ids 0 --env.engine mujoco", gpus=1),
    "more environments lost than there are": Wish("train Cartpole-Swingup-Mujoco --env.diverged-limit 2"),
    # Machines.
    "a machine twice": Wish("train Cartpole-Swingup --hosts a b a"),
    "a machine that is a flag of ssh": Wish("train Cartpole-Swingup --hosts=-oProxyCommand=true"),
    "an allocation and more": Wish("train Cartpole-Swingup --hosts slurm a"),
    "a flag of torchrun": Wish("train Cartpole-Swingup --nnodes 2"),
    "a configuration of ssh without hosts": Wish("train Cartpole-Swingup --ssh-config broken.yaml"),
    # Directories.
    "a kernel cache below a file": Wish(
        "train Cartpole-Swingup", environ={"WARP_CACHE_PATH": "broken.yaml/kernels"}
    ),
    "a meeting place that does not resolve": Wish(
        "train Cartpole-Swingup", environ={**TORCHRUN, "MASTER_ADDR": "a..b"}
    ),
    "a log root that is a file": Wish("train Cartpole-Swingup --log-root broken.yaml"),
    "a log root below a file": Wish("train Cartpole-Swingup --log-root broken.yaml/logs"),
    "rank files below a file": Wish(
        "train Cartpole-Swingup --nproc-per-node 2 --torchrunx-log-dir broken.yaml/files"
    ),
    "rank files below a file, by the environment": Wish(
        "train Cartpole-Swingup --nproc-per-node 2", environ={"TORCHRUNX_LOG_DIR": "broken.yaml/files"}
    ),
    "a run name that is a path": Wish("train Cartpole-Swingup --run-name a/b"),
    # Runs and checkpoints.
    "resume and checkpoint": Wish("train Cartpole-Swingup --resume --checkpoint latest"),
    "two runs to resume": Wish("train Cartpole-Swingup --resume one two"),
    "resume without any run": Wish("train Cartpole-Swingup --resume"),
    "a run that does not exist": Wish("train Cartpole-Swingup --resume yesterday"),
    "the latest checkpoint without any run": Wish("train Cartpole-Swingup --checkpoint latest"),
    "a checkpoint that does not exist": Wish("train Cartpole-Swingup --checkpoint nowhere/model.pt"),
    # Packages.
    "a logger that is not installed": Wish("train Cartpole-Swingup --logger wandb", hidden=("wandb",)),
    "a logger that wants a login": Wish("train Cartpole-Swingup --logger wandb", environ=NO_LOGIN),
    # Videos.
    "a negative interval of evaluations": Wish("train Cartpole-Swingup --eval-interval -1"),
    "checkpoints without an evaluation": Wish("train Cartpole-Swingup --eval-interval 20 --save-interval 50"),
    "a video of no steps": Wish("train Cartpole-Swingup --video --video-length 0"),
    "a video longer than the time between videos": Wish("train Cartpole-Swingup --video --video-interval 100"),
    "a video of an odd width": Wish("play Cartpole-Swingup --video-size 1279 720"),
    "a video that is no mp4": Wish("play Cartpole-Swingup --policy zero --video-path video.gif"),
    "a video below a file": Wish("play Cartpole-Swingup --policy zero --gpu-ids None --video-path broken.yaml/x.mp4"),
    "a video of no steps of a policy": Wish("play Cartpole-Swingup --video-path video.mp4 --video-length 0"),
    "a video by an unknown renderer": Wish("train Cartpole-Swingup --video", environ={"MUJOCO_GL": "bogus"}),
    # torchrun.
    "restarts under torchrun": Wish("train Cartpole-Swingup --max-restarts 3", environ=TORCHRUN),
    "another number of workers than torchrun's": Wish("train Cartpole-Swingup --nproc-per-node 4", environ=TORCHRUN),
    "variables of torchrun that contradict each other": Wish(
        "train Cartpole-Swingup", environ={**TORCHRUN, "RANK": "2"}
    ),
    # srun.
    "restarts under srun": Wish("train Cartpole-Swingup --max-restarts 3", environ=SRUN),
    "another number of workers than srun's": Wish("train Cartpole-Swingup --nproc-per-node 4", environ=SRUN),
    "machines under srun": Wish("train Cartpole-Swingup --hosts slurm", environ=SRUN),
    "variables of srun that contradict each other": Wish(
        "train Cartpole-Swingup", environ={**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
    ),
    # Playing.
    "play without a task": Wish("play --episodes 3"),
    "play without any run, and none that ships": Wish("play Cartpole-Balance"),
    "a viewer and its contrary": Wish("play Cartpole-Swingup --policy zero --viewer web --headless"),
    "a window without a display": Wish(
        "play Cartpole-Swingup --policy zero --viewer native", environ={"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    ),
    "a viewer of nothing": Wish("play Cartpole-Swingup --viewer web --num-envs 0"),
    "a viewer at no port": Wish("play Cartpole-Swingup --viewer web --viewer-port 0"),
    "a viewer somewhere else": Wish("play Cartpole-Swingup --policy zero --viewer web --viewer-host 192.0.2.1"),
    "play a misspelt task": Wish("play Cartpole-Balence"),
    "a directory that is no checkpoint": Wish("play Cartpole-Swingup --checkpoint ."),
    "evaluate no episodes": Wish("evaluate Cartpole-Swingup --num-episodes 0"),
    "evaluate with a negative seed": Wish("evaluate Cartpole-Swingup --seeds -1"),
    "evaluate episodes and steps": Wish("evaluate Cartpole-Swingup --num-episodes 2 --num-steps 3"),
    "evaluate a task and a file of jobs": Wish("evaluate Cartpole-Swingup --jobs broken.yaml"),
    "evaluate jobs of a broken file": Wish("evaluate --jobs broken.yaml"),
    "watch what is no run": Wish("evaluate Cartpole-Swingup --policy zero --watch ."),
    "compare one directory": Wish("compare folder.onnx"),
    "compare directories without results": Wish("compare folder.onnx ."),
    "compare policies that do not exist": Wish("compare Cartpole-Swingup zero nowhere/model.pt"),
    "compare too few episodes": Wish("compare Cartpole-Swingup zero random --num-episodes 20"),
    # Exporting.
    "export without a task": Wish("export --out policy.onnx"),
    "export without any run": Wish("export Cartpole-Swingup"),
    "export a checkpoint that does not exist": Wish("export Cartpole-Swingup --checkpoint nowhere/model.pt"),
    "export under another suffix": Wish("export Cartpole-Swingup --out policy.pt"),
    "export onto a directory": Wish("export Cartpole-Swingup --checkpoint broken.yaml --out folder.onnx"),
    "export below a file": Wish("export Cartpole-Swingup --checkpoint broken.yaml --out broken.yaml/policy.onnx"),
    # Replaying.
    "replay what is not there": Wish("replay nowhere.diverged.npz"),
    "replay something else": Wish("replay broken.yaml"),
    "replay into no video": Wish("replay broken.yaml --video-path video.gif"),
    "replay into a video below a file": Wish("replay broken.yaml --video-path broken.yaml/x.mp4"),
    # Checkpoints.
    "runs where there are none": Wish("runs --log-root nowhere"),
    "runs of a task that does not exist": Wish("runs Cartpole-Swingupp"),
    "no runs": Wish("runs --limit 0"),
    "checkpoints without any run": Wish("runs latest"),
    "checkpoints of a run that does not exist": Wish("runs 2026-01-02_03-04-05"),
    "checkpoints of a directory that is no run": Wish("runs --run folder.onnx"),
    "checkpoints of a run that has none": Wish("runs begun"),
    "checkpoints by score": Wish("runs latest --sort score"),
    "convert a file that does not exist": Wish("convert nowhere.pt --trust"),
    "convert a directory": Wish("convert folder.onnx"),
    "convert onto a directory": Wish("convert broken.yaml --output folder.onnx"),
    "convert onto the file itself": Wish("convert broken.yaml --output ./broken.yaml"),
    "convert below a file": Wish("convert broken.yaml --output broken.yaml/model.pt"),
    "bench without a task": Wish("bench --seconds 1"),
    # The doctor, whose own findings come later.
    "a doctor for no workers": Wish("doctor --nproc-per-node 0"),
    "a doctor without time": Wish("doctor --timeout 0"),
    "a doctor for a misspelt task": Wish("doctor Cartpole-Balence"),
    "a doctor for a GPU that is no number": Wish("doctor --gpu-ids first"),
}
# fmt: on

_KITES = """
from shoal.config import EnvConfig

class Kite:
    config = EnvConfig()

class BoxKite(Kite):
    pass
"""


def _prepare(where: Path) -> None:
    """Write the files that the wishes name."""
    (where / "raises.py").write_text("raise ValueError('half a thought')\n", encoding="utf-8")
    (where / "kites.py").write_text(_KITES, encoding="utf-8")
    (where / "broken.yaml").write_text("task: [\n", encoding="utf-8")
    (where / "list.yaml").write_text("- task\n", encoding="utf-8")
    (where / "no_task.yaml").write_text("seed: 1\n", encoding="utf-8")
    (where / "misspelt.yaml").write_text("task: Cartpole-Swingup\nmax_iteration: 1\n", encoding="utf-8")
    (where / "folder.onnx").mkdir()
    (where / "begun").mkdir()
    (where / "begun" / "run.json").touch()


@contextlib.contextmanager
def _machine(wish: Wish) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(wish.environ)
    for package in wish.hidden:
        sys.modules[package] = None  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        for package in wish.hidden:
            del sys.modules[package]
        os.environ.clear()
        os.environ.update(before)


def _grant(wish: Wish) -> None:
    """Do what the command does, up to the point where something would be started."""
    command, *words = wish.words.split()
    if command == "train":
        plan = plan_training(parse_train(words), os.environ, seen(wish.gpus))
        preflight(plan, os.environ, seen(wish.gpus))
    else:
        main.shoal([command, *words])


def _answer(wish: Wish) -> dict[str, object]:
    """Return how a wish was refused."""
    before = sorted(Path.cwd().rglob("*"))
    printed, started = io.StringIO(), time.process_time()
    sentence, code = "", 0
    with _machine(wish), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            _grant(wish)
        except ShoalError as error:
            sentence, code = str(error), error.exit_code
        except SystemExit as left:  # tyro's own refusals
            sentence, code = printed.getvalue(), int(str(left.code))
    return {
        "sentence": sentence,
        "code": code,
        "seconds": time.process_time() - started,
        "imported": [name for name in HEAVY if name in sys.modules],
        "written": [str(path) for path in sorted(Path.cwd().rglob("*")) if path not in before],
    }


if __name__ == "__main__":
    _prepare(Path.cwd())
    sys.stdout.write(json.dumps({name: _answer(wish) for name, wish in WISHES.items()}))
