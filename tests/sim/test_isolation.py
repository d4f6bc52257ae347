"""Isolation changes what it says for as long as it lasts, and nothing after."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import warp as wp

from shoal.errors import UsageError
from shoal.sim.isolation import EGL_DEVICE_VARIABLE, isolated


def test_threads_are_limited_inside_and_given_back_outside() -> None:
    before = torch.get_num_threads()
    with isolated("cpu", threads=before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_threads_are_given_back_when_the_body_fails() -> None:
    before = torch.get_num_threads()
    with pytest.raises(KeyError), isolated("cpu", threads=before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


def test_without_a_share_torch_keeps_its_threads() -> None:
    before = torch.get_num_threads()
    with isolated("cpu"):
        assert torch.get_num_threads() == before


def test_the_precision_of_matrix_products_is_given_back_outside() -> None:
    before = torch.get_float32_matmul_precision()
    assert before == "highest"
    with isolated("cpu", matmul_precision="high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_warp_arrays_go_to_the_rank_s_device() -> None:
    before = wp.get_device()
    with isolated("cpu"):
        assert wp.zeros(1, dtype=wp.float32).device == wp.get_device("cpu")
    assert wp.get_device() == before


def test_warp_s_log_level_is_put_back() -> None:
    before = wp.config.log_level
    with isolated("cpu"):
        assert wp.config.log_level >= wp.LOG_WARNING
    assert wp.config.log_level == before


def test_an_unknown_device_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"The device 'cuda:77' was asked for, but Warp sees only: cpu"):
        isolated("cuda:77").__enter__()


def test_a_cpu_rank_starts_without_a_word_about_drivers_and_loses_no_other() -> None:
    script = """
import os
import shoal.sim.isolation as isolation
import warp as wp
init = wp.init
def speaking_init():
    init()
    os.write(2, b"something else")
wp.init = speaking_init
with isolation.isolated("cpu"):
    os.write(2, b" and later words")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stderr == "something else and later words"


def test_a_cpu_rank_leaves_rendering_alone() -> None:
    with isolated("cpu"):
        assert EGL_DEVICE_VARIABLE not in os.environ


def test_starting_warp_greets_nobody() -> None:
    # Warp's greeting makes a context on every GPU of the machine.
    code = "from shoal.sim.isolation import isolated\nwith isolated('cpu'): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


CONTEXTS = """
import torch
from shoal.envs.vec_env import WarpVecEnv
from shoal.sim.isolation import isolated
from shoal.tasks.cartpole.task import Swingup

with isolated("cuda:{own}"):
    env = WarpVecEnv(Swingup(Swingup.config, num_envs=8, device="cuda:{own}", seed=0))
    env.step(torch.zeros(8, 1, device="cuda:{own}"))
    torch.cuda.synchronize("cuda:{own}")
    for index in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(index):
            print(index)
"""


@pytest.mark.gpu
def test_a_rank_makes_a_context_on_its_own_gpu() -> None:
    assert gpus_with_contexts(0) == ["0"]


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("own", [0, 1])
def test_a_rank_makes_no_context_on_another_gpu(own: int) -> None:
    assert gpus_with_contexts(own) == [str(own)]


def gpus_with_contexts(own: int) -> list[str]:
    """Step an environment on GPU `own` in a new process, and return the GPUs that have a context there."""
    code = CONTEXTS.format(own=own)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.gpu
def test_a_gpu_rank_renders_on_its_gpu_unless_the_user_has_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EGL_DEVICE_VARIABLE, raising=False)
    with isolated("cuda:0"):
        assert os.environ[EGL_DEVICE_VARIABLE] == "0"
        assert torch.cuda.current_device() == 0
        assert wp.get_device().alias == "cuda:0"
    assert EGL_DEVICE_VARIABLE not in os.environ
    monkeypatch.setenv(EGL_DEVICE_VARIABLE, "5")
    with isolated("cuda:0"):
        assert os.environ[EGL_DEVICE_VARIABLE] == "5"
