"""Record which kernels a task launches on a GPU, with the sizes of their blocks, on a machine without one.

No kernel is run, so none is compiled for the CPU, and no value matters. Warp's own `wp.Tape` would not do: it holds the
block sizes that the CPU gets, which are 1.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import mujoco_warp as mjw
import pytest
import warp as wp

from shoal.sim import validation
from shoal.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Launches: TypeAlias = dict[wp.Module, dict[int, set[str]]]
"""The keys of the kernels that were launched, by module and block size. Warp compiles a module once for each size."""

DEFAULT_BLOCK_DIM = 256
"""What CUDA gets where a launch asks for no size."""

_GPU = SimpleNamespace(is_cuda=True, is_cpu=False, sm_count=132)
"""What MuJoCo Warp asks the current device before it chooses a kernel; the numbers are an H100's."""


def record_launches(tasks: Iterable[str]) -> Launches:
    """Return what these MuJoCo tasks launch when they are built, in a step, and in a deterministic step."""
    launches: Launches = defaultdict(partial(defaultdict, set))
    for task in tasks:
        spec = registry.resolve(task)
        config: Any = spec.env
        with _recording_into(launches):
            built = spec.load_builder()(replace(config, engine="mjwarp"), num_envs=2, device="cpu", seed=0)
            for mode in (mjw.DeterminismType.NONE, mjw.DeterminismType.ALL):
                built.engine._model.opt.deterministic = mode
                built.run()
    return launches


@contextmanager
def _recording_into(launches: Launches) -> Iterator[None]:
    """Record launches instead of running them, and let MuJoCo Warp take the branches of a GPU."""
    device_of = wp.get_device

    def launch(kernel: wp.Kernel, *_: Any, block_dim: int | None = None, **__: Any) -> None:
        if kernel.is_generic:
            message = f"The kernel {kernel.key} is generic: record the overload that its arguments choose."
            raise NotImplementedError(message)
        size = block_dim if block_dim and block_dim > 0 else DEFAULT_BLOCK_DIM
        launches[kernel.module][size].add(kernel.key)

    def suggest_block_size(kernel: wp.Kernel, *_: Any) -> tuple[int, int]:
        # Warp loads the module for its own size of blocks, and asks the driver about that.
        launches[kernel.module][kernel.module.options["block_dim"]].add(kernel.key)
        return DEFAULT_BLOCK_DIM, _GPU.sm_count

    def run_body(_: wp.array, while_body: Callable[..., None], **arguments: Any) -> None:
        while_body(**arguments)

    def run_branches(
        _: wp.array, on_true: Callable[..., None], on_false: Callable[..., None] | None = None, **arguments: Any
    ) -> None:
        for branch in (on_true, on_false):
            if branch is not None:
                branch(**arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wp, "launch", launch)
        patch.setattr(wp, "launch_tiled", launch)
        patch.setattr(wp, "get_suggested_block_size", suggest_block_size)
        patch.setattr(wp, "capture_while", run_body)
        patch.setattr(wp, "capture_if", run_branches)
        patch.setattr(wp, "get_device", lambda name=None: _GPU if name is None else device_of(name))
        patch.setattr(wp, "is_conditional_graph_supported", lambda: True)
        # It looks at what the kernels have written.
        patch.setattr(validation, "check_stages", lambda _: None)
        yield
