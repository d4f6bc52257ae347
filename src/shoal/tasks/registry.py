"""Registry of tasks: names, one-line summaries, defaults, and the builder of each.

A lookup imports no simulator, except for a task in a user's own file, which is imported. Other packages add tasks
through the entry-point group `shoal.tasks`, whose entries are `TaskSpec` values.
"""

import importlib.util
import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from shoal.config import AgentConfig, BaseEnvConfig, RslRlConfig, TrainConfig
from shoal.config.learners import resolve_learner
from shoal.errors import ShoalError, UsageError, did_you_mean
from shoal.user_code import find_class, line_in, load

ENTRY_POINT_GROUP = "shoal.tasks"
POLICIES = Path(__file__).parent / "policies"
"""Trained policies, `<name>.pt`, and `manifest.json`, which says how docs/make_policies.py made each."""

_SHIPPED = (
    "shoal.tasks.cartpole.specs:SPECS",
    "shoal.tasks.quadruped.specs:SPECS",
    "shoal.tasks.gymnasium_v5.specs:SPECS",
    "shoal.tasks.humanoid.specs:SPECS",
    "shoal.tasks.manipulation.specs:SPECS",
)
"""Tasks of this package. Named, not imported: the task families are a higher layer."""

_LIBRARIES = {
    "gym": "shoal.envs.gymnasium_spec:spec_of",
    "mjlab": "shoal.envs.mjlab_spec:spec_of",
    "playground": "shoal.envs.playground_spec:spec_of",
}
"""What makes the spec of a task of another library, by the word before the colon. Named, not imported, as above."""

_LONGEST = 400
"""Most characters of another library's error that are shown: MuJoCo lists all names of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task: its defaults, and where it is built."""

    name: str
    """Name on the command line, and of the experiment's directory."""
    summary: str
    """One line for `shoal tasks`."""
    env: BaseEnvConfig
    """Defaults of the environment."""
    agent: AgentConfig
    """Defaults of `learner`."""
    learner: str = "rsl_rl"
    """The learner that trains this task by default."""
    other_agents: tuple[AgentConfig, ...] = ()
    """Defaults of further learners."""
    num_envs: int = 1024
    """Default number of environments on each worker: what learns fastest on the CPU."""
    gpu_num_envs: int | None = None
    """The same on a GPU, where more cost little; None: as many."""
    max_iterations: int = 300
    """Default length of a training [iterations]."""
    builder: str
    """Builder of the environments: `module:attribute`, or `/path/to/file.py:attribute`. Called as
    `builder(config, num_envs=..., device=..., seed=...)`, without `config` if `env` is a plain `BaseEnvConfig`. Returns
    a `KernelTask` or an `rsl_rl.env.VecEnv`."""
    check: str | None = None
    """Check of the environment's configuration before a launch, `module:function`. Called with it and
    with `env`; returns notes for the user, and raises a `UsageError` if the task cannot be built."""
    reference: str | None = None
    """Speed of the same dynamics in MuJoCo's C engine, `module:function`, for `shoal bench`. Called as
    `reference(config, num_envs, seconds)`; returns environment steps a second."""
    gpu_bytes_per_env: int = 0
    """Least GPU memory of one environment with the defaults of `env` [bytes]; 0: unknown.
    `tests/gpu/test_memory.py` measures it."""
    observation_size: int = 1
    """Numbers in one observation, all groups together, with the defaults of `env`; 1: unknown."""
    extra: str | None = None
    """Extra of Shoal that the task needs, see `require_extra`."""
    note: str | None = None
    """Note about these defaults, printed before a training."""

    @property
    def experiment(self) -> str:
        """Name of the directory that holds this task's runs."""
        return re.sub(r"[^A-Za-z0-9._-]+", "_", self.name)

    def agent_of(self, learner: str) -> AgentConfig:
        """Return the defaults of a learner for this task, or else its own.

        Raises:
            UsageError: There is no such learner.
        """
        default = resolve_learner(learner).config
        tuned = (agent for agent in (self.agent, *self.other_agents) if type(agent) is type(default))
        return self.agent if learner == self.learner else next(tuned, default)

    def defaults(self, task: str | None = None, learner: str | None = None) -> TrainConfig:
        """Return the configuration of `train <task> --learner <learner>` without other flags."""
        return TrainConfig(
            task=task or self.name,
            learner=learner or self.learner,
            num_envs=self.num_envs,
            max_iterations=self.max_iterations,
            env=self.env,
            agent=self.agent_of(learner or self.learner),
        )

    def load_builder(self) -> Callable[..., Any]:
        """Import the task's module and return its builder."""
        return load(self.builder)

    def build(self, config: BaseEnvConfig, *, num_envs: int, device: str, seed: int) -> Any:  # noqa: ANN401  The task.
        """Build the task's environments.

        Raises:
            UsageError: The task's own code, or its model, is wrong.
        """
        builder = self.load_builder()
        settings = () if type(config) is BaseEnvConfig else (config,)
        return self._calling(builder, partial(builder, *settings, num_envs=num_envs, device=device, seed=seed))

    def check_build(self, config: BaseEnvConfig) -> None:
        """Build a task of kernels of the user's own once, and check the indices of its kernels.

        Raises:
            UsageError: The task's own code, or its model, is wrong.
        """
        builder: Any = None if self.builder.startswith("shoal.") else self.load_builder()
        if hasattr(builder, "build_once"):
            self._calling(builder, partial(builder.build_once, config))

    def _calling(self, builder: Any, make: Callable[[], Any]) -> Any:  # noqa: ANN401  A class or a function; what it makes.
        """Return what `make` makes; name the line of the user's code that is at fault otherwise."""
        try:
            return make()
        except (ShoalError, AttributeError, LookupError, NameError, TypeError, ValueError, FileNotFoundError) as error:
            line = _source_line(error, builder)
            if line is None or (isinstance(error, ShoalError) and type(error) is not ShoalError):
                raise
            if isinstance(error, ShoalError):
                raise UsageError(f"{error} Look at {line}.") from error.__cause__
            raise UsageError(f"The task {self.name} cannot be built, see {line}: {_description(error)}") from error

    def check_env(self, config: BaseEnvConfig) -> tuple[str, ...]:
        """Check that the task can be built, and return notes for the user.

        Raises:
            UsageError: A package is not installed, or the configuration names something that does not exist.
        """
        if self.extra is not None:
            require_extra(self.extra)
        if self.check is None:
            return ()
        if os.environ.get("MUJOCO_GL") == "osmesa":
            # OSMesa, which MuJoCo loads at once, and triton, which torch loads later, both bring LLVM: loaded in this
            # order, triton ends the process with a segmentation fault.
            with suppress(ImportError):
                import_module("triton")
        return load(self.check)(config, self.env) or ()

    def load_reference(self) -> Callable[..., float] | None:
        """Import the reference of `shoal bench`, if the task has one."""
        return None if self.reference is None else load(self.reference)


