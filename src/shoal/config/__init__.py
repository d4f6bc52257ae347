"""Configurations of the commands, as frozen dataclasses: the environment, the learner, and the run.

Standard library only. Nothing here looks at the machine, and nothing imports a learner.
"""

from shoal.config.agent import AgentConfig
from shoal.config.algorithm import PpoConfig, RndConfig, RndWeightScheduleConfig, SymmetryConfig
from shoal.config.commands import (
    AgentKind,
    BenchConfig,
    CheckEnvConfig,
    ConvertConfig,
    DoctorConfig,
    ExportConfig,
    MotionConfig,
    PlayConfig,
    ReplayConfig,
    RunsConfig,
)
from shoal.config.distillation import DistillationConfig
from shoal.config.env import BaseEnvConfig, EnvConfig, MujocoConfig
from shoal.config.fast_sac import FastSacConfig
from shoal.config.grpo import GrpoConfig
from shoal.config.machines import LaunchConfig
from shoal.config.models import DistributionConfig, ModelConfig
from shoal.config.plain import from_plain, to_plain
from shoal.config.rl_games import RlGamesConfig
from shoal.config.rsl_rl import RslRlConfig
from shoal.config.skrl import SkrlConfig, SkrlJaxConfig
from shoal.config.train import TrainConfig

__all__ = [
    "AgentConfig",
    "AgentKind",
    "BaseEnvConfig",
    "BenchConfig",
    "CheckEnvConfig",
    "ConvertConfig",
    "DistillationConfig",
    "DistributionConfig",
    "DoctorConfig",
    "EnvConfig",
    "ExportConfig",
    "FastSacConfig",
    "GrpoConfig",
    "LaunchConfig",
    "ModelConfig",
    "MotionConfig",
    "MujocoConfig",
    "PlayConfig",
    "PpoConfig",
    "ReplayConfig",
    "RlGamesConfig",
    "RndConfig",
    "RndWeightScheduleConfig",
    "RslRlConfig",
    "RunsConfig",
    "SkrlConfig",
    "SkrlJaxConfig",
    "SymmetryConfig",
    "TrainConfig",
    "from_plain",
    "to_plain",
]
