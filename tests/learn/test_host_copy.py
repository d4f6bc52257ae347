"""A copy on the host holds what tensors held when it was made, whoever reads it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from shoal.learn.host_copy import HostCopy


def test_a_copy_holds_the_values_of_its_moment_in_the_same_nesting(device: str) -> None:
    weights, steps = torch.arange(4.0, device=device), torch.tensor(3)
    state = {"weights": weights, "pair": (weights[:2], [steps, "adam"]), "nothing": None}
    copy = HostCopy(state, device)
    weights.zero_()
    steps.zero_()
    found: Any = copy.get()
    assert found["weights"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found["pair"][0].tolist() == [0.0, 1.0]
    assert found["pair"][1] == [torch.tensor(3), "adam"]
    assert found["nothing"] is None
    assert {found["weights"].device.type, found["pair"][0].device.type} == {"cpu"}


def test_another_thread_may_wait_for_it(device: str) -> None:
    copy = HostCopy({"weights": torch.ones(3, device=device)}, device)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(copy.get()))
    thread.start()
    thread.join()
    assert found[0]["weights"].tolist() == [1.0, 1.0, 1.0]
