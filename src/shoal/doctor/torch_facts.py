"""A child that imports torch and says what it can do here, so that a torch that is broken or hangs is a finding."""

from __future__ import annotations

from typing import Any

from shoal.doctor.children import begin


def torch_facts(gpus: list[int]) -> dict[str, Any]:
    """Return torch's versions, whether it can use CUDA, and which of `gpus` can read each other's memory."""
    import torch
    import torch.distributed as dist
    from torch.cuda import nccl

    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gloo": dist.is_available() and dist.is_gloo_available(),
        "nccl": None,
        "device_count": 0,
        "problem": None,
        "peers": [],
    }
    if torch.version.cuda is None or not gpus:
        return facts
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        facts["problem"] = str(error).strip().partition("\n")[0].rstrip(".")
        return facts
    facts["device_count"] = torch.cuda.device_count()
    if dist.is_nccl_available():
        facts["nccl"] = ".".join(map(str, nccl.version()))
    facts["peers"] = [
        [one, other] for one in gpus for other in gpus if one != other and torch.cuda.can_device_access_peer(one, other)
    ]
    return facts


if __name__ == "__main__":
    asked, answer = begin()
    answer(torch_facts(asked["gpus"]))
