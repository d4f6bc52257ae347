"""Proof that all ranks hold the same learner: fingerprints of every tensor that must agree, compared over ranks.

A fingerprint is one 64-bit number a tensor, made on the tensor's device from its exact bits and their order, so that
a comparison costs one small collective, and equal fingerprints mean equal weights, normalisers and optimizers.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch

from shoal.errors import ReplicasDivergedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rsl_rl.algorithms import PPO

    from shoal.learn.groups import World

_ODD = -0x61C8_8646_80B5_83EB  # 2**64 divided by the golden ratio, as a signed 64-bit number (Knuth, TAOCP 6.4).


def learner_tensors(algorithm: PPO) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and value of all that must be equal on every rank.

    Weights and normalisers (`state_dict` of each network), the optimizers' moments, and the learning rate.
    """
    networks: dict[str, torch.nn.Module] = {"actor": algorithm._raw_actor, "critic": algorithm._raw_critic}  # noqa: SLF001  Uncompiled handles.
    optimizers = {"optimizer": algorithm.optimizer}
    if algorithm.rnd:
        networks["rnd"] = algorithm.rnd
        optimizers["rnd_optimizer"] = algorithm.rnd.optimizer
    for owner, network in networks.items():
        for name, tensor in network.state_dict().items():
            yield f"{owner}.{name}", tensor
    for owner, optimizer in optimizers.items():
        for index, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                yield f"{owner}.{index}.{name}", torch.as_tensor(value)
    yield "learning_rate", torch.tensor(algorithm.learning_rate, dtype=torch.float64)


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return one int64 number for the bits of `tensor` and their order, on the tensor's device."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    padding = -raw.numel() % 4
    words = torch.nn.functional.pad(raw, (0, padding)).view(torch.int32).to(torch.int64)
    # A sum with one odd multiplier for each position: a changed word and two swapped words both change it.
    order = torch.arange(1, words.numel() + 1, device=words.device) * _ODD | 1
    return (words * order).sum() + raw.numel()


def fingerprints(algorithm: PPO, device: str) -> tuple[list[str], torch.Tensor]:
    """Return the names and the fingerprints, shape (num_tensors,), of `learner_tensors`."""
    named = [(name, fingerprint(tensor).to(device)) for name, tensor in learner_tensors(algorithm)]
    return [name for name, _ in named], torch.stack([number for _, number in named])


def digest(numbers: torch.Tensor) -> str:
    """Return 16 hexadecimal digits for all fingerprints together, to print and to compare by eye."""
    return struct.pack(">q", int(fingerprint(numbers.cpu()))).hex()


def compare_replicas(algorithm: PPO, world: World, *, when: str) -> str:
    """Check that every rank holds the same learner, and return its digest.

    Args:
        algorithm: This rank's learner.
        world: All ranks.
        when: When this is, for the message: "after the first broadcast", "after iteration 50".

    Raises:
        ReplicasDivergedError: Some rank differs. Raised on all ranks, with the first tensor that differs.
    """
    names, numbers = fingerprints(algorithm, world.device)
    # The number of tensors comes first: ranks that disagree on it must not compare vectors of unlike length.
    counts = [int(count) for count in world.gather(torch.tensor([len(names)], device=world.device))]
    if len(set(counts)) > 1:
        message = f"Replicas diverged {when}: ranks hold {counts} tensors (by rank): resume from the last checkpoint."
        raise ReplicasDivergedError(message)
    extremes = world.max_(torch.stack([numbers, ~numbers]))  # max of ~x is the complement of the minimum of x
    if torch.equal(extremes[0], ~extremes[1]):
        return digest(numbers)
    table = torch.stack(world.gather(numbers))  # (world size, num_tensors)
    first = int((table != table[0]).any(dim=0).nonzero()[0])
    ranks = [rank for rank in range(world.size) if table[rank, first] != table[0, first]]
    word = "rank" if len(ranks) == 1 else "ranks"
    message = (
        f"Replicas diverged {when}: '{names[first]}' on {word} {', '.join(map(str, ranks))} differs from rank 0. "
        "Training on would average gradients of unlike policies: resume from the last checkpoint."
    )
    raise ReplicasDivergedError(message)
