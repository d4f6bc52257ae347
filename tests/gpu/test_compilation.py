"""Every kernel of Shoal compiles for the GPUs that Shoal supports. NVRTC needs no GPU for it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import warp as wp
from support.cubins import compile_module, read_cubin

import shoal.mdp
import shoal.sim
import shoal.tasks
from shoal.tasks import registry

ARCHS = (75, *(pytest.param(arch, marks=pytest.mark.soak) for arch in (80, 86, 89, 90, 100, 120)))
"""Turing, Ampere (A100, RTX 30), Ada (RTX 40), Hopper (H100), Blackwell (B200, RTX 50)."""
SOURCES = Path(shoal.sim.__file__).parents[1]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DECORATOR = re.compile(r"^ *@wp\.kernel\b", re.MULTILINE)


def kernels_in(source: Path) -> int:
    """Return how many kernels a file defines."""
    return len(DECORATOR.findall(source.read_text(encoding="utf-8")))


EXAMPLES_WITH_KERNELS = [path for path in sorted(EXAMPLES.glob("*.py")) if kernels_in(path)]


@pytest.fixture(scope="module")
def modules() -> dict[str, wp.Module]:
    """The modules with kernels, of the package and of the documented examples, by name."""
    packages = [(package.__path__, f"{package.__name__}.") for package in (shoal.sim, shoal.mdp, shoal.tasks)]
    names = [found.name for package in packages for found in pkgutil.walk_packages(*package)]
    for name in names:
        importlib.import_module(name)
    names += [registry.resolve(str(path)).load_builder().__module__ for path in EXAMPLES_WITH_KERNELS]
    return {name: module for name in names if (module := wp.get_module(name)).kernels}


@pytest.fixture(scope="module")
def generated() -> dict[str, wp.Module]:
    """The modules of the kernels that are generated from the terms of tasks, by the name of the task."""
    made: dict[str, wp.Module] = {}
    for name in ("Quadruped-Velocity-Flat", "Quadruped-Velocity-Rough", "Humanoid-Tracking-Flat"):
        spec = registry.resolve(name)
        task = spec.build(spec.env, num_envs=1, device="cpu", seed=0)
        made[name] = task._kernels["reward"].kernel.module
    return made


def test_every_kernel_of_the_sources_is_found(modules: dict[str, wp.Module]) -> None:
    counts = {path: kernels_in(path) for path in (*SOURCES.rglob("*.py"), *EXAMPLES_WITH_KERNELS)}
    found = sorted(len(module.kernels) for module in modules.values())
    assert EXAMPLES_WITH_KERNELS
    assert found == sorted(count for count in counts.values() if count)


@pytest.mark.parametrize("arch", ARCHS, ids="sm_{}".format)
def test_every_kernel_compiles_for(
    arch: int, modules: dict[str, wp.Module], generated: dict[str, wp.Module], tmp_path: Path
) -> None:
    for name, module in (modules | generated).items():
        cubin = compile_module(module, arch, tmp_path / name)
        assert (cubin.arch, cubin.kernels) == (arch, set(module.kernels)), name


@wp.func_native("return no_such_function(value);")
def wrong(value: wp.float32) -> wp.float32: ...


@wp.kernel(enable_backward=False, module="unique")
def calls_wrong(values: wp.array[wp.float32]) -> None:
    index = wp.tid()
    values[index] = wrong(values[index])


def test_a_kernel_with_a_wrong_cuda_snippet_is_refused_with_the_compiler_s_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kernel: Any = calls_wrong  # The decorator turns a function into a kernel.
    with pytest.raises(Exception, match="CUDA kernel build failed"):
        compile_module(kernel.module, 90, tmp_path)
    assert 'error: identifier "no_such_function" is undefined' in capfd.readouterr().err


def test_a_file_that_is_no_cubin_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.cubin"
    path.write_text(".version 9.0\n.target sm_90\n", encoding="utf-8")
    with pytest.raises(ValueError, match="is no ELF file"):
        read_cubin(path)
