"""CUDA's rules about which devices a process sees, one row a rule."""

from __future__ import annotations

import sys

import pynvml  # pyright: ignore[reportMissingTypeStubs]
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_devices import FakeNvml, gpu_uuid, machine, machine_of, mig_gpu, seen, whole_gpu

from shoal.machine import gpus
from shoal.machine.gpus import Gpu, Inventory, VisibleGpus, read_inventory, resolve, visible_gpus

FOUR = machine_of(4)
WHOLE_AND_MIG = machine(
    whole_gpu(0), whole_gpu(1), mig_gpu(2, (1, 0), (2, 0)), mig_gpu(3, (1, 0), (1, 1), (2, 0)), driver=580
)
OLD_DRIVER = Inventory(gpus=WHOLE_AND_MIG.gpus, driver_release=535)
MASKS = st.text(alphabet="0123 ,-+GPUMI/xg", max_size=24)


def uuids(visible: VisibleGpus) -> list[str]:
    """Shortened UUIDs: the kind and the first block without its zeros."""
    return [gpu.uuid[:4] + gpu.uuid[4:12].rstrip("0").ljust(1, "0") for gpu in visible]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        pytest.param(None, [0, 1, 2, 3], id="unset shows all"),
        pytest.param("", [], id="empty shows none"),
        pytest.param("-1", [], id="minus one shows none"),
        pytest.param("NoDevFiles", [], id="a word shows none"),
        pytest.param("none", [], id="the word none shows none"),
        pytest.param("2,3", [2, 3], id="numbers"),
        pytest.param("3,1", [3, 1], id="the order is the user's"),
        pytest.param(" 2 , 3 ", [2, 3], id="white space around numbers"),
        pytest.param("+1,-0,02", [1, 0, 2], id="signs and leading zeros"),
        pytest.param("1gpu,2ampere", [1, 2], id="numbers with a tail"),
        pytest.param("0,2,-1,1", [0, 2], id="a negative number ends the list"),
        pytest.param("0,9,1", [0], id="a number too high ends the list"),
        pytest.param("9,0", [], id="nothing stands before the invalid entry"),
        pytest.param("1,,2", [1], id="an empty entry ends the list"),
        pytest.param("1,two,3", [1], id="a word ends the list"),
        pytest.param("99999999999999999999,0", [], id="a number without end"),
        pytest.param("0,0", [], id="repeated numbers show none"),
        pytest.param("0,1,0", [], id="repeated numbers, apart"),
        pytest.param("0,-1,0", [0], id="repeated, but after the end"),
        pytest.param("0,9,0", [], id="repeated across a number too high"),
        pytest.param(gpu_uuid(2), [2], id="a UUID"),
        pytest.param("GPU-3,GPU-1", [3, 1], id="abbreviated UUIDs"),
        pytest.param("GPU-", [], id="an abbreviation that fits all"),
        pytest.param("GPU-1,GPU-9,GPU-2", [1], id="an unknown UUID ends the list"),
        pytest.param("GPU-1,2", [1], id="a number among UUIDs ends the list"),
        pytest.param("1,GPU-2", [1], id="a UUID among numbers ends the list"),
        pytest.param("GPU-1, GPU-2", [1], id="a space before a UUID ends the list"),
        pytest.param(" GPU-1", [], id="a space before the first UUID"),
        pytest.param("GPU-1,GPU-10", [], id="one GPU by two abbreviations"),
        pytest.param("GPU-1,GPU-1", [], id="repeated UUIDs"),
        pytest.param("GPU-1,2,GPU-1", [1], id="repeated UUIDs after the end"),
        pytest.param("gpu-1", [], id="UUIDs are written as nvidia-smi writes them"),
        pytest.param("MIG-1", [], id="a MIG device where there is none"),
    ],
)
def test_whole_gpus_follow_the_mask(mask: str | None, expected: list[int]) -> None:
    visible = resolve(FOUR, mask)
    assert [gpu.uuid for gpu in visible] == [gpu_uuid(number) for number in expected]
    assert [gpu.index for gpu in visible] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        pytest.param(None, ["GPU-0", "GPU-1", "MIG-21", "MIG-22", "MIG-31", "MIG-32"], id="one of each GPU instance"),
        pytest.param("2", ["MIG-21"], id="a number stands for the first device of a GPU"),
        pytest.param("3,0", ["MIG-31", "GPU-0"], id="whole GPUs stand beside MIG devices"),
        pytest.param("GPU-2", ["MIG-21"], id="a UUID of a GPU stands for its first device"),
        pytest.param("MIG-32,MIG-21", ["MIG-32", "MIG-21"], id="MIG devices of two GPUs"),
        pytest.param("MIG-311,MIG-31000", ["MIG-311"], id="two devices of one GPU instance: the first listed"),
        pytest.param("MIG-2", [], id="an abbreviation that fits two"),
        pytest.param("MIG-21,MIG-9,MIG-22", ["MIG-21"], id="an unknown MIG device ends the list"),
        pytest.param("MIG-21,0", ["MIG-21"], id="a number among MIG devices ends the list"),
        pytest.param("MIG-21,MIG-21", [], id="repeated MIG devices"),
        pytest.param("MIG-GPU-3/2/0", [], id="a name of drivers before 470"),
    ],
)
def test_mig_devices_follow_the_mask_since_driver_570(mask: str | None, expected: list[str]) -> None:
    assert uuids(resolve(WHOLE_AND_MIG, mask)) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        pytest.param(None, ["MIG-21"], id="one MIG device and no whole GPU"),
        pytest.param("0,1", ["GPU-0", "GPU-1"], id="whole GPUs where no MIG device is listed"),
        pytest.param("0,3", ["MIG-31"], id="a MIG device hides whole GPUs"),
        pytest.param("MIG-32,MIG-21", ["MIG-32"], id="only the first MIG device"),
    ],
)
def test_one_mig_device_is_seen_before_driver_570(mask: str | None, expected: list[str]) -> None:
    assert uuids(resolve(OLD_DRIVER, mask)) == expected


