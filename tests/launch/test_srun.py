"""Trainings as tasks of a step of SLURM's srun, and the job script of the documentation, which requeues itself."""

from __future__ import annotations

import json
import signal
import socket
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.commands import SMALL, TRAIN, rows_of, run, start, wait_until
from support.fake_slurm import batch_environment, task_environment
from support.machines import machines, needs_machines

if TYPE_CHECKING:
    from support.commands import Running

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

BALANCE = ("Cartpole-Balance", *SMALL, "--logger", "none")
SHORT = ("--max-iterations", "3")
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "train.sbatch"


def test_two_tasks_on_one_machine_learn_what_two_spawned_workers_do(tmp_path: Path) -> None:
    """Though another program has taken the port at which they might meet."""
    slurm = batch_environment(tmp_path / "slurm") | {"SLURM_JOB_NODELIST": "nowhere"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = {"MASTER_PORT": str(taken.getsockname()[1])}
        tasks = run(("srun", *TRAIN, *BALANCE, *SHORT), tmp_path / "srun", slurm | port)
    assert tasks.code == 0, tasks.stdout + tasks.stderr
    assert (tasks.left_processes, tasks.left_files) == ([], [])
    assert tasks.stdout.count("Training Cartpole-Balance: 2 workers on cpu through gloo (joined)") == 1
    spawned = run((*TRAIN, *BALANCE, *SHORT, "--nproc-per-node", "2"), tmp_path / "spawned")
    assert len(tasks.record["ended"]["digests"]) == 2
    assert tasks.record["ended"]["digests"] == spawned.record["ended"]["digests"]


@pytest.fixture
def training(tmp_path: Path) -> Running:
    """Two tasks that have done some iterations and would go on for ever."""
    words = ("srun", *TRAIN, *BALANCE, "--max-iterations", "100000")
    running = start(words, tmp_path, batch_environment(tmp_path / "slurm"))
    assert wait_until(
        lambda: any(len(rows_of(each.parent)) > 2 for each in running.log_root.glob("*/*/metrics.jsonl")), 60
    )
    return running


@pytest.mark.soak
def test_scancel_reaches_all_tasks_and_ends_them_with_a_checkpoint(training: Running) -> None:
    training.signal_itself(signal.SIGTERM)
    ended = training.end()
    assert ended.code == 143, ended.stdout + ended.stderr
    assert ended.record["ended"]["exit_code"] == 143
    assert len(list(ended.run.glob("checkpoints/*/manifest.json"))) == 1
    assert (ended.left_processes, ended.left_files) == ([], [])


@pytest.mark.soak
@pytest.mark.parametrize("lost", [0, 1])
def test_a_task_that_is_killed_is_named_by_the_other(training: Running, lost: int) -> None:
    """Also when it is rank 0, which keeps the store: the exit code of srun is the highest."""
    training.signal_process(task_of(training, lost), signal.SIGKILL)
    ended = training.end()
    assert ended.code == 137, ended.stdout + ended.stderr
    said = f"Error: {ended.record['ended']['last_line']}"
    assert said in ended.stderr
    assert said.startswith(f"Error: Lost rank {lost} on ")
    assert "srun's output tells its signal or exit code" in said
    assert ended.record["ended"]["exit_code"] == 75
    assert (ended.left_processes, ended.left_files) == ([], [])


def task_of(running: Running, rank: int) -> int:
    """Return the process that srun has started as `rank`."""
    (found,) = [
        pid
        for pid in running.processes()
        if f"SLURM_PROCID={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        and b"SLURM_STEP_ID=0" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    ]
    return found


@pytest.mark.soak
@needs_machines
def test_tasks_dealt_out_in_turn_to_two_machines_learn_what_they_would_on_one(tmp_path: Path) -> None:
    """Ranks 0 and 2 are on one machine, 1 and 3 on the other."""
    with machines(tmp_path / "made", "a1", "a2", logins=False) as made:
        started = [
            machine.start(
                (*TRAIN, *BALANCE, *SHORT),
                made.shared,
                task_environment(
                    2 * local_rank + node, local_rank, node, hosts="a[1-2]", tasks_per_node="2(x2)", tasks=4
                ),
            )
            for local_rank, (node, machine) in product(range(2), enumerate(made.workers))
        ]
        first, *others = [running.end() for running in started]
        assert [each.code for each in (first, *others)] == [0] * 4, first.stderr + others[0].stderr
        assert (made.left_processes(), made.left_files()) == ([], [])
        digests = first.record["ended"]["digests"]
    here = run((*TRAIN, *BALANCE, *SHORT, "--nproc-per-node", "4"), tmp_path / "here")
    assert len(digests) == 4
    assert digests == here.record["ended"]["digests"]


@needs_machines
@pytest.mark.soak
def test_a_refusal_of_the_first_machine_reaches_the_other(tmp_path: Path) -> None:
    """Rank 0 keeps the store, and stays until the other has heard."""
    with machines(tmp_path / "made", "a1", "a2", logins=False) as made:
        words = {"a1": (*TRAIN, *BALANCE, "--gpu-ids", "7"), "a2": (*TRAIN, *BALANCE)}
        started = [
            machine.start_plain(
                words[machine.name],
                made.shared,
                task_environment(node, 0, node, hosts="a[1-2]", tasks_per_node="1(x2)", tasks=2),
            )
            for node, machine in enumerate(made.workers)
        ]
        first, second = [running.end() for running in started]
        assert (first.code, second.code) == (2, 2), first.stderr + second.stderr
        assert first.last_line.removeprefix("Error: ") in second.last_line
        assert second.last_line.startswith("Error: Rank 0 on a1 refuses: GPU 7 was asked for, but ")
        assert made.left_processes() == []


@pytest.mark.soak
def test_a_refusal_of_the_second_task_reaches_a_first_one_that_starts_later(tmp_path: Path) -> None:
    """And ends both with exit code 2: with another, the job script would requeue for ever."""
    script = tmp_path / "task.sh"
    words = " ".join([*TRAIN, *BALANCE])
    script.write_text(
        f'if ((SLURM_PROCID == 0)); then sleep 12; else set -- "$@" --gpu-ids 7; fi; exec {words} "$@"\n',
        encoding="utf-8",
    )
    ended = run(("srun", "bash", str(script)), tmp_path / "where", batch_environment(tmp_path / "slurm"))
    assert ended.code == 2, ended.stdout + ended.stderr
    assert ended.stderr.count("GPU 7 was asked for, but ") == 2
    assert "Error: Rank 1 on " in ended.stderr
    assert (ended.left_processes, ended.left_files) == ([], [])


def submit(where: Path, slurm: dict[str, str], *flags: str) -> Running:
    """Start the job script of the documentation, as SLURM does."""
    return start(("bash", str(SCRIPT), *BALANCE, *flags), where, slurm)


def asked(where: Path) -> list[str]:
    """What the script has asked of `scontrol`."""
    file = where / "slurm" / "asked"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


@pytest.mark.soak
def test_the_job_script_saves_on_the_warning_requeues_itself_and_goes_on_with_its_run(tmp_path: Path) -> None:
    slurm = batch_environment(tmp_path / "slurm")
    length = ("--max-iterations", "200")
    first = submit(tmp_path, slurm, *length)
    assert wait_until(
        lambda: any(len(rows_of(file.parent)) > 2 for file in first.log_root.glob("*/*/metrics.jsonl")), 60
    )
    first.signal_itself(signal.SIGUSR1)
    warned = first.end()
    assert warned.code == 143, warned.stdout + warned.stderr
    assert warned.left_processes == []
    assert asked(tmp_path) == ["requeue 4711"]
    assert warned.last_line.startswith("Error: SIGUSR1 ended the run after iteration ")
    done = int(warned.rows[-1]["iteration"])
    assert done < 200
    assert [path.parent.name for path in warned.run.glob("checkpoints/*/manifest.json")] == [f"{done:06d}"]

    second = submit(tmp_path, {**slurm, "SLURM_RESTART_COUNT": "1"}, *length).end()
    assert second.code == 0, second.stdout + second.stderr
    assert asked(tmp_path) == ["requeue 4711"]
    assert [row["iteration"] for row in rows_of(second.run)] == list(range(1, 201))
    launches = json.loads((second.run / "run.json").read_text(encoding="utf-8"))["launches"]
    assert [launch["ended"]["exit_code"] for launch in launches] == [143, 0]


def test_the_job_script_does_not_requeue_what_has_failed(tmp_path: Path) -> None:
    ended = submit(tmp_path, batch_environment(tmp_path / "slurm"), "--num-envs", "0").end()
    assert ended.code == 2, ended.stdout + ended.stderr
    assert asked(tmp_path) == []


@pytest.mark.parametrize(("restarts", "requeued"), [("0", ["requeue 4711"]), ("3", [])])
def test_the_job_script_requeues_after_a_loss_a_few_times(tmp_path: Path, restarts: str, requeued: list[str]) -> None:
    slurm = {**batch_environment(tmp_path / "slurm"), "SLURM_NTASKS": "1", "SLURM_RESTART_COUNT": restarts}
    (tmp_path / "slurm" / "train").write_text("#!/bin/bash\nexit 75\n", encoding="utf-8")
    (tmp_path / "slurm" / "train").chmod(0o755)
    assert submit(tmp_path, slurm).end().code == 75
    assert asked(tmp_path) == requeued
