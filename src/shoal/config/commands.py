"""Configurations of the commands other than `train`: their flags, and the ranges of the values."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from shoal.config.agent import AgentConfig
from shoal.config.checks import HIGHEST_PORT, SEED, VIDEO_SIZE, FlagsConfig, above, at_least, each, file_like, within
from shoal.config.env import BaseEnvConfig
from shoal.config.flags import LogRootFlags, NodeFlags, TaskFlags
from shoal.config.rsl_rl import RslRlConfig
from shoal.errors import UsageError

EPISODES = 10
"""Episodes that `play` counts."""
UNTRAINED = ("zero", "random")
"""Policies without a checkpoint: zeros, and uniform random numbers in [-1, 1]."""


@dataclass(frozen=True, kw_only=True)
class PolicyFlags(FlagsConfig):
    """A mix-in: flags of commands that load policies, which have the settings of their trainings by default."""

    __slots__ = ()
    trust: bool = False
    """Import the classes that the policy's run names even if the run is not below `--log-root`."""
    env: BaseEnvConfig = field(default_factory=BaseEnvConfig)
    """The task's environment; by default as in the policy's training."""
    agent: AgentConfig = field(default_factory=RslRlConfig)
    """The learner, whose networks are rebuilt; by default as in the policy's training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig(PolicyFlags, LogRootFlags, TaskFlags):
    """Flags that name one trained policy."""

    task: str
    """Task of the policy: a registered name, or `path/to/file.py:Class`."""
    learner: str = "rsl_rl"
    """Learner that trained it; by default that of the policy's training."""
    checkpoint: str = "latest"
    """The policy: a checkpoint directory, a `.pt` file, `latest` or `best` of this task's newest run below
    `--log-root`, the best of all its runs, `best-of-runs`, or `shipped`, the one that comes with the task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayConfig(PolicyConfig):
    """Flags of `play`."""

    checkpoint: str = "latest"
    """The policy: a checkpoint directory, a `.pt` file, `latest` or `best` of this task's newest run below
    `--log-root`, the best of all its runs, `best-of-runs`; `shipped`, the one that comes with the task, which is
    also shown where there is no run; or `zero` or `random` actions in [-1, 1]."""
    viewer: Literal["web", "native"] | None = None
    """Show the policy until Ctrl-C: `web` on a page, `native` in MuJoCo's window. Default: `web`, in a terminal where
    viser is installed; elsewhere, and with the next flags, episodes are counted instead."""
    headless: bool = False
    """Count episodes: print their returns and statistics."""
    episodes: Annotated[int | None, at_least(1)] = None
    """Number of episodes that are counted, each in an environment of its own, so that short ones do not count more
    often. Default: 10."""
    num_envs: Annotated[int, at_least(1)] = 4
    """Environments side by side on the page. The window shows one."""
    viewer_host: str = "127.0.0.1"
    """Address at which the page is served; by default it is reachable from this machine only."""
    viewer_port: Annotated[int, within(1, HIGHEST_PORT)] = 8080
    """Port of the page. If it is taken, the next free one."""
    disturbances: bool = False
    """Keep the pushes and the observation noise of training."""
    seed: Annotated[int, SEED] = 1
    """Seed of the environments."""
    video_path: Annotated[str | None, file_like("video.mp4")] = None
    """Write a video of the first environment to this mp4 file."""
    video_length: Annotated[int | None, at_least(1)] = None
    """Steps of the video. Default: the longest episode. Where an episode ends earlier, the next one follows."""
    video_size: Annotated[tuple[int, int], VIDEO_SIZE] = (1280, 720)
    """Width and height of the video [pixels]."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """Index of a visible GPU, or `None` for the CPU. `auto` is GPU 0 if there is one, else the CPU."""

    def __post_init__(self) -> None:
        FlagsConfig.__post_init__(self)
        if self.viewer is not None and self.counts:
            raise UsageError(
                f"--viewer {self.viewer} shows the policy until Ctrl-C, but --headless, --episodes and --video-path "
                "count its episodes: pass one or the other."
            )

    @property
    def counts(self) -> bool:
        """Whether a flag wants episodes counted."""
        return self.headless or self.episodes is not None or self.video_path is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoConfig(FlagsConfig):
    """Flags of `shoal demo`."""

    task: str | None = None
    """The policy to begin with, by the name of its task. Default: the first of the menu that can run here."""
    record: Annotated[str | None, file_like("demo.mp4")] = None
    """Write a video of five seconds to this mp4 file instead."""
    num_envs: Annotated[int, at_least(1)] = 1
    """Environments side by side on the page."""
    browser: bool = True
    """Open the page in the browser, where there is a display."""
    viewer_host: str = "127.0.0.1"
    """Address at which the page is served, as for `play`."""
    viewer_port: Annotated[int, within(1, HIGHEST_PORT)] = 8080
    """Port of the page. If it is taken, the next free one."""
    seed: Annotated[int, SEED] = 1
    """Seed of the environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportConfig(PolicyConfig):
    """Flags of `shoal export`."""

    out: Annotated[str | None, file_like("policy.onnx")] = None
    """The ONNX file; the torch.export program goes beside it, as `.pt2`. Default: `<run>/exports/policy.onnx`, or
    beside a `.pt` file that is in no run."""
    json: bool = False
    """Print all metadata as JSON instead of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig(FlagsConfig):
    """Flags of `shoal replay`."""

    file: str
    """The file that a training with `--env.on-nan stop` wrote: `<run>/ranks/rank_00000.diverged.npz`."""
    env: int | None = None
    """Index of the environment on its rank. Default: the first one that diverged."""
    video_path: Annotated[str | None, file_like("video.mp4")] = None
    """Write a video in slow motion to this mp4 file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MotionConfig(FlagsConfig):
    """Flags of `shoal motion`."""

    file: str
    """The motion: an .npz file, a .csv file as Unitree has them, or the name of one that ships, such as `squats`."""
    robot: str = "humanoid"
    """The robot, as `--env.robot` has it."""
    file_fps: Annotated[float | None, above(0)] = None
    """Frames a second of the file. Default: what the file tells, and 30 for a .csv file."""
    fps: Annotated[float | None, above(0)] = None
    """Frames a second of what is written. Default: those of the file."""
    start: Annotated[float, at_least(0)] = 0.0
    """Leave out what is before this time [s]."""
    end: Annotated[float | None, above(0)] = None
    """Leave out what is after this time [s]."""
    out: Annotated[str | None, file_like("motion.npz")] = None
    """Write the motion to this .npz file, with the velocities of all bodies, as mjlab has them."""
    video_path: Annotated[str | None, file_like("video.mp4")] = None
    """Write a video of the motion, without physics, to this mp4 file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsConfig(LogRootFlags):
    """Flags of `shoal runs`."""

    task: str | None = None
    """Task whose runs are listed: its name, or `path/to/file.py:Class`. Default: all below `--log-root`."""
    run: str | None = None
    """Verify the checkpoints of this run instead: its directory, its name in any experiment, or `latest`, the newest
    run with a checkpoint. `shoal runs RUN` does the same."""
    sort: Literal["age", "score"] = "age"
    """Order: `age` has the newest run first, `score` the best run of each task by the metric of its newest run."""
    limit: Annotated[int | None, at_least(1)] = None
    """Largest number of runs that are listed. Default: 20, and with `--json` all."""
    json: bool = False
    """Print JSON instead of a table."""

    def __post_init__(self) -> None:
        FlagsConfig.__post_init__(self)
        if self.run is not None and (self.task is not None or self.sort != "age" or self.limit is not None):
            raise UsageError(f"--run {self.run} lists checkpoints, not runs: leave the task, --sort and --limit out.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig(FlagsConfig):
    """Flags of `shoal convert`."""

    file: str
    """A `.pt` checkpoint of rsl_rl, mjlab or Isaac Lab."""
    trust: bool = False
    """Unpickle the file even if it holds code. This runs that code: only for files from people you trust."""
    output: str | None = None
    """The converted file. Default: `<name>_plain.pt` beside the original."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig(FlagsConfig):
    """Flags of `shoal bench`."""

    task: str
    """Task to measure: a registered name, or `path/to/file.py:Class`."""
    learner: str = ""
    """Learner, as for `train`. Default: the task's."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """Indices of visible GPUs (`0 1`, `0,1` or `[0,1]`), `all`, or `None` for the CPU.
    `auto` is GPU 0 if there is one, else the CPU."""
    num_envs: Annotated[int, at_least(1)] = 1024
    """Environments on each worker."""
    until_return: float | None = None
    """Measure instead how long training takes until the policy earns this mean return without exploration noise, once
    for each seed from 42 on; `--repeats` is their number."""
    startup: bool = False
    """Measure instead the parts of a start, from the command to the end of the first iteration."""
    nproc_per_node: Annotated[tuple[int, ...], each(at_least(1))] = (1,)
    """Numbers of workers to compare, such as `1 2`. Efficiency is relative to the first one."""
    iterations: Annotated[int, at_least(1)] = 40
    """Timed training iterations, after the warm-up."""
    warmup: Annotated[int, at_least(1)] = 5
    """Training iterations before the timed ones."""
    save_interval: Annotated[int, at_least(1)] = 10
    """Training iterations between checkpoints. With 3 checkpoints or more, their cost is printed.
    With `--until-return`, the policy is evaluated as often."""
    seconds: Annotated[float, above(0)] = 2.0
    """Length of each measurement of environment steps [s]."""
    repeats: Annotated[int, at_least(1)] = 3
    """Repetitions of all measurements; medians are printed."""
    threads: Annotated[int, at_least(1)] = 1
    """CPU threads of each worker."""
    cold: bool = False
    """Measure the time to the first iteration with an empty kernel cache, too."""
    json: str | None = None
    """Write the results, with machine and versions, to this file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEnvConfig(FlagsConfig):
    """Flags of `shoal check-env`."""

    task: str
    """Task whose environments are checked, as for `train`."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """The device: the index of a GPU, or `None` for the CPU."""
    num_envs: Annotated[int, at_least(1)] = 16
    """Number of environments."""
    steps: Annotated[int, at_least(2)] = 1100
    """Steps of each environment with random actions."""
    seed: Annotated[int, SEED] = 1
    """Seed of the environments."""
    env: BaseEnvConfig = field(default_factory=BaseEnvConfig)
    """The task's environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorConfig(NodeFlags):
    """Flags of `shoal doctor`."""

    task: str | None = None
    """Check that this task can be trained here, too: its name, or `path/to/file.py:Class`."""
    gpu_ids: tuple[str, ...] = ("auto",)
    """GPUs to check, as for `train`: indices, `all`, or `None` for the CPU. `auto` is every visible GPU, or the CPU
    if there is none; with `--hosts`, the first GPU of each node."""
    nproc_per_node: Annotated[int | None, at_least(1)] = None
    """Workers of the test launch. Default: one for each GPU, and 2 on the CPU."""
    hosts: tuple[str, ...] = ()
    """Check these nodes instead, as for `train`, and measure the communication between them."""
    log_root: str = "logs"
    """Directory of all experiments, whose disk is checked."""
    timeout: Annotated[float, above(0)] = 30.0
    """Time without progress after which a check counts as hung [s]."""
    json: bool = False
    """Print the findings as JSON instead of a table."""

    def __post_init__(self) -> None:
        NodeFlags.__post_init__(self)
        if self.interface is not None and not self.hosts:
            raise UsageError(
                "--interface was passed without --hosts, so this node alone is examined: pass --hosts, or leave it out."
            )
