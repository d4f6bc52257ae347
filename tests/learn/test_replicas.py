"""Fingerprints: what they must tell apart, on one rank. What two ranks compare is in `test_two_ranks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.learners import ALONE, tiny_agent, tiny_config, tiny_loop, train

from shoal.config import ModelConfig, PpoConfig, RndConfig
from shoal.learn.replicas import compare_replicas, digest, fingerprint, fingerprints

if TYPE_CHECKING:
    from shoal.config.algorithm import Optimizer

WORDS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=2, max_size=40)
DTYPES = [torch.bool, torch.uint8, torch.float16, torch.int32, torch.float32, torch.int64, torch.float64]


def number(tensor: torch.Tensor) -> int:
    """The fingerprint as a plain number."""
    return int(fingerprint(tensor))


# Fingerprints


@given(WORDS)
def test_equal_bits_have_equal_fingerprints(words: list[int]) -> None:
    whole = torch.tensor([[word, 0] for word in words])
    assert number(torch.tensor(words)) == number(whole[:, 0])  # Contiguous or not.


@given(WORDS, st.data())
def test_order_matters(words: list[int], data: st.DataObject) -> None:
    other = data.draw(st.permutations(words))
    assert (number(torch.tensor(words)) == number(torch.tensor(other))) is (words == other)


@given(WORDS, st.data())
def test_one_flipped_bit_matters(words: list[int], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(words) - 1))
    bit = data.draw(st.integers(0, 31))
    before = torch.tensor(words, dtype=torch.int32)
    after = before.clone()
    after[index] ^= torch.tensor(1).bitwise_left_shift(bit).to(torch.int32)
    assert number(before) != number(after)


@given(st.integers(0, 30), st.integers(1, 30))
def test_differences_in_the_last_place_do_not_cancel(first: int, apart: int) -> None:
    # Up, twice down and up again at equal distances: a sum weighted by position, however odd, would not see it.
    values = torch.ones(100)
    nudged = values.clone()
    for place, units in ((first, 1), (first + apart, -2), (first + 2 * apart, 1)):
        nudged.view(torch.int32)[place] += units
    assert number(values) != number(nudged)


@given(st.integers(0, 40), st.integers(0, 40))
def test_size_matters_though_all_bytes_are_zero(size: int, other: int) -> None:
    assert (number(torch.zeros(size, dtype=torch.uint8)) == number(torch.zeros(other, dtype=torch.uint8))) is (
        size == other
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (0,), (0, 3), (2, 3), (8,)], ids=str)
def test_any_tensor_has_a_fingerprint(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    zeros, ones = torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    assert (number(zeros) == number(ones)) is (zeros.numel() == 0)
    assert fingerprint(ones).dtype is torch.int64


@pytest.mark.parametrize("offset", range(9))
def test_a_part_of_a_tensor_may_begin_anywhere(offset: int) -> None:
    # Words of eight bytes are read from bytes that need not begin where such words do.
    bits = torch.arange(20) % 3 == 0
    assert number(bits[offset:]) == number(bits[offset:].clone())


def test_zero_and_minus_zero_differ_and_nan_is_itself() -> None:
    assert number(torch.tensor(0.0)) != number(torch.tensor(-0.0))
    assert number(torch.tensor(torch.nan)) == number(torch.tensor(torch.nan))


def test_a_fingerprint_is_the_same_on_every_machine() -> None:
    # Worked out with Python's integers: ranks need not run on one kind of device.
    def scattered(word: int) -> int:
        word &= 2**64 - 1
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            signed = word - 2**64 if word >> 63 else word  # torch shifts the sign in.
            word = (word ^ (signed >> shift)) * factor & (2**64 - 1)
        return word

    words = [3, -1, 2**62, 0, -(2**63)]
    total = sum(scattered(word + place * 0x9E3779B97F4A7C15) for place, word in enumerate(words)) + 8 * len(words)
    assert number(torch.tensor(words)) % 2**64 == total % 2**64


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_gpu_makes_the_same_fingerprint(dtype: torch.dtype) -> None:
    values = (torch.randn(1001, generator=torch.Generator().manual_seed(0)) * 100).to(dtype)
    assert number(values.to("cuda:0")) == number(values)
    assert fingerprint(values.to("cuda:0")).device.type == "cuda"


# Learners


def test_every_tensor_that_must_agree_has_a_name() -> None:
    loop = tiny_loop(tiny_config(max_iterations=1))
    train(loop)
    names = {name for name, _ in loop.learner.replicated()}
    assert {
        "actor.mlp.0.weight",
        "actor.distribution.std_param",
        "actor.obs_normalizer._mean",
        "actor.obs_normalizer._var",
        "actor.obs_normalizer._std",
        "actor.obs_normalizer.count",
        "critic.mlp.2.bias",
        "critic.obs_normalizer._mean",
        "optimizer.0.exp_avg",
        "optimizer.0.exp_avg_sq",
        "optimizer.0.step",
        "optimizer.8.exp_avg",
        "optimizer.learning_rate",
        "learning_rate",
    } <= names
    parameters = [*loop.learner.alg.actor.parameters(), *loop.learner.alg.critic.parameters()]
    assert len(parameters) == 9
    assert "optimizer.9.step" not in names


def test_rnd_networks_must_agree_too() -> None:
    rnd = RndConfig(enabled=True, weight=1.0, state_normalization=True, reward_normalization=True)
    groups = {"actor": ("policy",), "critic": ("policy",), "rnd_state": ("privileged",)}
    agent = tiny_agent(obs_groups=groups, algorithm=PpoConfig(rnd=rnd))
    loop = tiny_loop(tiny_config(max_iterations=1, agent=agent))
    train(loop)
    names = {name for name, _ in loop.learner.replicated()}
    assert {
        "rnd.predictor.0.weight",
        "rnd.target.0.weight",
        "rnd.state_normalizer._mean",
        "rnd.reward_normalizer.emp_norm._std",
        "rnd_optimizer.0.exp_avg",
        "rnd_optimizer.learning_rate",
    } <= names


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "rmsprop"])
def test_a_change_of_any_tensor_changes_the_digest(optimizer: Optimizer) -> None:
    # One of the four also tries a recurrent critic.
    critic = {"class_name": "RNNModel", "rnn_hidden_dim": 4} if optimizer == "adamw" else {}
    algorithm = PpoConfig(optimizer=optimizer, num_learning_epochs=1, num_mini_batches=2)
    agent = tiny_agent(critic=ModelConfig(hidden_dims=(8,), **critic), algorithm=algorithm)
    loop = tiny_loop(tiny_config(max_iterations=1, agent=agent))
    train(loop)
    before = compare_replicas(loop.learner, ALONE, when="now")
    assert before == compare_replicas(loop.learner, ALONE, when="now")
    seen = {before}
    for name, tensor in loop.learner.replicated():
        if name.endswith("learning_rate"):
            continue  # A copy; `test_two_ranks` changes it where it is kept.
        kept = tensor.clone()
        with torch.no_grad():
            tensor.add_(1)
        seen.add(digest(fingerprints(loop.learner)))
        tensor.detach().copy_(kept)
    assert len(seen) == len(fingerprints(loop.learner)) - 2 + 1
    assert compare_replicas(loop.learner, ALONE, when="now") == before


def test_a_digest_knows_names() -> None:
    assert digest({"a": 1, "b": 2}) != digest({"a": 1, "c": 2})
    assert digest({"a": 1, "b": 2}) != digest({"a": 2, "b": 1})
    assert len(digest({})) == 16
