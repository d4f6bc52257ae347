"""What launchers say about this process, every way in which it can be wrong, and its share of the cores."""

from __future__ import annotations

import os

import pytest

from shoal.errors import UsageError
from shoal.machine.host import usable_cores
from shoal.plan import ranks
from shoal.plan.ranks import Rank, joined_rank, stale_rank_note, stale_rank_variables, usable_threads

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
RESTART = (
    "start it again with `python -m torch.distributed.run`, which sets this variable itself, "
    "or unset TORCHELASTIC_RUN_ID to train without torchrun."
)
STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "a[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
}
"""What the third of four tasks is told, when they are dealt out to two nodes in turn."""
NO_LAUNCHER = "are set, but no launcher started this process: ignoring them."


# Rank


def test_a_rank_of_torchrun_is_joined() -> None:
    assert joined_rank(TORCHRUN) == Rank(rank=5, local_rank=1, world_size=8, local_world_size=4)


def test_torchrun_with_one_process_is_joined_too() -> None:
    alone = TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    assert joined_rank(alone) == Rank(rank=0, local_rank=0, world_size=1, local_world_size=1)


def test_a_task_of_srun_is_joined_whatever_the_order_of_ranks() -> None:
    assert joined_rank(STEP) == Rank(rank=2, local_rank=1, world_size=4, local_world_size=2)


def test_torchrun_below_srun_decides() -> None:
    assert joined_rank(STEP | TORCHRUN) == joined_rank(TORCHRUN)
    assert stale_rank_variables(STEP | TORCHRUN) == ()


@pytest.mark.parametrize("environ", [{}, {"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_PROCID": "0"}])
def test_without_torchrun_nothing_is_joined(environ: dict[str, str]) -> None:
    assert joined_rank(environ) is None


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_each_missing_variable_is_named(name: str) -> None:
    sentence = f"torchrun started this process (TORCHELASTIC_RUN_ID is set), but {name} is not set: {RESTART}"
    missing = {other: value for other, value in TORCHRUN.items() if other != name}
    for environ in (missing, TORCHRUN | {name: " "}):
        with pytest.raises(UsageError) as refusal:
            joined_rank(environ)
        assert str(refusal.value) == sentence


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("RANK", "one", "from 0 to 7, since WORLD_SIZE is 8"),
        ("RANK", "-1", "from 0 to 7, since WORLD_SIZE is 8"),
        ("RANK", "8", "from 0 to 7, since WORLD_SIZE is 8"),
        ("LOCAL_RANK", "1.0", "from 0 to 3, since LOCAL_WORLD_SIZE is 4"),
        ("LOCAL_RANK", "-2", "from 0 to 3, since LOCAL_WORLD_SIZE is 4"),
        ("LOCAL_RANK", "4", "from 0 to 3, since LOCAL_WORLD_SIZE is 4"),
        ("WORLD_SIZE", "8x", "from 1 to 999999999"),
        ("WORLD_SIZE", "-8", "from 1 to 999999999"),
        ("LOCAL_WORLD_SIZE", "4,4", "from 1 to 8, since WORLD_SIZE is 8"),
        ("LOCAL_WORLD_SIZE", "0", "from 1 to 8, since WORLD_SIZE is 8"),
        ("LOCAL_WORLD_SIZE", "9", "from 1 to 8, since WORLD_SIZE is 8"),
        ("MASTER_PORT", "http", "from 1 to 65535"),
        ("MASTER_PORT", "0", "from 1 to 65535"),
        ("MASTER_PORT", "65536", "from 1 to 65535"),
    ],
)
def test_each_wrong_variable_is_named_with_what_it_may_be(name: str, value: str, allowed: str) -> None:
    with pytest.raises(UsageError) as refusal:
        joined_rank(TORCHRUN | {name: value})
    assert str(refusal.value) == f"{name} is '{value}', but must be a whole number {allowed}: {RESTART}"


@pytest.mark.parametrize(
    ("rank", "local_rank", "world_size", "local_world_size"),
    [(-1, 0, 2, 2), (2, 0, 2, 2), (0, -1, 2, 2), (0, 2, 2, 2), (0, 0, 1, 2), (0, 0, 0, 0)],
)
def test_a_rank_outside_its_world_cannot_be_made(
    rank: int, local_rank: int, world_size: int, local_world_size: int
) -> None:
    with pytest.raises(ValueError, match="Inconsistent rank"):
        Rank(rank=rank, local_rank=local_rank, world_size=world_size, local_world_size=local_world_size)


# Variables left over


