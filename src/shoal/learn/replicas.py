"""Replica check: fingerprints of every tensor that must be equal on all ranks, compared over ranks.

A fingerprint is one 64-bit number a tensor, computed on the tensor's device from its exact bits and their order. A
comparison costs one small collective.
"""

import hashlib

import torch

from shoal.errors import ReplicasDivergedError
from shoal.learn.groups import World
from shoal.learn.learner import Learner

# Constants of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), as
# signed 64-bit numbers: 2**64 divided by the golden ratio, and the factors of its finaliser.
_STRIDE = 0x9E37_79B9_7F4A_7C15 - 2**64
_FACTORS = (0xBF58_476D_1CE4_E5B9 - 2**64, 0x94D0_49BB_1331_11EB - 2**64)

_WORD_BYTES = 8


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return one int64 number for the bytes of `tensor` and their order, on the tensor's device."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = torch.nn.functional.pad(raw, (0, -raw.numel() % _WORD_BYTES)).view(torch.int64)
    # Each word is hashed together with its position before the sum: in a plain weighted sum, differences of one unit
    # in the last place, as different orders of summing gradients leave them, could cancel.
    words = words + torch.arange(words.numel(), device=words.device) * _STRIDE
    words = (words ^ (words >> 30)) * _FACTORS[0]
    words = (words ^ (words >> 27)) * _FACTORS[1]
    return (words ^ (words >> 31)).sum() + raw.numel()


def fingerprints(learner: Learner) -> dict[str, int]:
    """Return the fingerprint of each tensor that is replicated, by name, with one copy from the GPU to the host."""
    numbers = {name: fingerprint(tensor) for name, tensor in learner.replicated()}
    on_gpu = [name for name, number in numbers.items() if number.is_cuda]
    copied = dict(zip(on_gpu, torch.stack([numbers[name] for name in on_gpu]).tolist(), strict=True)) if on_gpu else {}
    return {name: copied[name] if name in copied else int(number) for name, number in numbers.items()}


def digest(numbers: dict[str, int]) -> str:
    """Return 16 hexadecimal digits for all names and fingerprints together."""
    text = "\n".join(f"{name} {number}" for name, number in numbers.items())
    return hashlib.blake2b(text.encode(), digest_size=_WORD_BYTES).hexdigest()


def compare_replicas(learner: Learner, world: World, *, when: str) -> str:
    """Check that every rank holds the same learner, and return its digest.

    `when` is for the message: "after the first broadcast", "after iteration 50".

    Raises:
        ReplicasDivergedError: Some rank differs. Raised on all ranks, with the first tensor that differs.
    """
    numbers = fingerprints(learner)
    local = digest(numbers)
    number = torch.tensor(int.from_bytes(bytes.fromhex(local), signed=True), device=world.device)
    extremes = world.max_(torch.stack([number, ~number]))  # The greatest ~x is ~ of the least x.
    if torch.equal(extremes[0], ~extremes[1]):
        return local
    raise ReplicasDivergedError(_difference(numbers, world, when))


def _difference(numbers: dict[str, int], world: World, when: str) -> str:
    """Gather the fingerprints of all ranks, and return the message that names the first difference."""
    texts = world.gather_strings([f"{name} {number}" for name, number in numbers.items()])
    by_rank = [dict(text.rsplit(" ", 1) for text in rank) for rank in texts]
    names = dict.fromkeys(name for rank in by_rank for name in rank)  # In order; some ranks may have more of them.
    first = next(name for name in names if any(rank.get(name) != by_rank[0].get(name) for rank in by_rank))
    ranks = [rank for rank, values in enumerate(by_rank) if values.get(first) != by_rank[0].get(first)]
    word = "rank" if len(ranks) == 1 else "ranks"
    return (
        f"Replicas diverged {when}: '{first}' on {word} {', '.join(map(str, ranks))} differs from rank 0. "
        "Training on would average gradients of unlike policies: resume from the last checkpoint."
    )
