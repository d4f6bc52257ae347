"""From `--gpu-ids` and what is visible to one device for each worker; every refusal word for word."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_devices import machine, machine_of, mig_gpu, seen, whole_gpu

from shoal.errors import UsageError
from shoal.machine.gpus import Inventory, resolve
from shoal.plan.nodes import GpuIds, NodePlan, Nodes, choose_backend, parse_gpu_ids, plan_workers

if TYPE_CHECKING:
    from shoal.machine.gpus import VisibleGpus

FORMS = "pass indices, such as --gpu-ids 0 1, or all, or None for the CPU."
TWO = "2 are visible (0: NVIDIA H200, 1: NVIDIA H200)"
NO_DRIVER = resolve(Inventory(problem="no NVIDIA driver was found"), None)


# --gpu-ids


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("0",), (0,)),
        (("0", "1"), (0, 1)),
        (("0,1",), (0, 1)),
        (("0, 1",), (0, 1)),
        (("0", ",", "1"), (0, 1)),
        (("[0,1]",), (0, 1)),
        (("[0,", "1]"), (0, 1)),
        (("[", "0", "1", "]"), (0, 1)),
        (("[3]",), (3,)),
        (("1", "0", "11"), (1, 0, 11)),
        (("0", "0"), (0, 0)),
        (("-1",), (-1,)),
        (("all",), "all"),
        (("ALL",), "all"),
        (("[all]",), "all"),
        (("None",), None),
        (("none",), None),
        ((" None ",), None),
    ],
)
def test_gpu_ids_are_read_in_every_spelling(words: tuple[str, ...], expected: GpuIds) -> None:
    assert parse_gpu_ids(words) == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), f"--gpu-ids names no GPU: {FORMS}"),
        (("",), f"--gpu-ids names no GPU: {FORMS}"),
        (("[]",), f"--gpu-ids [] names no GPU: {FORMS}"),
        (("cuda:0",), "--gpu-ids cuda:0 was asked for, but 'cuda:0' is no index: pass --gpu-ids 0."),
        (("gpu1",), "--gpu-ids gpu1 was asked for, but 'gpu1' is no index: pass --gpu-ids 1."),
        (("0-1",), "--gpu-ids 0-1 was asked for, but ranges are not understood: pass --gpu-ids 0 1."),
        (("0:2",), "--gpu-ids 0:2 was asked for, but ranges are not understood: pass --gpu-ids 0 1 2."),
        (("0-99",), f"--gpu-ids 0-99 was asked for, but '0-99' is no index: {FORMS}"),
        (
            ("cpu",),
            "--gpu-ids cpu was asked for, but 'cpu' is no index: pass --gpu-ids None to train on the CPU.",
        ),
        (("al",), f"--gpu-ids al was asked for, but 'al' is no index: {FORMS} Did you mean 'all'?"),
        (("Nnoe",), f"--gpu-ids Nnoe was asked for, but 'Nnoe' is no index: {FORMS} Did you mean 'None'?"),
        (("0", "all"), f"--gpu-ids 0 all was asked for, but 'all' stands alone: {FORMS}"),
        (("0,,1",), f"--gpu-ids 0,,1 was asked for, but an index is missing beside a comma: {FORMS}"),
        (("0,",), f"--gpu-ids 0, was asked for, but an index is missing beside a comma: {FORMS}"),
        (("1.0",), f"--gpu-ids 1.0 was asked for, but '1.0' is no index: {FORMS}"),
        (("[0,1",), f"--gpu-ids [0,1 was asked for, but '[0' is no index: {FORMS}"),
        (("٣",), f"--gpu-ids ٣ was asked for, but '٣' is no index: {FORMS}"),
        pytest.param(
            ("GPU-8932f937",),
            "--gpu-ids GPU-8932f937 was asked for, but 'GPU-8932f937' is no index: "
            "set CUDA_VISIBLE_DEVICES=GPU-8932f937 and pass --gpu-ids 0.",
            id="a UUID",
        ),
    ],
)
def test_other_values_are_refused_with_what_to_pass(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_gpu_ids(words)
    assert str(refusal.value) == sentence


@given(indices=st.lists(st.integers(0, 999), min_size=1), spelling=st.sampled_from([" ", ",", ", ", " , "]))
def test_any_list_of_indices_is_read_back(indices: list[int], spelling: str) -> None:
    words = spelling.join(map(str, indices))
    assert parse_gpu_ids(words.split()) == parse_gpu_ids([f"[{words}]"]) == tuple(indices)


@given(words=st.lists(st.text(max_size=6), max_size=4))
def test_any_values_are_parsed_or_refused(words: list[str]) -> None:
    try:
        ids = parse_gpu_ids(words)
    except UsageError:
        return
    assert ids in ("all", None) or isinstance(ids, tuple)


# One device for each worker


@pytest.mark.parametrize(
    ("gpu_ids", "nproc", "visible", "devices", "backend"),
    [
        pytest.param(None, None, 2, ("cpu",), None, id="the CPU by choice"),
        pytest.param(None, 1, 2, ("cpu",), None, id="one worker on the CPU"),
        pytest.param(None, 3, 2, ("cpu",) * 3, "gloo", id="several workers on the CPU"),
        pytest.param("auto", None, 2, ("cuda:0",), None, id="GPU 0 by default"),
        pytest.param("auto", 1, 2, ("cuda:0",), None, id="GPU 0 for one worker"),
        pytest.param("auto", 2, 4, ("cuda:0", "cuda:1"), "nccl", id="the first GPUs for so many workers"),
        pytest.param("auto", 2, 2, ("cuda:0", "cuda:1"), "nccl", id="all GPUs for as many workers"),
        pytest.param("auto", 3, 2, ("cuda:0", "cuda:1", "cuda:0"), "gloo", id="the GPUs shared by default"),
        pytest.param("auto", 2, 0, ("cpu", "cpu"), "gloo", id="the CPU where there is no GPU"),
        pytest.param("all", None, 3, ("cuda:0", "cuda:1", "cuda:2"), "nccl", id="all GPUs"),
        pytest.param("all", None, 1, ("cuda:0",), None, id="all GPUs, and it is one"),
        pytest.param("all", 2, 1, ("cuda:0", "cuda:0"), "gloo", id="the only GPU shared"),
        pytest.param((1,), None, 2, ("cuda:1",), None, id="one GPU"),
        pytest.param((1, 0), None, 2, ("cuda:1", "cuda:0"), "nccl", id="the order is the user's"),
        pytest.param((1, 0), 2, 2, ("cuda:1", "cuda:0"), "nccl", id="as many workers as GPUs"),
        pytest.param((1, 3), 5, 4, ("cuda:1", "cuda:3", "cuda:1", "cuda:3", "cuda:1"), "gloo", id="shared in turn"),
    ],
)
def test_each_worker_gets_its_device(
    gpu_ids: GpuIds, nproc: int | None, visible: int, devices: tuple[str, ...], backend: str | None
) -> None:
    planned = plan_workers(gpu_ids, nproc, seen(visible))
    assert planned.devices == devices
    assert choose_backend([planned.nodes[0].supports_nccl], len(devices)) == backend


@pytest.mark.parametrize(
    ("visible", "why"),
    [
        (seen(0), "this machine has no NVIDIA GPU"),
        (NO_DRIVER, "no NVIDIA driver was found"),
        (seen(2, ""), 'CUDA_VISIBLE_DEVICES is "" and hides all 2 GPUs of this machine'),
        (seen(1, "7"), 'CUDA_VISIBLE_DEVICES is "7" and hides the GPU of this machine'),
    ],
)
def test_training_on_the_cpu_by_default_says_so_and_why(visible: VisibleGpus, why: str) -> None:
    planned = plan_workers("auto", None, visible)
    assert planned.notes == (f"No GPU is visible ({why}): training on the CPU.",)


@pytest.mark.parametrize(("nproc", "who"), [(2, "2 workers share 1 GPU"), (3, "3 workers share 1 GPU")])
def test_sharing_a_gpu_is_noted(nproc: int, who: str) -> None:
    note = f"{who} and talk through gloo: NCCL refuses two ranks on one GPU."
    assert plan_workers((0,), nproc, seen(2)).notes == (note,)


@pytest.mark.parametrize(
    ("gpu_ids", "nproc", "visible"),
    [(None, None, 0), (None, 2, 2), ("auto", None, 2), ("auto", 2, 2), ("all", None, 2), ((1,), 1, 2)],
)
def test_what_was_requested_needs_no_note(gpu_ids: GpuIds, nproc: int | None, visible: int) -> None:
    assert plan_workers(gpu_ids, nproc, seen(visible)).notes == ()


def test_workers_on_mig_devices_use_gloo() -> None:
    visible = resolve(machine(mig_gpu(0, (1, 0), (2, 0))), None)
    assert plan_workers("all", None, visible) == Nodes(
        nodes=(NodePlan(devices=("cuda:0", "cuda:1"), uuids=tuple(gpu.uuid for gpu in visible.gpus)),),
        notes=("2 workers use MIG devices and talk through gloo: NCCL takes whole GPUs only.",),
    )


def test_one_worker_on_a_mig_device_needs_no_note() -> None:
    visible = resolve(machine(mig_gpu(0, (1, 0))), None)
    planned = plan_workers("auto", None, visible)
    assert planned == Nodes(nodes=(NodePlan(devices=("cuda:0",), uuids=(visible.gpus[0].uuid,)),))


def test_an_uncertain_order_is_noted_where_a_gpu_is_used() -> None:
    mixed = resolve(machine(whole_gpu(0, "NVIDIA T400"), whole_gpu(1)), None, device_order="FASTEST_FIRST")
    (note,) = plan_workers((1,), None, mixed).notes
    assert note == (
        "The GPUs of this machine differ, and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so CUDA counts the fastest one "
        "first: a name may stand beside the wrong index. "
        "Set CUDA_DEVICE_ORDER=PCI_BUS_ID to count them as nvidia-smi does."
    )
    assert plan_workers(None, None, mixed).notes == ()


@pytest.mark.parametrize(
    ("gpu_ids", "nproc", "visible", "sentence"),
    [
        pytest.param((3,), None, seen(2), f"GPU 3 was asked for, but {TWO}: pass --gpu-ids 0 1.", id="out of range"),
        pytest.param(
            (0, 2, 3),
            None,
            seen(2),
            f"GPUs 2, 3 were asked for, but {TWO}: pass --gpu-ids 0 1.",
            id="two out of range",
        ),
        pytest.param(
            (1,),
            None,
            seen(4, "2"),
            "GPU 1 was asked for, but 1 is visible (0: NVIDIA H200): pass --gpu-ids 0. "
            'CUDA_VISIBLE_DEVICES is "2" and hides 3 of the 4 GPUs of this machine.',
            id="out of range because others are hidden",
        ),
        pytest.param(
            (9,),
            None,
            seen(9),
            "GPU 9 was asked for, but 9 are visible ("
            + ", ".join(f"{index}: NVIDIA H200" for index in range(9))
            + "): pass --gpu-ids all, or indices from 0 to 8.",
            id="out of range of many",
        ),
        pytest.param(
            (0, -1),
            None,
            seen(2),
            f"GPU -1 was asked for, but {TWO}: pass --gpu-ids 0 1.",
            id="negative",
        ),
        pytest.param(
            (1, 0, 1),
            None,
            seen(2),
            f"GPU 1 was asked for more than once, and {TWO}: pass --gpu-ids 1 0, "
            "with --nproc-per-node 3 if 3 workers shall share 2 GPUs.",
            id="repeated",
        ),
        pytest.param(
            (0,),
            None,
            NO_DRIVER,
            "GPU 0 was asked for, but no GPU is visible (no NVIDIA driver was found): "
            "pass --gpu-ids None to train on the CPU.",
            id="a GPU where there is none",
        ),
        pytest.param(
            (0, 1),
            None,
            seen(2, ""),
            'GPUs 0, 1 were asked for, but no GPU is visible (CUDA_VISIBLE_DEVICES is "" and hides all 2 '
            "GPUs of this machine): change or unset it, or pass --gpu-ids None to train on the CPU.",
            id="GPUs where all are hidden",
        ),
        pytest.param(
            "all",
            None,
            seen(0),
            "All GPUs were asked for, but no GPU is visible (this machine has no NVIDIA GPU): "
            "pass --gpu-ids None to train on the CPU.",
            id="all where there is none",
        ),
        pytest.param(
            "all",
            1,
            seen(2),
            "2 GPUs were asked for (0, 1), but only 1 worker, and a worker uses one GPU: "
            "pass --nproc-per-node 2, or --gpu-ids 0.",
            id="fewer workers than all GPUs",
        ),
        pytest.param(
            (2, 0, 1),
            2,
            seen(3),
            "3 GPUs were asked for (2, 0, 1), but only 2 workers, and a worker uses one GPU: "
            "pass --nproc-per-node 3, or --gpu-ids 2 0.",
            id="fewer workers than GPUs",
        ),
        pytest.param(
            None,
            0,
            seen(2),
            "--nproc-per-node 0 was asked for, but a run needs at least one worker: "
            "pass --nproc-per-node 1, or leave the flag out.",
            id="no worker",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_pass(
    gpu_ids: GpuIds, nproc: int | None, visible: VisibleGpus, sentence: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        plan_workers(gpu_ids, nproc, visible)
    assert str(refusal.value) == sentence


@given(visible=st.integers(1, 8), nproc=st.integers(1, 32))
def test_shared_gpus_differ_by_at_most_one_worker(visible: int, nproc: int) -> None:
    planned = plan_workers("auto", nproc, seen(visible))
    loads = [planned.devices.count(f"cuda:{index}") for index in range(min(visible, nproc))]
    assert sum(loads) == len(planned.devices) == nproc
    assert max(loads) - min(loads) <= 1


def test_gpus_that_work_are_used_where_another_is_lost() -> None:
    lost = dataclasses.replace(machine_of(2), problem="the NVIDIA driver says of GPU 1: GPU is lost")
    visible = resolve(lost, None)
    note = "The NVIDIA driver says of GPU 1: GPU is lost. Training does without."
    assert plan_workers("all", None, visible).notes == (note,)
    with pytest.raises(UsageError, match=f"but 2 are visible .*: pass --gpu-ids 0 1. {note}"):
        plan_workers((0, 1, 2), None, visible)
