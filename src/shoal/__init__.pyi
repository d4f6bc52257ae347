from shoal.api import Table as Table
from shoal.api import evaluate as evaluate
from shoal.api import load_policy as load_policy
from shoal.api import make as make
from shoal.api import metrics as metrics
from shoal.api import runs as runs
from shoal.api import train as train
from shoal.config import AgentConfig as AgentConfig
from shoal.config import BaseEnvConfig as BaseEnvConfig
from shoal.config import DistributionConfig as DistributionConfig
from shoal.config import EnvConfig as EnvConfig
from shoal.config import ModelConfig as ModelConfig
from shoal.config import PpoConfig as PpoConfig
from shoal.config import RslRlConfig as RslRlConfig
from shoal.config import ppo as ppo
from shoal.config.checks import above as above
from shoal.config.checks import at_least as at_least
from shoal.config.checks import within as within
from shoal.envs.capabilities import Capabilities as Capabilities
from shoal.errors import ShoalError as ShoalError
from shoal.errors import UsageError as UsageError
from shoal.learn.groups import World as World
from shoal.learn.inference import InferencePolicy as InferencePolicy
from shoal.learn.inference import concatenated as concatenated
from shoal.learn.learner import Learner as Learner
from shoal.learn.learner import TorchLearner as TorchLearner
from shoal.learn.training_env import TrainingEnv as TrainingEnv
from shoal.sim.kernel_task import KernelTask as KernelTask
from shoal.sim.task import CommandRange as CommandRange
from shoal.tasks.registry import TaskSpec as TaskSpec
from shoal.tasks.registry import registered as registered

__version__: str
__all__: list[str]  # noqa: PYI035
PARENT: int
PYTHON: tuple[str, ...]
