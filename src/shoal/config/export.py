"""What `shoal export` is asked: which policy, and where its files go."""

from __future__ import annotations

from dataclasses import dataclass, field

from shoal.config.agent import AgentConfig
from shoal.config.env import EnvConfig
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig:
    """One trained policy, as files for deployment."""

    task: str
    """What was trained: a registered name, or `path/to/file.py:Class`."""
    checkpoint: str = "latest"
    """The policy: a checkpoint directory, a `.pt` file, or `latest` or `best` of this
    task's newest run."""
    out: str | None = None
    """The ONNX file; the program of torch.export goes beside it, as `.pt2`. Default: `<run>/exports/policy.onnx`, or
    beside a `.pt` file that is in no run."""
    log_root: str = "logs"
    """Directory of all experiments, where `latest` and `best` are looked for."""
    trust_run: bool = False
    """Import the classes that the policy's run names, also where the run is not below `log_root`."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The task's environment; by default as it was in training."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    """The learner, whose networks are built again; by default as it was in training."""

    def __post_init__(self) -> None:
        """Refuse a file that is not called what it is.

        Raises:
            UsageError: It has another suffix.
        """
        if self.out is not None and not self.out.endswith(".onnx"):
            message = (
                f"--out is {self.out!r}, but must end with .onnx, since the program of torch.export goes beside it as "
                ".pt2: pass --out policy.onnx."
            )
            raise UsageError(message)
