"""The smallest set of NCCL's settings with which ranks talk, where its defaults hang or fail."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CANDIDATES = (
    ("NCCL_P2P_DISABLE", "1"),  # Peer access that the driver promises and an IOMMU or ACS breaks: the usual culprit.
    ("NCCL_SHM_DISABLE", "1"),  # /dev/shm that is too small, as in a container.
    ("NCCL_IB_DISABLE", "1"),  # InfiniBand that is there but not up.
    ("NCCL_CUMEM_ENABLE", "0"),  # Allocations that containers and old drivers do not share.
    ("NCCL_NVLS_ENABLE", "0"),  # Multicast through an NVSwitch whose fabric manager does not run.
)
"""Settings that are known to help, the likeliest first."""


def smallest_settings(
    works: Callable[[Mapping[str, str]], bool], taken: Sequence[str] = (), most: int = 2
) -> dict[str, str] | None:
    """Return the first set of settings that works, the smaller ones tried first. None when none does.

    Args:
        works: Tries a set.
        taken: Variables that the user has set, which are left alone.
        most: Size of the largest sets that are tried.
    """
    free = [each for each in CANDIDATES if each[0] not in taken]
    sets = itertools.chain.from_iterable(itertools.combinations(free, count) for count in range(1, most + 1))
    return next((dict(each) for each in sets if works(dict(each))), None)


def export_line(settings: Mapping[str, str]) -> str:
    """Return settings as a line for a shell."""
    return "export " + " ".join(f"{name}={value}" for name, value in settings.items())
