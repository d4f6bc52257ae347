"""Every kernel that MuJoCo Warp launches for Shoal's tasks compiles for CUDA. NVRTC needs no GPU for it."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pytest
import warp as wp
from support.cubins import compile_module
from support.recorded_launches import record_launches

from shoal.config.env import MujocoConfig
from shoal.tasks import registry

if TYPE_CHECKING:
    from pathlib import Path

    from support.recorded_launches import Launches

TASKS = [
    spec.name
    for spec in registry.registered().values()
    if isinstance(spec.env, MujocoConfig)
    and spec.name
    not in {
        "G1-Velocity-Flat",
        "G1-Velocity-Rough",
        "G1-Tracking-Flat",
        "Hand-Reorient-Cube",
    }  # Their models are in other packages.
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Compile for the architectures that were asked for."""
    if "arch" in metafunc.fixturenames:
        archs = str(metafunc.config.getoption("--soak-archs")).split(",")
        metafunc.parametrize("arch", [int(arch) for arch in archs], ids="sm_{}".format)


def test_launches_are_recorded_with_the_block_sizes_of_a_gpu() -> None:
    recorded = record_launches(["Quadruped-Velocity-Flat"])
    sizes: dict[str, set[int]] = {}
    for variants in recorded.values():
        for size, keys in variants.items():
            for key in keys:
                sizes.setdefault(key, set()).add(size)
    assert sizes["close_step"] == {256}
    assert sizes["_update_gradient_cholesky__locals__kernel"] == {64}
    # The size of its launch, and the one for which MuJoCo Warp asks how many blocks fit.
    assert sizes["_nxn_broadphase__locals__kernel"] == {128, 256}
    modes = {module.options["deterministic"] for module in recorded if "_gravity_force" in module.name}
    assert modes == {wp.DeterministicMode.NOT_GUARANTEED, wp.DeterministicMode.RUN_TO_RUN}


@pytest.fixture(scope="module")
def launches() -> Launches:
    """What all MuJoCo tasks launch."""
    return record_launches(TASKS)


def compile_variants(launches: Launches, arch: int, directory: Path, module: wp.Module) -> list[str]:
    """Compile a module for each size of blocks that it is launched with, and return what went wrong."""
    failures: list[str] = []
    for size, keys in launches[module].items():
        variant = f"{module.name}, blocks of {size} threads"
        try:
            cubin = compile_module(module, arch, directory / variant, block_dim=size)
        except Exception as error:  # noqa: BLE001  Warp raises nothing narrower; NVRTC's message is on standard error.
            failures.append(f"{variant}: {error}")
            continue
        if cubin.arch != arch or not keys <= cubin.kernels:
            failures.append(f"{variant}: sm_{cubin.arch} without {sorted(keys - cubin.kernels)}")
    return failures


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_launched_kernel_compiles_for(
    arch: int, launches: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Warp caches the linear algebra of tiles there between runs. Here it is compiled again.
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path / "cache"))
    began = time.monotonic()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failures = [*chain.from_iterable(pool.map(partial(compile_variants, launches, arch, tmp_path), launches))]
    keys = [keys for sizes in launches.values() for keys in sizes.values()]
    sys.stdout.write(
        f"sm_{arch}: {len(keys)} modules with {sum(map(len, keys))} launched kernels compiled in "
        f"{time.monotonic() - began:.0f} s, {len(failures)} failures\n"
    )
    assert failures == []
