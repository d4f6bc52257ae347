"""`shoal export`: write a checkpoint's policy as ONNX and as a program of `torch.export`."""

from pathlib import Path

from shoal.config import ExportConfig
from shoal.errors import UsageError
from shoal.plan.checkpoints import run_of
from shoal.plan.launch import refuse_unwritable
from shoal.plan.resume import find_model
from shoal.plan.rundir import refuse_links
from shoal.tasks import registry
from shoal.text import pairs


def export(config: ExportConfig) -> list[str]:
    """Write a trained policy as ONNX, and as a program of `torch.export`.

    Returns the metadata in each file, and the files.

    Raises:
        UsageError: There is no such policy, it cannot be exported, or its files cannot be written there.
        ShoalError: The files could not be written.
    """
    spec = registry.resolve(config.task)
    model = find_model(config.log_root, spec, config.checkpoint).absolute()
    onnx_file = _onnx_file(config, model)

    from shoal.learn.export import read_policy, write_policy

    run = run_of(model)
    checkpoint = str(model.parent.relative_to(run.path.parent)) if run else model.name
    policy = read_policy(config, spec, model, checkpoint)
    folder = run.folder if run and config.out is None else None
    files = write_policy(policy, onnx_file, folder)
    return [*pairs(policy.metadata.items()), f"Exported the policy to {' and '.join(map(str, files))}."]


def _onnx_file(config: ExportConfig, model: Path) -> Path:
    """Return the path of the ONNX file; raise if it cannot be written there."""
    run = run_of(model)
    default = run.policy_onnx if run else model.with_suffix(".onnx")
    file = default if config.out is None else Path(config.out)
    if run and config.out is None:
        refuse_links(run)
    if file.is_dir():
        raise UsageError(f"--out asks for {file}, which is a directory: pass a file, such as {file / 'policy.onnx'}.")
    refuse_unwritable("The default of --out" if config.out is None else "--out", file.parent)
    return file
