"""What a training is asked to be, as frozen dataclasses: the environment, the learner, and the run.

Standard library only. Nothing here looks at the machine, and nothing knows rsl_rl but `to_rsl_rl`.
"""

from __future__ import annotations

from shoal.config.agent import AgentConfig, BaseAgentConfig, DistillationAgentConfig
from shoal.config.algorithm import (
    DistillationConfig,
    PpoConfig,
    RndConfig,
    RndWeightScheduleConfig,
    SymmetryConfig,
)
from shoal.config.bench import BenchConfig
from shoal.config.checkpoints import CheckpointsConfig
from shoal.config.convert import ConvertConfig
from shoal.config.doctor import DoctorConfig
from shoal.config.env import EnvConfig, MujocoConfig
from shoal.config.export import ExportConfig
from shoal.config.models import CnnConfig, DistributionConfig, ModelConfig
from shoal.config.plain import from_plain, to_plain
from shoal.config.play import AgentKind, PlayConfig
from shoal.config.replay import ReplayConfig
from shoal.config.train import TrainConfig

__all__ = [
    "AgentConfig",
    "AgentKind",
    "BaseAgentConfig",
    "BenchConfig",
    "CheckpointsConfig",
    "CnnConfig",
    "ConvertConfig",
    "DistillationAgentConfig",
    "DistillationConfig",
    "DistributionConfig",
    "DoctorConfig",
    "EnvConfig",
    "ExportConfig",
    "ModelConfig",
    "MujocoConfig",
    "PlayConfig",
    "PpoConfig",
    "ReplayConfig",
    "RndConfig",
    "RndWeightScheduleConfig",
    "SymmetryConfig",
    "TrainConfig",
    "from_plain",
    "to_plain",
]