def require_extra(extra: str) -> Path:
    """Return the directory of an extra's package, without importing it.

    Raises:
        UsageError: It is not installed.
    """
    found = importlib.util.find_spec(extra)
    if found is None or found.origin is None:
        raise UsageError(f"The task needs the package {extra}, which is not installed: run `uv add 'shoal[{extra}]'`.")
    return Path(found.origin).parent


def resolve(task: str) -> TaskSpec:
    """Return the task of a registered name, of another library, or of a user's own code.

    Another library's is `gym:ENV_ID`, `gym:path/to/file.py:ENV_ID`, `mjlab:TASK` or `playground:ENV`; a user's own is
    `path/to/file.py:Class` or `module:attribute`.

    Raises:
        UsageError: Nothing is registered under that name, or there is no such task.
    """
    where, colon, name = task.partition(":")
    if where in _LIBRARIES:
        return load(_LIBRARIES[where])(name)
    if ".py:" in task or task.endswith(".py"):
        author, path = find_class("task", task, _is_task)
        return _from_author(author, f"{path}:{author.__name__}")
    if colon:
        return _from_author(_imported(task), task)
    spec = next((each for each in _specs() if each.name == task), None)
    if spec is None:
        hint = did_you_mean(task, registered())
        raise UsageError(f"There is no task '{task}'.{hint} `shoal tasks` lists what can be trained.")
    return spec


def shipped_policies() -> dict[str, Path]:
    """Return the file of each policy that ships, by its name: that of its task, or of a robot too."""
    return {file.stem: file for file in POLICIES.glob("*.pt")}


def shipped_policy(name: str) -> Path:
    """Return the file of a policy that ships.

    Raises:
        UsageError: There is none of that name.
    """
    files = shipped_policies()
    if name not in files:
        raise UsageError(
            f"No policy of {name} ships with Shoal, only of {', '.join(sorted(files))}: pass one of these, or train it."
            f"{did_you_mean(name, files)}"
        )
    return files[name]


