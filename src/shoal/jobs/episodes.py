"""Running one part of a job: its episodes are written as they end."""

import math
import time
from collections.abc import Callable

from shoal.envs.building import VecEnv
from shoal.envs.capabilities import capabilities_of
from shoal.errors import ShoalError
from shoal.jobs.ledger import Claim
from shoal.jobs.policies import JobPolicy
from shoal.jobs.recording import Recording
from shoal.learn.episodes import Episode, Step, run_episodes


class JobTimeoutError(ShoalError):
    """A part took longer than the job's `timeout`."""


def run_part(
    claim: Claim,
    env: VecEnv,
    policy: JobPolicy,
    *,
    on_step: Callable[[], None],
    recording: Recording | None = None,
) -> None:
    """Run a part: one episode in each environment, or those that begin in each within `num_steps` steps.

    Args:
        claim: The part. Its episodes are written as they end.
        env: `job.num_envs` environments. Those beyond the part's episodes run along and are not counted.
        policy: The policy.
        on_step: Called after each step. May raise, to stop.
        recording: Takes observations, actions and rewards of each step.
    """
    job, part = claim.job, claim.part
    capabilities_of(env).restart(job.seed, part.first)
    policy.begin(range(part.first, part.first + env.num_envs), job.seed)
    end = time.monotonic() + (job.timeout or math.inf)

    def write(row: int, episode: Episode) -> None:
        index = part.first + row + episode.pop("number") * job.num_envs * job.rebuilds
        claim.write({"index": index, "seed": job.seed, **episode})

    def watch(step: Step) -> None:
        if recording is not None:
            recording.add(step)
        on_step()
        if time.monotonic() > end:
            raise JobTimeoutError(
                f"Part {part.number} of the job {job.name} took longer than its timeout of {job.timeout:g} s: "
                "raise `timeout`, or pass fewer `num_envs`."
            )

    run_episodes(env, policy, part.count, write, within=job.num_steps or 0, on_step=watch)
