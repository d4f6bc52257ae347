"""Flags of mjlab, Isaac Lab and torchrun, and the flags to type instead; misspelt flags, and the nearest ones."""

from collections.abc import Sequence

from shoal.cli.flags import Flag
from shoal.errors import UsageError, did_you_mean

_TORCHRUN = (
    "`python -m torch.distributed.run --nnodes=2 --node_rank=0 --master_addr=HOST -m shoal train TASK` on each node, "
    "or `--hosts a b` on one"
)
_DEVICE = "`--gpu-ids 0`, or `--gpu-ids None` for the CPU"
HABITS = {
    "--env.scene.num-envs": "`--num-envs N`",
    "--agent.max-iterations": "`--max-iterations N`",
    "--agent.seed": "`--seed S`",
    "--agent.run-name": "`--run-name NAME`",
    "--agent.experiment-name": "nothing: the directory of runs has the name of the task",
    "--experiment-name": "nothing: the directory of runs has the name of the task",
    "--agent.resume": "`--resume`",
    "--agent.load-run": "`--resume RUN`",
    "--load-run": "`--resume RUN`; for `play` and `evaluate` `--checkpoint PATH`",
    "--agent.load-checkpoint": "`--checkpoint PATH`",
    "--checkpoint-file": "`--checkpoint PATH`",
    "--wandb-run-path": "`--checkpoint PATH`: checkpoints are local files",
    "--agent.logger": "`--logger tensorboard`, `wandb` or `none`",
    "--agent.wandb-project": "`--wandb-project NAME`",
    "--log-project-name": "`--wandb-project NAME`",
    "--enable-nan-guard": "`--env.on-nan stop`",
    "--agent.clip-actions": "nothing: the task clamps its actions",
    "--registry-name": "`--env.motion FILE`, a local file",
    "--headless": "nothing: training opens no window",
    "--device": _DEVICE,
    "--distributed": "`--gpu-ids all`",
    "--num-gpus": "`--gpu-ids all`, or `--nproc-per-node N`",
    "--deterministic": "`--env.deterministic`",
    "--rl-library": "`--learner NAME`",
    "--viz": "nothing: training opens no window; `play` has `--viewer web`",
    "--train-env-cfg": "`--disturbances`",
    "--video-width": "`--video-size WIDTH HEIGHT`",
    "--video-height": "`--video-size WIDTH HEIGHT`",
    "--no-terminations": "nothing: episodes end as in training",
    "--nnodes": _TORCHRUN,
    "--node-rank": _TORCHRUN,
    "--master-addr": _TORCHRUN,
    "--master-port": _TORCHRUN,
}
"""What to type instead of flags of mjlab, Isaac Lab and torchrun."""


def unknown_words(unknown: Sequence[str], words: Sequence[str], program: str, flags: Sequence[Flag]) -> UsageError:
    """Return the error of the first word that a command does not know, with what to type instead."""
    word = unknown[0]
    name = word.partition("=")[0].replace("_", "-")
    names = [flag.name for flag in flags]
    if name in HABITS:
        return UsageError(f"`{program}` has no flag {word.partition('=')[0]}: type {HABITS[name]}.")
    if name.startswith("-"):
        last = [each for each in names if each.rpartition(".")[2] == name.removeprefix("--")]
        hint = f" Did you mean '{last[0]}'?" if last else did_you_mean(name, names)
        return UsageError(f"`{program}` has no flag {name}.{hint} `{program} --help` lists them.")
    before = words[words.index(word) - 1] if word in words[1:] else ""
    if word in ("True", "False") and before.replace("_", "-") in names:
        typed = before if word == "True" else f"--no-{before.removeprefix('--')}"
        return UsageError(f"{before} is a switch and takes no {word}: type `{typed}`.")
    hydra = f"--{name.replace('_', '-')}"
    if "=" in word and hydra in {*names, *HABITS}:
        return UsageError(f"Flags begin with dashes: type {HABITS.get(hydra, f'`--{word}`')} for {word}.")
    return UsageError(f"`{program}` takes no '{word}' here: leave it out, or name the flag that it belongs to.")
