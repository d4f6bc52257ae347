"""Configurations of the commands, as frozen dataclasses: the environment, the learner, and the run.

Standard library only. Nothing here looks at the machine, and nothing imports a learner.
"""

from shoal.config.agent import AgentConfig as AgentConfig
from shoal.config.algorithm import CnnConfig as CnnConfig
from shoal.config.algorithm import DistributionConfig as DistributionConfig
from shoal.config.algorithm import ModelConfig as ModelConfig
from shoal.config.algorithm import PpoConfig as PpoConfig
from shoal.config.algorithm import RndConfig as RndConfig
from shoal.config.algorithm import RndWeightScheduleConfig as RndWeightScheduleConfig
from shoal.config.algorithm import SymmetryConfig as SymmetryConfig
from shoal.config.commands import BenchConfig as BenchConfig
from shoal.config.commands import CheckEnvConfig as CheckEnvConfig
from shoal.config.commands import ConvertConfig as ConvertConfig
from shoal.config.commands import DemoConfig as DemoConfig
from shoal.config.commands import DoctorConfig as DoctorConfig
from shoal.config.commands import ExportConfig as ExportConfig
from shoal.config.commands import MotionConfig as MotionConfig
from shoal.config.commands import PlayConfig as PlayConfig
from shoal.config.commands import ReplayConfig as ReplayConfig
from shoal.config.commands import RunsConfig as RunsConfig
from shoal.config.env import BaseEnvConfig as BaseEnvConfig
from shoal.config.env import EnvConfig as EnvConfig
from shoal.config.env import MujocoConfig as MujocoConfig
from shoal.config.fast_sac import FastSacConfig as FastSacConfig
from shoal.config.flags import LaunchConfig as LaunchConfig
from shoal.config.grpo import GrpoConfig as GrpoConfig
from shoal.config.plain import from_plain as from_plain
from shoal.config.plain import to_plain as to_plain
from shoal.config.rl_games import RlGamesConfig as RlGamesConfig
from shoal.config.rsl_rl import DistillationConfig as DistillationConfig
from shoal.config.rsl_rl import RslRlConfig as RslRlConfig
from shoal.config.rsl_rl import ppo as ppo
from shoal.config.skrl import SkrlConfig as SkrlConfig
from shoal.config.skrl import SkrlJaxConfig as SkrlJaxConfig
from shoal.config.train import TrainConfig as TrainConfig
