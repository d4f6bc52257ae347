"""Tries the same faults on Shoal, on rsl_rl under plain torchrun, and on mjlab, and prints what each of them did.

    python docs/compare_faults.py --out DIR [--json FILE] [--mjlab PATH_TO_TRAIN] [--only WORD ...]

The faults are those of the tests, in tests/support/faulty_tasks.py; here they strike in the eighth iteration. All save
every fifth iteration. What has not ended within the limit is killed. `--only` keeps the trials whose names hold a word.

torchrun starts this file again, with `--as-rank`: the shortest script that trains with rsl_rl on several CPU ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.commands import FAULTY, SURROUNDINGS, TRAIN, command_line, marked, marks, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOAL = "Shoal"
TORCHRUN = "rsl_rl under torchrun"
MJLAB = "mjlab"

DONE_BEFORE = 7
"""Iterations that are done when a fault strikes."""

STEPS, SAVE_EVERY, FOREVER = 8, 5, 100_000
STARTUP_S = 300.0
"""mjlab compiles its kernels in the first run [s]."""

SETTLE_S = 5.0
"""How long after the end of the command its processes may take to go [s]."""

TAIL = 120
"""Lines at the end of the output in which a user may look for the cause."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    cause: str
    """A pattern that any sentence about the cause holds; empty where no process is left to say one."""
    task: str = "Dies"
    """The faulty task. It behaves well where a signal to the command is the fault."""
    sent: signal.Signals | None = None
    """What the command gets, if the fault is not inside rank 1."""
    to_group: bool = False
    """Whether all processes of the terminal get the signal, as by Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one trial showed."""

    system: str
    processes: str
    fault: str
    ended_after_s: float | None
    """From the fault to the end of the command [s]; None if it had to be killed."""
    code: int | None
    named_within_lines: int | None
    """The last so many lines hold rank and cause; None if the last lines do not."""
    iterations_at_fault: int
    iterations_done: int
    iterations_saved: int
    """Iterations in the newest checkpoint that can be read."""
    left: list[str]
    """Command lines of processes that lived on."""
    tail: list[str]


RANK_FAULTS = (
    Fault(name="an exception on rank 1", task="Raises", cause="injected fault"),
    Fault(name="SIGKILL of rank 1", task="Dies", cause="SIGKILL"),
    Fault(name="`os._exit(3)` on rank 1", task="Leaves", cause=r"exit ?code\W+3\b"),
    Fault(name="rank 1 sleeps for ever", task="Waits", cause=r"no progress|timed? ?out"),
    Fault(name="SIGSTOP of rank 1", task="Stops", cause=r"is stopped|no progress|timed? ?out"),
    Fault(name="NaN in rank 1's environments", task="TurnsToNan", cause="NaN"),
)
COMMAND_FAULTS = (
    Fault(name="SIGTERM to the command", sent=signal.SIGTERM, cause=r"SIGTERM|signal: 15\b"),
    Fault(name="Ctrl-C once", sent=signal.SIGINT, to_group=True, cause=r"SIGINT|Ctrl-C|KeyboardInterrupt|signal: 2\b"),
    Fault(name="SIGHUP to the command", sent=signal.SIGHUP, cause=r"SIGHUP|signal: 1\b"),
    Fault(name="SIGKILL of the command", sent=signal.SIGKILL, cause=""),
)


def main() -> None:
    """Make all trials, one after the other, and print the table."""
    asked = flags().parse_args()
    if asked.as_rank is not None:
        train_as_rank(asked.as_rank, asked.out)
        return
    # What a shell starts in the background ignores Ctrl-C, and so would all that is tried here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows: list[Seen] = []
    for number, (system, processes, words, fault) in enumerate(trials(asked.mjlab)):
        if not all(word in f"{system}, {processes}: {fault.name}" for word in asked.only):
            continue
        where = asked.out.resolve() / f"{number:02d}"
        where.mkdir(parents=True)
        rows.append(observe(system, processes, words(fault.task, where / "logs"), fault, where, asked.limit))
        say(f"{system}, {processes}: {rows[-1].fault}: {rows[-1].ended_after_s} s, code {rows[-1].code}")
        if asked.json is not None:
            asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    say(table(rows, asked.limit))


