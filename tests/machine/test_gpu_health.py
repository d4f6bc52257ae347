"""How GPUs are, as NVML tells it, and what is left untold."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pynvml  # pyright: ignore[reportMissingTypeStubs]
import pytest
from support.fake_devices import GIB, FakeNvml, gpu_uuid, machine, machine_of, mig_gpu, seen

from shoal.machine.gpu_health import Driver, GpuState, read_driver, read_gpu_links, read_gpu_states
from shoal.machine.gpus import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

H200 = {"index": 0, "name": "NVIDIA H200", "uuid": gpu_uuid(0)}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    """Stands an NVML in for the real one."""

    def use(fake: FakeNvml) -> FakeNvml:
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    return use


def test_unsupported_queries_leave_fields_unknown(nvml: Callable[..., FakeNvml]) -> None:
    fake = nvml(FakeNvml(machine_of(1)))
    assert read_gpu_states(seen(1).gpus) == (GpuState(**H200, total_bytes=141 * GIB, free_bytes=141 * GIB),)
    assert not fake.is_open


def test_the_state_has_everything_that_nvml_reports(nvml: Callable[..., FakeNvml]) -> None:
    process = SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB)
    answers = {
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=10 * GIB, free=7 * GIB),
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [process],
        "nvmlDeviceGetComputeMode": lambda _: pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
        "nvmlDeviceGetTemperature": lambda _, _sensor: 34,
        "nvmlDeviceGetTotalEccErrors": lambda _, _kind, _since: 2,
        "nvmlDeviceGetRemappedRows": lambda _: [1, 2, 1, 0],
    }
    nvml(FakeNvml(machine_of(1), answers=answers))
    me = Path("/proc/self/comm").read_text().strip()
    assert read_gpu_states(seen(1).gpus) == (
        GpuState(
            **H200,
            total_bytes=10 * GIB,
            free_bytes=7 * GIB,
            holders=f"{me} (process {os.getpid()}, 3.0 GiB)",
            compute_mode="exclusive process",
            temperature_c=34,
            uncorrected_errors=2,
            repair_pending=True,
            repair_failed=False,
        ),
    )


def test_older_gpus_report_pages_instead_of_rows(nvml: Callable[..., FakeNvml]) -> None:
    nvml(FakeNvml(machine_of(1), answers={"nvmlDeviceGetRetiredPagesPendingStatus": lambda _: 1}))
    (state,) = read_gpu_states(seen(1).gpus)
    assert (state.repair_pending, state.repair_failed) == (True, None)


def test_the_process_with_most_memory_is_named_first(nvml: Callable[..., FakeNvml]) -> None:
    sizes = {2**30: 3 * GIB, 2**30 + 1: None, 2**30 + 2: 4 * GIB}
    processes = [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in sizes.items()]
    nvml(FakeNvml(machine_of(1), answers={"nvmlDeviceGetComputeRunningProcesses": lambda _: processes}))
    names = f"process {2**30 + 2} (4.0 GiB), process {2**30} (3.0 GiB), process {2**30 + 1}"
    assert read_gpu_states(seen(1).gpus)[0].holders == names


def test_a_process_of_another_container_has_no_name(nvml: Callable[..., FakeNvml]) -> None:
    process = SimpleNamespace(pid=2**30, usedGpuMemory=None)
    nvml(FakeNvml(machine_of(1), answers={"nvmlDeviceGetComputeRunningProcesses": lambda _: [process]}))
    assert read_gpu_states(seen(1).gpus)[0].holders == f"process {2**30}"


@pytest.mark.parametrize(
    ("function", "number", "problem"),
    [
        ("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost"),
        ("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_RESET_REQUIRED, "GPU requires restart"),
        ("nvmlDeviceGetTemperature", pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost"),
    ],
)
def test_a_gpu_in_trouble_has_a_problem(
    nvml: Callable[..., FakeNvml], function: str, number: int, problem: str
) -> None:
    nvml(FakeNvml(machine_of(1), raises={function: number}))
    assert read_gpu_states(seen(1).gpus) == (GpuState(**H200, problem=problem),)


def test_a_gpu_that_is_lost_meanwhile_hides_no_other(nvml: Callable[..., FakeNvml]) -> None:
    def temperature(handle: object, _sensor: int) -> int:
        if handle == machine_of(2).gpus[0]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return 34

    nvml(FakeNvml(machine_of(2), answers={"nvmlDeviceGetTemperature": temperature}))
    assert [(state.problem, state.temperature_c) for state in read_gpu_states(seen(2).gpus)] == [
        ("GPU is lost", None),
        (None, 34),
    ]


def test_a_lost_gpu_has_links_that_nobody_knows(nvml: Callable[..., FakeNvml]) -> None:
    nvml(FakeNvml(machine_of(2), raises={"nvmlDeviceGetHandleByUUID": pynvml.NVML_ERROR_GPU_IS_LOST}))
    assert read_gpu_links(seen(2).gpus) == ((*seen(2).gpus, None, None),)


def test_the_name_of_a_process_may_be_any_bytes(nvml: Callable[..., FakeNvml]) -> None:
    process = SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)
    nvml(FakeNvml(machine_of(1), answers={"nvmlDeviceGetComputeRunningProcesses": lambda _: [process]}))
    before = Path("/proc/self/comm").read_bytes()
    try:
        Path(f"/proc/{os.getpid()}/comm").write_bytes(b"f\xfcr\n")
        assert read_gpu_states(seen(1).gpus)[0].holders == f"f\ufffdr (process {os.getpid()})"
    finally:
        Path(f"/proc/{os.getpid()}/comm").write_bytes(before)


def test_a_mig_device_is_queried_by_its_own_uuid(nvml: Callable[..., FakeNvml]) -> None:
    there = machine(mig_gpu(0, (1, 0), (2, 0)))
    nvml(FakeNvml(there))
    states = read_gpu_states(resolve(there, None).gpus)
    assert [(state.uuid[:7], state.free_bytes) for state in states] == [("MIG-010", 10 * GIB), ("MIG-020", 10 * GIB)]


def test_without_a_driver_there_is_no_state(nvml: Callable[..., FakeNvml]) -> None:
    nvml(FakeNvml(machine_of(2), raises={"nvmlInit": pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}))
    assert read_gpu_states(seen(2).gpus) == ()
    assert read_gpu_links(seen(2).gpus) == ()
    assert read_driver() is None


@pytest.mark.parametrize(
    ("answers", "cuda"),
    [
        ({"nvmlSystemGetCudaDriverVersion_v2": 13000}, (13, 0)),
        # A forward-compatibility package: libcuda is newer than the driver.
        ({"nvmlSystemGetCudaDriverVersion_v2": 13020, "nvmlSystemGetCudaDriverVersion": 12040}, (13, 2)),
        # Without libcuda, and on drivers before the second version of the function.
        ({"nvmlSystemGetCudaDriverVersion": 12040}, (12, 4)),
        ({}, None),
    ],
)
def test_a_driver_has_a_release_and_a_version_of_cuda(
    nvml: Callable[..., FakeNvml], answers: dict[str, int], cuda: tuple[int, int] | None
) -> None:
    names = ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
    missing = {name: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND for name in names if name not in answers}
    fake = nvml(
        FakeNvml(
            machine_of(0),
            raises=missing,
            answers={name: lambda version=version: version for name, version in answers.items()},
        )
    )
    assert read_driver() == Driver("580.12.34", cuda)
    assert not fake.is_open


@pytest.mark.parametrize(
    ("nvlink", "read", "expected"),
    [
        (pynvml.NVML_P2P_STATUS_NOT_SUPPORTED, pynvml.NVML_P2P_STATUS_OK, ("SYS", "ok")),
        (pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_OK, ("NV", "ok")),
        (
            pynvml.NVML_P2P_STATUS_NOT_SUPPORTED,
            pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
            ("SYS", "chipset not supported"),
        ),
        (pynvml.NVML_P2P_STATUS_NOT_SUPPORTED, 99, ("SYS", "unknown")),
    ],
)
def test_every_pair_of_gpus_has_a_link(
    nvml: Callable[..., FakeNvml], nvlink: int, read: int, expected: tuple[str, str]
) -> None:
    def p2p(_here: object, _there: object, capability: int) -> int:
        return nvlink if capability == pynvml.NVML_P2P_CAPS_INDEX_NVLINK else read

    ancestor = {"nvmlDeviceGetTopologyCommonAncestor": lambda _here, _there: pynvml.NVML_TOPOLOGY_SYSTEM}
    nvml(FakeNvml(machine_of(3), answers={**ancestor, "nvmlDeviceGetP2PStatus": p2p}))
    links = read_gpu_links(seen(3).gpus)
    assert [(one.index, other.index) for one, other, *_ in links] == [(0, 1), (0, 2), (1, 2)]
    assert {(path, access) for *_, path, access in links} == {expected}