@pytest.mark.parametrize(("release", "count"), [(569, 1), (570, 6)])
def test_the_rules_for_mig_devices_change_with_driver_570(release: int, count: int) -> None:
    assert len(resolve(Inventory(gpus=WHOLE_AND_MIG.gpus, driver_release=release), None)) == count


def test_a_driver_of_unknown_release_follows_the_newest_rules() -> None:
    unknown = Inventory(gpus=WHOLE_AND_MIG.gpus)
    assert resolve(unknown, None).gpus == resolve(WHOLE_AND_MIG, None).gpus


def test_a_gpu_in_mig_mode_without_instances_is_not_seen() -> None:
    unusable = machine(mig_gpu(0), whole_gpu(1))
    assert uuids(resolve(unusable, None)) == ["GPU-1"]
    assert uuids(resolve(unusable, "0,1")) == []


def test_a_visible_device_carries_what_the_driver_says_of_it() -> None:
    visible = resolve(machine(whole_gpu(0), mig_gpu(1, (3, 0))), None)
    assert visible.gpus == (
        Gpu(index=0, name="NVIDIA H200", uuid=gpu_uuid(0)),
        Gpu(index=1, name="NVIDIA H100 MIG 1g.10gb", uuid="MIG-13000000-5555-6666-7777-888888888888"),
    )
    assert [gpu.is_mig for gpu in visible] == [False, True]


@pytest.mark.parametrize(("mask", "hidden"), [(None, 0), ("", 4), ("0,1", 2), ("3,2,1,0", 0), ("0,0", 4), ("1,9", 3)])
def test_what_the_mask_hides_is_counted(mask: str | None, hidden: int) -> None:
    assert seen(4, mask).hidden_count == hidden


def test_a_mask_on_a_machine_without_gpus_hides_nothing() -> None:
    assert seen(0, "0").hidden_count == 0


def test_a_mask_that_shows_as_much_as_its_absence_hides_nothing() -> None:
    one_instance = machine(mig_gpu(0, (1, 0), (1, 1)))
    assert resolve(one_instance, "MIG-011").hidden_count == 0


def test_a_mask_that_shows_more_than_its_absence_hides_nothing() -> None:
    # Before driver 570 a MIG device hides the whole GPUs, unless the mask leaves it out.
    assert len(resolve(OLD_DRIVER, None)) == 1
    assert len(resolve(OLD_DRIVER, "0,1")) == 2
    assert resolve(OLD_DRIVER, "0,1").hidden_count == 0