@pytest.mark.parametrize(
    ("environ", "names", "note"),
    [
        ({}, (), None),
        ({"PATH": "/bin", "SLURM_PROCID": "0"}, (), None),
        (TORCHRUN, (), None),
        (STEP, (), None),
        (STEP | {"MASTER_ADDR": "a1", "MASTER_PORT": "1"}, (), None),
        (STEP | {"RANK": "1"}, ("RANK",), "RANK is set, but srun started this process: ignoring it."),
        (
            STEP | {"RANK": "1", "WORLD_SIZE": "4"},
            ("RANK", "WORLD_SIZE"),
            "RANK, WORLD_SIZE are set, but srun started this process: ignoring them.",
        ),
        (
            STEP | {"SLURM_STEP_NUM_TASKS": "1", "RANK": "0"},
            ("RANK",),
            "RANK is set, but no launcher started this process: ignoring it.",
        ),
        ({"RANK": "0"}, ("RANK",), "RANK is set, but no launcher started this process: ignoring it."),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            ("RANK", "WORLD_SIZE"),
            "RANK, WORLD_SIZE " + NO_LAUNCHER,
        ),
        (
            {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "1"},
            ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
            "MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE " + NO_LAUNCHER,
        ),
    ],
)
def test_variables_without_a_launcher_are_noted(
    environ: dict[str, str], names: tuple[str, ...], note: str | None
) -> None:
    assert stale_rank_variables(environ) == names
    assert stale_rank_note(environ) == note


def test_what_makes_a_rank_is_stale_without_its_launcher() -> None:
    left_over = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}
    assert set(stale_rank_variables(left_over)) == set(left_over)


# Cores


def one_of(number: int) -> Rank:
    """The first of so many workers on one machine."""
    return Rank(rank=0, local_rank=0, world_size=number, local_world_size=number)


@pytest.mark.parametrize(
    ("local_world_size", "environ", "cores", "threads"),
    [
        pytest.param(1, {}, 8, 8, id="all cores for one worker"),
        pytest.param(2, {}, 8, 4, id="half for each of two"),
        pytest.param(3, {}, 8, 2, id="rounded down"),
        pytest.param(4, {}, 2, 1, id="at least one"),
        pytest.param(2, {"OMP_NUM_THREADS": "6"}, 8, 6, id="the user's word wins"),
        pytest.param(2, {"OMP_NUM_THREADS": "1"}, 8, 1, id="the user's one wins"),
        pytest.param(2, {"OMP_NUM_THREADS": "3,2"}, 8, 3, id="the outer level of a list"),
        pytest.param(2, {"OMP_NUM_THREADS": ""}, 8, 4, id="empty is no word"),
        pytest.param(2, {"OMP_NUM_THREADS": "0"}, 8, 4, id="zero is no word"),
        pytest.param(2, {"OMP_NUM_THREADS": "-2"}, 8, 4, id="negative is no word"),
        pytest.param(2, {"OMP_NUM_THREADS": "many"}, 8, 4, id="a word is no number"),
        pytest.param(2, TORCHRUN | {"OMP_NUM_THREADS": "1"}, 8, 4, id="torchrun's one is nobody's word"),
        pytest.param(2, TORCHRUN | {"OMP_NUM_THREADS": "3"}, 8, 3, id="another number is, under torchrun too"),
        pytest.param(1, TORCHRUN | {"OMP_NUM_THREADS": "1"}, 8, 1, id="torchrun leaves a single worker alone"),
        pytest.param(2, STEP | {"SLURM_CPUS_PER_TASK": "8"}, 8, 8, id="srun shows each task its own cores"),
        pytest.param(2, STEP | {"SLURM_CPUS_PER_TASK": "4"}, 8, 4, id="or all of them, and says how many are its own"),
        pytest.param(2, STEP | {"SLURM_CPUS_PER_TASK": "4", "OMP_NUM_THREADS": "1"}, 8, 1, id="the user's word still"),
        pytest.param(2, STEP | {"SLURM_CPUS_PER_TASK": "0"}, 8, 4, id="no cores for a task is no word"),
        pytest.param(2, {"SLURM_CPUS_PER_TASK": "8"}, 8, 4, id="a batch script's workers share what it has"),
    ],
)
def test_threads_are_an_equal_share_or_the_users_choice(
    local_world_size: int, environ: dict[str, str], cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: cores)
    assert usable_threads(one_of(local_world_size), environ) == threads


def test_a_rank_shares_the_cores_of_this_process() -> None:
    assert usable_threads(one_of(1), {}) == usable_cores() <= (os.cpu_count() or 1)
    assert usable_threads(one_of(10_000), {}) == 1
