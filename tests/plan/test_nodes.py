"""Which workers run where on several nodes, how they talk, and where they may meet: tables, without machines."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from support.fake_devices import machine, mig_gpu, seen

from shoal.cli.parse import parse_train
from shoal.config.plain import from_plain
from shoal.errors import UsageError
from shoal.machine.gpus import resolve
from shoal.plan.environment_parity import Fingerprint
from shoal.plan.nodes import NodeFacts, NodePlan, Nodes, choose_backend, plan_nodes, rendezvous_candidates
from shoal.plan.received import from_json, read_workers, to_json
from shoal.plan.training import plan_training

if TYPE_CHECKING:
    from shoal.plan.rundir import RunDir

ADDRESSES = {"lo": ("127.0.0.1", "::1"), "eth0": ("10.0.0.2", "fd00::2", "fe80::2"), "ib0": ("10.1.0.2",), "wifi0": ()}


def facts(host: str = "a", gpus: int = 0, **other: object) -> NodeFacts:
    """What a machine with so many GPUs tells."""
    known = NodeFacts(
        host=host,
        name=host,
        gpus=seen(gpus),
        addresses=ADDRESSES,
        reached_at="10.0.0.2",
        clock_offset=0.0,
        shares_runs=True,
        fingerprint=Fingerprint(host=host, versions={}, files={}),
    )
    return replace(known, **other)


def test_each_machine_uses_what_it_has() -> None:
    machines = [facts("a", 1), facts("b", 3), facts("c", 2)]
    planned = plan_nodes("all", None, machines)
    assert [workers.devices for workers in planned.nodes] == [
        ("cuda:0",),
        ("cuda:0", "cuda:1", "cuda:2"),
        ("cuda:0", "cuda:1"),
    ]
    assert (all(workers.supports_nccl for workers in planned.nodes), planned.notes) == (True, ())


@pytest.mark.parametrize(
    ("gpu_ids", "workers", "gpus", "expected", "backend"),
    [
        ((1,), None, (2, 4), "cuda:1 | cuda:1", "nccl"),
        ("auto", None, (1, 2), "cuda:0 | cuda:0", "nccl"),
        ("auto", 2, (2, 2), "cuda:0 cuda:1 | cuda:0 cuda:1", "nccl"),
        ("all", 2, (1, 2), "cuda:0 cuda:0 | cuda:0 cuda:1", "gloo"),
        (None, 2, (2, 0), "cpu cpu | cpu cpu", "gloo"),
        ("auto", None, (0, 0), "cpu | cpu", "gloo"),
    ],
)
def test_workers_talk_through_nccl_where_each_has_a_gpu_of_its_own(
    gpu_ids: object, workers: int | None, gpus: tuple[int, int], expected: str, backend: str
) -> None:
    machines = [facts("a", gpus[0]), facts("b", gpus[1])]
    planned = plan_nodes(gpu_ids, workers, machines).nodes  # pyright: ignore[reportArgumentType]
    assert " | ".join(" ".join(each.devices) for each in planned) == expected
    assert choose_backend((each.supports_nccl for each in planned), 2) == backend


def test_one_slice_of_a_gpu_on_each_machine_is_no_gpu_of_its_own() -> None:
    slices = resolve(machine(mig_gpu(0, (1, 0))), None)
    planned = plan_nodes("all", None, [facts("a", 1), replace(facts("b"), gpus=slices)])
    assert [workers.supports_nccl for workers in planned.nodes] == [True, False]


def test_a_single_rank_has_no_backend() -> None:
    assert choose_backend([True], 1) is None


def test_what_a_machine_lacks_is_told_with_its_name() -> None:
    with pytest.raises(
        UsageError, match=r"^Node b cannot do it: GPU 1 was asked for, but 1 is visible \(0: NVIDIA H200\)"
    ):
        plan_nodes((1,), None, [facts("a", 2), facts("b", 1)])


def test_machines_with_and_without_gpus_are_not_mixed() -> None:
    with pytest.raises(UsageError, match=r"^Node b, c would train on the CPU, and a on GPUs, and the slowest sets"):
        plan_nodes("auto", None, [facts("a", 1), facts("b"), facts("c")])


def test_a_machine_under_two_names_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^Node a and 10\.0\.0\.2 are the same machine, a: name it once"):
        plan_nodes("auto", None, [facts("a"), facts("b"), facts("10.0.0.2", name="a")])


def test_notes_name_their_machine_and_clocks_that_differ_are_told_of() -> None:
    notes = plan_nodes("auto", None, [facts("a", clock_offset=4.0), facts("b", clock_offset=-61.0)]).notes
    assert notes[0].startswith("Node a: No GPU is visible (")
    assert [note for note in notes if "clock" in note] == [
        "Node b: its clock is 61 s slow, so are the times in what it writes."
    ]


@pytest.mark.parametrize(
    ("reached_at", "interface", "expected"),
    [
        ("10.0.0.2", None, ["10.0.0.2", "fd00::2", "10.1.0.2"]),
        ("fd00::2", None, ["10.0.0.2", "fd00::2", "10.1.0.2"]),
        ("10.1.0.2", None, ["10.1.0.2", "10.0.0.2", "fd00::2"]),
        (None, None, ["10.0.0.2", "10.1.0.2", "fd00::2"]),
        ("10.0.0.2", "ib0", ["10.1.0.2"]),
        ("127.0.0.1", "eth0", ["10.0.0.2", "fd00::2"]),
    ],
)
def test_machines_meet_where_ssh_leads_if_they_can_and_never_at_loopback(
    reached_at: str | None, interface: str | None, expected: list[str]
) -> None:
    assert rendezvous_candidates(facts(reached_at=reached_at), interface) == expected


@pytest.mark.parametrize("interface", ["eth7", "lo", "wifi0"])
def test_an_interface_that_leads_nowhere_is_refused(interface: str) -> None:
    with pytest.raises(UsageError, match=rf"^--interface {interface} .* node a has no .* pass one of eth0, ib0\.$"):
        rendezvous_candidates(facts(), interface)


def test_what_a_machine_tells_survives_json() -> None:
    known = facts("a", 2, clock_offset=1.5)
    assert from_plain(NodeFacts, json.loads(json.dumps(asdict(known)))) == known


TWO = Nodes(
    nodes=(
        NodePlan(
            host="a",
            devices=("cuda:0", "cuda:1"),
            uuids=("GPU-1", "GPU-2"),
            supports_nccl=True,
            network={"GLOO_SOCKET_IFNAME": "eth0"},
        ),
        NodePlan(
            host="ssh://b",
            devices=("cuda:0",),
            uuids=("GPU-3",),
            supports_nccl=True,
            network={"GLOO_SOCKET_IFNAME": "eth1"},
        ),
    ),
    rendezvous="10.0.0.2",
    notes=("Noted.",),
)


def test_a_plan_of_two_machines_counts_ranks_and_environments_over_both(run_dir: RunDir) -> None:
    config = parse_train(["Cartpole-Swingup", "--hosts", "a", "ssh://b", "--num-envs-total", "300"])
    plan = plan_training(config, {}, seen(0), partial(lambda found: found, TWO))
    assert (plan.launch_mode, plan.devices, plan.backend) == ("spawned", ("cuda:0", "cuda:1", "cuda:0"), "nccl")
    assert (plan.world_size, plan.config.num_envs, plan.notes) == (3, 100, ("Noted.",))
    told = plan.summary()
    assert told["nodes"] == ["a: cuda:0, cuda:1", "ssh://b: cuda:0"]
    assert (told["interfaces"], told["rendezvous"]) == (["a: eth0", "ssh://b: eth1"], "10.0.0.2")
    sent = plan.begun(run_dir, run_dir.path / "out")
    assert [sent.log_file(rank).name for rank in range(3)] == ["a[0].log", "a[1].log", "ssh:__b[0].log"]
    worker = sent.of_node(1)
    assert (worker.ranks, worker.world_size, worker.nodes) == (range(2, 3), 3, plan.nodes[1:])
    assert worker.log_file(2) == sent.log_file(2)
    assert from_json(to_json(worker)) == replace(worker, notes=())
    assert read_workers(json.loads(to_json(worker))).ranks == worker.ranks


def test_one_worker_on_another_machine_is_not_in_process() -> None:
    one = replace(TWO, nodes=TWO.nodes[1:], rendezvous=None)
    plan = plan_training(parse_train(["Cartpole-Swingup", "--hosts", "b"]), {}, seen(0), lambda: one)
    assert (plan.launch_mode, plan.world_size, plan.backend) == ("spawned", 1, None)


def test_under_torchrun_the_flag_is_refused() -> None:
    environ = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    config = parse_train(["Cartpole-Swingup", "--hosts", "a", "b"])
    with pytest.raises(UsageError, match="--hosts was passed, but torchrun started this process"):
        plan_training(config, environ, seen(0), lambda: TWO)


def test_a_plan_names_no_other_code_beside_what_another_kind_of_plan_would_hold() -> None:
    own = plan_training(parse_train(["Cartpole-Swingup"]), {}, seen(0))
    sent = json.loads(to_json(own)) | {"jobs": [], "sweep": {"fixed": {}, "parameters": {}}}
    sent["config"]["task"] = "evil.py:Task"
    with pytest.raises(UsageError, match=r"^Rank 0 would import 'evil\.py:Task' \(task\)"):
        from_json(json.dumps(sent), own)