def is_reference(word: str) -> bool:
    """Whether a word names a task of a Python file, or of another library."""
    return ".py:" in word or word.endswith(".py") or word.partition(":")[0] in _LIBRARIES


@cache
def registered() -> dict[str, TaskSpec]:
    """Return all tasks by name. Of two with one name the first counts."""
    specs: dict[str, TaskSpec] = {}
    for spec in _specs():
        specs.setdefault(spec.name, spec)
    return specs


def _specs() -> Iterator[TaskSpec]:
    """Yield Shoal's tasks, then those of installed packages. Each family is imported when it is reached."""
    for value in _SHIPPED:
        yield from load(value)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        loaded = point.load()
        yield from loaded if isinstance(loaded, tuple) else (loaded,)


def _is_task(value: Any) -> bool:  # noqa: ANN401  Anything that a file defines.
    """Whether a class or function builds environments: it has a `config`, or takes their number, device and seed."""
    if isinstance(getattr(value, "config", None), BaseEnvConfig):
        return True
    with suppress(ValueError, TypeError):
        return inspect.signature(value).parameters.keys() >= {"num_envs", "device", "seed"}
    return False


def _imported(task: str) -> Any:  # noqa: ANN401  A class or a function.
    """Import the builder that `module:attribute` names."""
    where, _, name = task.rpartition(":")
    try:
        author = load(task)
    except ImportError as error:
        raise UsageError(
            f"The task '{task}' asks for the module {where}, which cannot be imported ({error}): pass "
            f"path/to/file.py:Class, module:attribute, or one of {', '.join(f'{each}:NAME' for each in _LIBRARIES)}."
        ) from error
    except AttributeError as error:
        hint = did_you_mean(name, dir(import_module(where)))
        raise UsageError(f"The task '{task}' asks for {name}, which the module {where} does not have.{hint}") from error
    if not _is_task(author):
        raise UsageError(
            f"The task '{task}' builds no environments: {name} has no `config`, and does not take `num_envs`, `device` "
            "and `seed`."
        )
    return author


def _from_author(author: Any, builder: str) -> TaskSpec:  # noqa: ANN401  A class or a function.
    """Return the task of a user's own code, with what the class or function declares.

    See docs/guide/your_own_task.md and docs/guide/your_own_environment.md.
    """
    attribute = author.__name__
    builders = {spec.builder: spec for spec in registered().values()}
    classes = getattr(author, "__mro__", (author,))
    bases = [(base, builders.get(f"{base.__module__}:{base.__qualname__}")) for base in classes]
    base = next((spec for _, spec in bases if spec), None)  # A registered task of which this one is a subclass.
    declares = next((base.__name__ for base, _ in bases if "agent" in vars(base)), base and base.name)
    note = f"{attribute} learns with the defaults of {declares}."
    if declares is None:
        note = f"{attribute} learns with rsl_rl's defaults, since it declares no `agent`."
    training = ("agent", "learner", "other_agents", "num_envs", "max_iterations")
    usual: dict[str, Any] = {name: getattr(base, name) for name in training} if base else {"agent": RslRlConfig()}
    own = {name: getattr(author, name) for name in training if hasattr(author, name)}
    return TaskSpec(
        name=attribute,
        summary=(author.__doc__ or "").strip().partition("\n")[0],
        env=getattr(author, "config", BaseEnvConfig()),
        **usual | own,
        builder=builder,
        check=base and base.check,
        note=None if declares == attribute else note,
    )


def _source_line(error: Exception, builder: Any) -> str | None:  # noqa: ANN401  A class or a function.
    """Return the innermost line of the user's own file in a traceback, else that of the class; None for our tasks."""
    file = Path(inspect.getsourcefile(builder) or "")
    if file.is_relative_to(Path(__file__).parent):
        return None
    return line_in(file.parent, error) or f"line {inspect.getsourcelines(builder)[1]} of {file}"


def _description(error: Exception) -> str:
    """Return the type and message of an error, with the nearest valid name."""
    text = " ".join(str(error.args[0] if isinstance(error, LookupError) and error.args else error).split())
    if isinstance(error, AttributeError):
        hint = did_you_mean(error.name or "", dir(error.obj))
    else:
        name, *known = [*re.findall(r"'([^']+)'", text), ""]
        file = Path(name)
        hint = did_you_mean(name, known) or did_you_mean(file.name, (path.name for path in file.parent.glob("*")))
    return f"{type(error).__name__}: {textwrap.shorten(text, _LONGEST, placeholder=' ...').rstrip('.')}.{hint}"