def flags() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a directory for runs and output")
    parser.add_argument("--json", type=Path, default=None, help="write what was seen here, after each trial")
    parser.add_argument("--mjlab", type=Path, default=None, help="mjlab's `train`, in an environment of its own")
    parser.add_argument("--limit", type=float, default=60.0, help="end what has not ended after so long [s]")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--as-rank", metavar="TASK", default=None, help=argparse.SUPPRESS)
    return parser


def say(text: str) -> None:
    """Print at once: a trial may take a minute."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def trials(mjlab: Path | None) -> Iterator[tuple[str, str, Callable[[str, Path], list[str]], Fault]]:
    """Yield each system with its fault: first those on two ranks, then those in one process."""
    for fault in (*RANK_FAULTS, *COMMAND_FAULTS):
        yield SHOAL, "2 ranks", shoal_on_two_ranks, fault
        yield TORCHRUN, "2 ranks", torchrun_on_two_ranks, fault
    for fault in COMMAND_FAULTS:
        yield SHOAL, "1 process", shoal_in_one_process, fault
        if mjlab is not None:
            yield MJLAB, "1 process", mjlab_in_one_process(mjlab), fault


def shoal_in_one_process(task: str, logs: Path) -> list[str]:
    """Return the words that start Shoal."""
    flags = f"--gpu-ids None --num-envs 16 --stall-timeout 10 --max-iterations {FOREVER}"
    agent = f"--agent.num-steps-per-env {STEPS} --agent.save-interval {SAVE_EVERY}"
    return [*TRAIN, f"{FAULTY}:{task}", *flags.split(), *agent.split(), "--log-root", str(logs)]


def shoal_on_two_ranks(task: str, logs: Path) -> list[str]:
    """Return the words that start Shoal with two workers."""
    return [*shoal_in_one_process(task, logs), "--nproc-per-node", "2"]


def torchrun_on_two_ranks(task: str, logs: Path) -> list[str]:
    """Return the words that start this file as two ranks."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    return [*launcher, str(Path(__file__).resolve()), "--as-rank", f"{FAULTY}:{task}", "--out", str(logs)]


def mjlab_in_one_process(train: Path) -> Callable[[str, Path], list[str]]:
    """Return what starts mjlab's cart-pole: several workers would need several GPUs."""
    flags = f"--gpu-ids None --env.scene.num-envs 16 --agent.logger tensorboard --agent.max-iterations {FOREVER}"
    agent = f"--agent.num-steps-per-env {STEPS} --agent.save-interval {SAVE_EVERY}"
    words = [str(train), "Mjlab-Cartpole-Balance", *flags.split(), *agent.split()]
    return lambda _task, logs: [*words, "--log-root", str(logs)]


def train_as_rank(task: str, logs: Path) -> None:
    """Train as one rank of torchrun, with nothing but what rsl_rl and torch have of their own."""
    import torch.distributed as dist
    from rsl_rl.runners import OnPolicyRunner

    from shoal.config.rsl_rl import to_rsl_rl
    from shoal.envs.vec_env import WarpVecEnv
    from shoal.tasks import registry

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    class Runner(OnPolicyRunner):
        """The stock runner opens NCCL, on GPUs."""

        def _configure_multi_gpu(self) -> None:
            self.is_distributed = True
            self.gpu_world_size, self.gpu_global_rank, self.gpu_local_rank = size, rank, rank
            self.cfg["multi_gpu"] = {"global_rank": rank, "local_rank": rank, "world_size": size}
            dist.init_process_group("gloo")

    spec = registry.resolve(task)
    env = WarpVecEnv(spec.load_builder()(spec.env, num_envs=spec.num_envs, device="cpu", seed=rank))
    config = to_rsl_rl(spec.agent) | {"save_interval": SAVE_EVERY, "num_steps_per_env": STEPS}
    Runner(env, config, log_dir=str(logs), device="cpu").learn(FOREVER, init_at_random_ep_len=True)