@pytest.mark.parametrize(
    ("mask", "order", "uncertain"),
    [
        (None, None, True),
        ("0,1", None, True),
        ("0,1", "FASTEST_FIRST", True),
        ("0,1", "PCI_BUS_ID", False),
        ("GPU-0,GPU-1", None, False),
        ("", None, False),
    ],
)
def test_the_order_is_uncertain_only_where_cuda_may_sort_differing_gpus(
    mask: str | None, order: str | None, *, uncertain: bool
) -> None:
    mixed = machine(whole_gpu(0, "NVIDIA T400"), whole_gpu(1))
    assert resolve(mixed, mask, device_order=order).order_is_uncertain is uncertain


def test_the_order_of_equal_gpus_is_certain() -> None:
    assert seen(4).order_is_uncertain is False


@given(mask=MASKS)
def test_any_mask_shows_each_device_at_most_once_and_counts_from_zero(mask: str) -> None:
    for inventory in (FOUR, WHOLE_AND_MIG, OLD_DRIVER, machine()):
        visible = resolve(inventory, mask)
        assert [gpu.index for gpu in visible] == list(range(len(visible)))
        assert len({gpu.uuid for gpu in visible}) == len(visible)


@given(numbers=st.permutations(range(4)), count=st.integers(0, 4))
def test_distinct_numbers_and_their_uuids_show_the_same_gpus(numbers: list[int], count: int) -> None:
    by_number = resolve(FOUR, ",".join(map(str, numbers[:count])))
    by_uuid = resolve(FOUR, ",".join(gpu_uuid(number) for number in numbers[:count]))
    assert by_number.gpus == by_uuid.gpus
    assert len(by_number) == count


# NVML


def use(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> FakeNvml:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml


def test_nvml_is_read_into_an_inventory_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine(whole_gpu(0), whole_gpu(1, "NVIDIA GeForce RTX 5090"), mig_gpu(2, (1, 0), (2, 0)), driver=580)
    nvml = use(monkeypatch, FakeNvml(there))
    assert read_inventory() == there
    assert not nvml.is_open


@pytest.mark.parametrize(
    ("function", "number", "problem"),
    [
        ("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "no NVIDIA driver was found"),
        (
            "nvmlInit",
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            "the NVIDIA driver answers: RM has detected an NVML/RM version mismatch.",
        ),
        (
            "nvmlDeviceGetHandleByIndex",
            pynvml.NVML_ERROR_GPU_IS_LOST,
            "the NVIDIA driver says of GPU 0: GPU is lost, the NVIDIA driver says of GPU 1: GPU is lost",
        ),
    ],
)
def test_a_driver_that_fails_leaves_no_gpus_and_a_problem(
    function: str, number: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = use(monkeypatch, FakeNvml(machine_of(2), raises={function: number}))
    inventory = read_inventory()
    assert (inventory.gpus, inventory.problem) == ((), problem)
    assert not nvml.is_open


def test_a_gpu_that_is_lost_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine_of(3)

    def by_index(index: int) -> object:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return there.gpus[index]

    use(monkeypatch, FakeNvml(there, answers={"nvmlDeviceGetHandleByIndex": by_index}))
    inventory = read_inventory()
    assert inventory.gpus == (there.gpus[0], there.gpus[2])


def test_this_machine_is_counted_or_says_why_not() -> None:
    inventory = read_inventory()
    assert inventory.problem is None or inventory.gpus == ()


def test_a_missing_nvml_package_leaves_no_gpus_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    inventory = read_inventory()
    assert inventory.gpus == ()
    assert inventory.problem == "the package nvidia-ml-py cannot be imported"


def test_the_environment_decides_what_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = machine(whole_gpu(0, "NVIDIA T400"), whole_gpu(1), whole_gpu(2))
    monkeypatch.setattr(gpus, "read_inventory", lambda: mixed)
    environ = {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    visible = visible_gpus(environ)
    assert visible == resolve(mixed, "2,0", device_order="PCI_BUS_ID")
    assert [gpu.name for gpu in visible] == ["NVIDIA H200", "NVIDIA T400"]
    assert visible_gpus({}) == resolve(mixed, None)
