"""`run.json`, with one entry for each launch, and what a launch writes into its run with it: parameters and models.

A launch that goes on from a checkpoint is written by rank 0 once all ranks have restored: until then, a failed resume
leaves the run as it was. Any other launch is written by the launching process, before anything is started.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

import yaml

from shoal import __version__
from shoal.config import TrainConfig
from shoal.config.plain import to_plain
from shoal.config.train import NOT_REPEATED
from shoal.errors import ShoalError, UsageError, refusing_os_errors
from shoal.plan.rundir import MODEL_FILE, RunDir
from shoal.provenance import now
from shoal.reading import parse_object, read_bytes, refusing

logger = logging.getLogger(__name__)


def write_launch(run: RunDir, config: TrainConfig, launch: Mapping[str, Any]) -> None:
    """Add a launch to `run.json`, and replace what an earlier one has left in the run, but for metrics.

    Raises:
        UsageError: The run cannot be written.
    """
    with refusing_os_errors(f"The run {run.path} cannot be written", "mend it, or pass another --log-root"):
        for directory in (run.params_dir, run.checkpoints_dir, run.ranks_dir):
            run.folder.make(directory)
        _write_launches(run, [*(_launches(run) if run.run_json.is_file() else []), launch])  # First: it has begun.
        _write_params(run, config)
        _keep_models(run, config)
        _remove_unfinished(run)


def record_end(
    run: RunDir, launch: Mapping[str, Any], exit_code: int, last_line: str, digests: Mapping[int, str] | None = None
) -> None:
    """Write how `launch` ended, with the learner's fingerprint on each rank; warn where that fails.

    A launch that ended before it was written changes nothing, unless it restarts the one that was written last.
    """
    ended = {"time": now(), "exit_code": exit_code, "last_line": last_line, "digests": digests or {}}
    entry = json.loads(json.dumps(launch))
    try:
        launches = _launches(run)
        last = launches[-1] if launches and isinstance(launches[-1], dict) else {}
        is_written = last | {"ended": None} == entry
        if is_written or (entry["restart_of"] and last.get("started") == entry["restart_of"]):
            _write_launches(run, [*launches[: -1 if is_written else None], entry | {"ended": ended}])
    except (OSError, ShoalError) as error:
        logger.warning("%s does not tell how this launch ended (%s).", run.run_json, error)


def _launches(run: RunDir) -> list[dict[str, Any]]:
    with refusing(run.run_json, "restore it, or start a new run"):
        return parse_object(read_bytes(run.run_json), {"launches": list})["launches"]


def _write_launches(run: RunDir, launches: list[Any]) -> None:
    run.folder.write(run.run_json, json.dumps({"shoal": __version__, "launches": launches}, indent=2))


def _write_params(run: RunDir, config: TrainConfig) -> None:
    """Write the configuration as `train --config` reads it: whole in train.yaml, its two big parts beside it."""
    plain = {name: value for name, value in to_plain(config).items() if name not in NOT_REPEATED}
    for file, names in ((run.train_yaml, plain), (run.env_yaml, ("task", "env")), (run.agent_yaml, ("task", "agent"))):
        part = {name: plain[name] for name in names}
        run.folder.write(file, yaml.safe_dump(part, sort_keys=False, default_flow_style=None, width=110))


def _keep_models(run: RunDir, config: TrainConfig) -> None:
    """Copy the MJCF and other files of the environment, unless the run has copies already, which are equal."""
    for field, named in config.env.model_files().items():
        if run.saved_model(field) is None:
            from shoal.sim.engines.model_copies import copy_model
            from shoal.sim.engines.model_files import find_robot

            try:
                file = find_robot(named)
            except UsageError:  # The environment raises it when it is built.
                continue
            copy_model(file, run.folder, run.models_dir / field, MODEL_FILE)


def _remove_unfinished(run: RunDir) -> None:
    """Remove what a crash has left of checkpoints that were being written or removed."""
    for named in (run.unfinished_dir(0), run.dropped_dir(0)):
        for left in run.checkpoints_dir.glob(named.name.replace("000000", "*")):
            if left.is_dir():
                run.folder.remove_tree(left)
            else:  # Not Shoal's, but in the way.
                run.folder.remove(left)