def observe(system: str, processes: str, words: list[str], fault: Fault, where: Path, limit: float) -> Seen:  # noqa: PLR0913, PLR0917  One trial.
    """Start a command, let the fault strike, and look at what becomes of it."""
    struck, output, logs = where / "struck", where / "output.txt", where / "logs"
    mark, of_its_own = marks(where)
    faults = {
        "SHOAL_TEST_FAULTY_RANK": "none" if fault.sent else "1",
        "SHOAL_TEST_STRIKE_AT": str(DONE_BEFORE * STEPS + STEPS // 2),
        "SHOAL_TEST_STRUCK": str(struck),
    }
    # Output in the order and at the time in which a terminal would show it, and no GPU for anybody.
    plain = {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    with output.open("wb") as to:
        process = subprocess.Popen(
            words,
            cwd=where,
            env={**os.environ, **SURROUNDINGS, **of_its_own, **faults, **plain},
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began = strike(process, fault, struck, lambda: iterations_done(logs, output))
        at_fault = iterations_done(logs, output)
        ended = wait_until(lambda: process.poll() is not None, timeout=began + limit - time.time())
        seconds = time.time() - began
        tail = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-TAIL:]
        if ended:
            wait_until(lambda: not list(marked(mark)), timeout=SETTLE_S)
        left = [command_line(pid) for pid in marked(mark)]
        done, saved = iterations_done(logs, output), iterations_saved(logs)
    finally:
        for pid in list(marked(mark)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = process.wait()
    return Seen(
        system=system,
        processes=processes,
        fault=fault.name,
        ended_after_s=round(seconds, 1) if ended else None,
        code=code if ended else None,
        named_within_lines=named_within(tail, fault),
        iterations_at_fault=at_fault,
        iterations_done=done,
        iterations_saved=saved,
        left=left,
        tail=tail,
    )


def strike(process: subprocess.Popen[bytes], fault: Fault, struck: Path, done: Callable[[], int]) -> float:
    """Wait until a rank prints that its fault strikes, or send the signal. Return the time of the fault [s]."""

    def is_time() -> bool:
        return process.poll() is not None or (done() >= DONE_BEFORE if fault.sent else struck.exists())

    came = wait_until(is_time, timeout=STARTUP_S)
    if not came or (process.poll() is not None if fault.sent else not struck.exists()):
        message = f"No fault could be injected ({fault.name}): the command never came so far."
        raise RuntimeError(message)
    if fault.sent is None:
        return struck.stat().st_mtime
    began = time.time()
    (os.killpg if fault.to_group else os.kill)(process.pid, fault.sent)
    return began


def iterations_done(logs: Path, output: Path) -> int:
    """Return how many iterations rank 0 has reported: Shoal in its metrics, rsl_rl in what it prints."""
    for metrics in logs.rglob("metrics.jsonl"):
        return metrics.read_text(encoding="utf-8").count("\n")
    reported = re.findall(r"Learning iteration (\d+)/", output.read_text(encoding="utf-8", errors="replace"))
    return int(reported[-1]) + 1 if reported else 0


def iterations_saved(logs: Path) -> int:
    """Return how many iterations the newest checkpoint holds that can be read."""
    import torch

    for file in sorted(logs.rglob("model*.pt"), key=lambda file: file.stat().st_mtime, reverse=True):
        with contextlib.suppress(OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            return int(torch.load(file, map_location="cpu", weights_only=True)["iter"]) + 1
    return 0


def named_within(tail: list[str], fault: Fault) -> int | None:
    """Return how many lines from the end on one has to read to know the cause, and the rank if one is to blame."""
    patterns = [fault.cause] if fault.sent else [fault.cause, r"\brank[^\w\n]*1\b"]
    for count in range(1, len(tail) + 1):
        if fault.cause and all(re.search(each, "\n".join(tail[-count:]), re.IGNORECASE) for each in patterns):
            return count
    return None


def table(rows: list[Seen], limit: float) -> str:
    """Return everything as a table in Markdown."""
    lines = [
        "| fault | system | ends after | exit code | cause in the last | saved | left |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ended = f"not in {limit:g} s" if row.ended_after_s is None else f"{row.ended_after_s:.1f} s"
        code = "" if row.code is None else signal.Signals(-row.code).name if row.code < 0 else str(row.code)
        within = "-" if row.named_within_lines is None else f"{row.named_within_lines} lines"
        within = "line" if within == "1 lines" else within
        saved = f"{row.iterations_saved} of {row.iterations_done}"
        left = "all" if row.ended_after_s is None else str(len(row.left))
        system = f"{row.system}, {row.processes}"
        lines.append(f"| {row.fault} | {system} | {ended} | {code} | {within} | {saved} | {left} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
