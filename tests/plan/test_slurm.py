"""What srun says about a task, every way in which it can be wrong, whose GPUs a task sees, and lists of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.fake_devices import machine, mig_gpu, seen, whole_gpu

from shoal.cli.parse import parse_train
from shoal.errors import UsageError
from shoal.machine.gpus import resolve
from shoal.plan.ranks import (
    Rank,
    Task,
    allocated_hosts,
    expand_hosts,
    has_own_gpus,
    joined_rank,
    launcher_of,
    read_task,
)
from shoal.plan.training import plan_training

if TYPE_CHECKING:
    from shoal.machine.gpus import VisibleGpus

STEP = {
    "SLURM_STEP_ID": "3",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NODELIST": "gpu[08-11]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
RESTART = "start it again with `srun`, which sets this variable itself, or unset SLURM_STEP_ID to train without srun."
TASK = "Cartpole-Swingup"
TASKS = "SLURM_STEP_TASKS_PER_NODE"
ALONE = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "gpu08", "SLURM_STEP_TASKS_PER_NODE": "2"}
ON_ONE_MACHINE = STEP | ALONE | {"SLURM_PROCID": "1", "SLURM_NODEID": "0"}


# Its place


def test_a_task_has_a_rank_and_a_rendezvous() -> None:
    assert read_task(STEP) == Task(
        rank=Rank(rank=5, local_rank=1, world_size=7, local_world_size=2),
        host="gpu08",
        port=20_000 + (4711 * 16 + 3) % 12_000,
        attempt="4711.3/0",
    )


def test_a_machine_with_fewer_tasks_has_its_own_number_of_them() -> None:
    last = read_task(STEP | {"SLURM_NODEID": "3", "SLURM_LOCALID": "0", "SLURM_PROCID": "3"}).rank
    assert (last.local_world_size, last.world_size) == (1, 7)


def test_older_releases_count_the_job_s_tasks_alone() -> None:
    older = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NUM_TASKS"}
    assert read_task(older | {"SLURM_NTASKS": "7"}) == read_task(STEP)
    assert read_task(STEP | {"SLURM_NTASKS": "9"}) == read_task(STEP)


def test_the_rendezvous_of_one_machine_is_loopback() -> None:
    assert read_task(ON_ONE_MACHINE).host == "127.0.0.1"


def test_the_user_may_choose_the_rendezvous() -> None:
    task = read_task(STEP | {"MASTER_ADDR": "10.0.0.8", "MASTER_PORT": "1234"})
    assert (task.host, task.port) == ("10.0.0.8", 1234)
    empty = read_task(STEP | {"MASTER_ADDR": "", "MASTER_PORT": " "})
    assert (empty.host, empty.port) == (read_task(STEP).host, read_task(STEP).port)


def test_every_start_of_a_job_is_an_attempt_of_its_own() -> None:
    assert read_task(STEP | {"SLURM_RESTART_COUNT": "2"}).attempt == "4711.3/2"


@pytest.mark.parametrize("job", [1, 2, 4711, 99_999_999, 999_999_999])
def test_concurrent_steps_have_different_ports_outside_the_ephemeral_range(job: int) -> None:
    steps = [{"SLURM_JOB_ID": str(each), "SLURM_STEP_ID": str(step)} for each in (job, job - 1) for step in range(4)]
    ports = {read_task(STEP | each).port for each in steps}
    assert len(ports) == 8
    assert all(20_000 <= port < 32_768 for port in ports)


# Whether there is one


@pytest.mark.parametrize(
    "left_out",
    [
        pytest.param({"SLURM_STEP_ID": ""}, id="a batch script"),
        pytest.param({"SLURM_STEP_ID": "batch"}, id="a batch script of a release that says so"),
        pytest.param({"SLURM_STEP_ID": "extern"}, id="a login to a machine of the job"),
        pytest.param({"SLURM_STEP_ID": "interactive"}, id="the shell of salloc"),
        pytest.param({"SLURM_STEP_ID": "4294967290"}, id="the same as a number"),
        pytest.param({"SLURM_STEP_NUM_TASKS": "1"}, id="a step of one task"),
        pytest.param({"SLURM_STEP_NUM_TASKS": "+01"}, id="one, however it is written"),
    ],
)
def test_what_is_no_step_of_several_tasks_trains_alone(left_out: dict[str, str]) -> None:
    assert launcher_of(STEP | left_out) is None
    assert joined_rank(STEP | left_out) is None
    plan = plan_training(parse_train([TASK, "--gpu-ids", "None"]), STEP | left_out, seen(0))
    assert (plan.launch_mode, plan.world_size, plan.notes) == ("in process", 1, ())


# What can be wrong


@pytest.mark.parametrize("name", [*(name for name in STEP if name != "SLURM_STEP_ID")])
def test_each_missing_variable_is_named(name: str) -> None:
    missing = {other: value for other, value in STEP.items() if other != name}
    said = "SLURM_NTASKS" if name == "SLURM_STEP_NUM_TASKS" else name
    with pytest.raises(UsageError) as refusal:
        joined_rank(missing)
    assert str(refusal.value) == (f"srun started this process (SLURM_STEP_ID is set), but {said} is not set: {RESTART}")


@pytest.mark.parametrize(
    ("name", "value", "what_is_true"),
    [
        ("SLURM_PROCID", "one", "is 'one', but must be a whole number from 0 to 6, since SLURM_STEP_NUM_TASKS is 7"),
        ("SLURM_PROCID", "-1", "is '-1', but must be a whole number from 0 to 6, since SLURM_STEP_NUM_TASKS is 7"),
        ("SLURM_PROCID", "7", "is '7', but must be a whole number from 0 to 6, since SLURM_STEP_NUM_TASKS is 7"),
        ("SLURM_STEP_NUM_TASKS", "0", "is '0', but must be a whole number from 1 to 999999999"),
        ("SLURM_STEP_NUM_TASKS", "x", "is 'x', but must be a whole number from 1 to 999999999"),
        (
            "SLURM_STEP_NUM_TASKS",
            "8",
            "SLURM_STEP_TASKS_PER_NODE is '2(x3),1', which makes 7 tasks, but SLURM_STEP_NUM_TASKS is 8",
        ),
        (
            "SLURM_STEP_NODELIST",
            "gpu[08-",
            "SLURM_STEP_NODELIST is 'gpu[08-', which is no list of nodes such as a[01-03,7],b",
        ),
        (
            "SLURM_STEP_NODELIST",
            "gpu[08-10]",
            "SLURM_STEP_NODELIST names 3 nodes, but SLURM_STEP_TASKS_PER_NODE counts the tasks of 4",
        ),
        *(
            (
                "SLURM_STEP_TASKS_PER_NODE",
                value,
                f"SLURM_STEP_TASKS_PER_NODE is '{value}', which is no list of numbers such as 2(x3),1",
            )
            for value in ("2(x", "2(3)", "two", "2,,1", "0(x3),7", "2(x0),7", "-2")
        ),
        (
            "SLURM_NODEID",
            "4",
            "is '4', but must be a whole number from 0 to 3, since SLURM_STEP_TASKS_PER_NODE counts 4 nodes",
        ),
        (
            "SLURM_NODEID",
            "-1",
            "is '-1', but must be a whole number from 0 to 3, since SLURM_STEP_TASKS_PER_NODE counts 4 nodes",
        ),
        ("SLURM_LOCALID", "2", "is '2', but must be a whole number from 0 to 1, since this machine has 2 tasks"),
        ("SLURM_LOCALID", "1.5", "is '1.5', but must be a whole number from 0 to 1, since this machine has 2 tasks"),
        ("SLURM_JOB_ID", "job", "is 'job', but must be a whole number from 0 to 999999999"),
        ("MASTER_PORT", "http", "is 'http', but must be a whole number from 1 to 65535"),
        ("MASTER_PORT", "65536", "is '65536', but must be a whole number from 1 to 65535"),
    ],
)
def test_each_wrong_variable_has_its_own_sentence(name: str, value: str, what_is_true: str) -> None:
    with pytest.raises(UsageError) as refusal:
        joined_rank(STEP | {name: value})
    if not what_is_true.startswith("SLURM"):
        what_is_true = f"{name} {what_is_true}"
    assert str(refusal.value) == f"{what_is_true}: {RESTART}"


# What may be asked


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["--hosts", "slurm"], "--hosts was passed, but srun started this process, and has decided on the machines"),
        (["--nproc-per-node", "3"], "the launcher has started 2 workers on this machine"),
        (["--max-restarts", "1"], "--max-restarts 1 was asked for, but srun started this process, and cannot start"),
    ],
)
def test_what_srun_has_decided_is_refused(words: list[str], refusal: str) -> None:
    with pytest.raises(UsageError, match=refusal):
        plan_training(parse_train([TASK, "--gpu-ids", "None", *words]), STEP, seen(0))


def test_the_number_of_workers_that_srun_started_may_be_passed() -> None:
    plan = plan_training(parse_train([TASK, "--gpu-ids", "None", "--nproc-per-node", "2"]), STEP, seen(0))
    assert (plan.launch_mode, plan.world_size, plan.devices, plan.backend) == ("joined", 7, ("cpu", "cpu"), "gloo")


# GPUs


@pytest.mark.parametrize(
    ("environ", "visible", "tasks", "own"),
    [
        ({"SLURM_GPUS_PER_TASK": "1"}, 1, 4, True),
        ({"SLURM_GPUS_PER_TASK": "h200:1"}, 1, 4, True),
        ({"SLURM_GPUS_PER_TASK": "2"}, 2, 4, True),
        ({"SLURM_GPUS_PER_TASK": "1"}, 4, 4, False),  # --gpu-bind=none
        ({"SLURM_STEP_GPUS": "0,1,2,3"}, 1, 4, True),  # --gpu-bind=single:1
        ({"SLURM_STEP_GPUS": "0,1,2,3"}, 4, 4, False),
        ({"SLURM_STEP_GPUS": "2"}, 1, 4, False),  # One for all of them.
        ({"SLURM_STEP_GPUS": ""}, 1, 4, False),
        ({}, 1, 4, False),
        ({}, 4, 4, False),
        ({"SLURM_GPUS_PER_TASK": "1"}, 0, 4, False),
        ({"SLURM_GPUS_PER_TASK": "1"}, 1, 1, False),
    ],
)
def test_whether_a_task_has_its_own_gpus_is_seen(
    environ: dict[str, str], visible: int, tasks: int, *, own: bool
) -> None:
    assert has_own_gpus(environ, visible, tasks) is own


@pytest.mark.parametrize(
    ("words", "environ", "gpus", "devices", "backend"),
    [
        pytest.param([], {"SLURM_GPUS_PER_TASK": "1"}, seen(1), "cuda:0 cuda:0", "nccl", id="each its own"),
        pytest.param(["all"], {"SLURM_GPUS_PER_TASK": "1"}, seen(2, "1"), "cuda:0 cuda:0", "nccl", id="by a mask"),
        pytest.param([], {"SLURM_STEP_GPUS": "4,6"}, seen(1), "cuda:0 cuda:0", "nccl", id="by a binding"),
        pytest.param([], {"SLURM_STEP_GPUS": "4,6"}, seen(2), "cuda:0 cuda:1", "nccl", id="all see all"),
        pytest.param(["all"], {}, seen(2), "cuda:0 cuda:1", "nccl", id="all see all, and SLURM says nothing"),
        pytest.param([], {"SLURM_STEP_GPUS": "4"}, seen(1), "cuda:0 cuda:0", "gloo", id="one for both"),
        pytest.param(["None"], {"SLURM_GPUS_PER_TASK": "1"}, seen(1), "cpu cpu", "gloo", id="the CPU all the same"),
        pytest.param([], {"SLURM_GPUS_PER_TASK": "1"}, seen(0), "cpu cpu", "gloo", id="none is there"),
        pytest.param(
            [],
            {"SLURM_GPUS_PER_TASK": "1"},
            resolve(machine(mig_gpu(0, (1, 0))), None),
            "cuda:0 cuda:0",
            "gloo",
            id="slices",
        ),
        pytest.param(
            ["1"],
            {"SLURM_GPUS_PER_TASK": "2"},
            resolve(machine(whole_gpu(0), whole_gpu(1)), None),
            "cuda:1 cuda:1",
            "nccl",
            id="the second of its own two",
        ),
    ],
)
def test_a_worker_takes_what_its_task_was_given(
    words: list[str], environ: dict[str, str], gpus: VisibleGpus, devices: str, backend: str
) -> None:
    flags = ["--gpu-ids", *words] if words else []
    plan = plan_training(parse_train([TASK, *flags]), ON_ONE_MACHINE | environ, gpus)
    assert (plan.devices, plan.backend) == (tuple(devices.split()), backend)


def test_a_gpu_of_another_task_is_refused() -> None:
    environ = ON_ONE_MACHINE | {"SLURM_GPUS_PER_TASK": "1"}
    with pytest.raises(UsageError, match="GPU 1 was asked for, but 1 is visible"):
        plan_training(parse_train([TASK, "--gpu-ids", "1"]), environ, seen(1))


# Lists of nodes


@pytest.mark.parametrize(
    ("word", "hosts"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        ("a[1-3]", "a1 a2 a3"),
        ("a[01-03,7],b", "a01 a02 a03 a7 b"),
        ("gpu-[098-101]", "gpu-098 gpu-099 gpu-100 gpu-101"),
        ("a[9-11]", "a9 a10 a11"),
        ("rack[1-2]node[3,5]", "rack1node3 rack1node5 rack2node3 rack2node5"),
        ("a[1-2].example.org,c-2", "a1.example.org a2.example.org c-2"),
        (" a[2,1] ", "a2 a1"),
        ("a,a[1],a", "a a1"),
    ],
)
def test_a_list_is_expanded_in_its_order(word: str, hosts: str) -> None:
    assert expand_hosts(word) == tuple(hosts.split())


@pytest.mark.parametrize(
    "word", ["a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", ",", "a,,b", "a[1[2]]", "a[1-999999999]"]
)
def test_what_is_no_list_is_refused_with_an_example(word: str) -> None:
    assert expand_hosts(word) == ()
    with pytest.raises(UsageError, match=r"which is no list of nodes such as a\[01-03,7\],b: name them in --hosts"):
        allocated_hosts({"SLURM_JOB_NODELIST": word})


def test_the_allocation_is_in_the_environment() -> None:
    assert allocated_hosts({"SLURM_JOB_NODELIST": "a[1-2]"}) == ("a1", "a2")
    assert allocated_hosts({"SLURM_NODELIST": "b"}) == ("b",)


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_NODELIST": " "}])
def test_outside_an_allocation_it_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="SLURM_JOB_NODELIST is not set, so this process is in no allocation"):
        allocated_hosts(environ)
