"""MJCF files of robots: find one by path or by name, and copy it with all files that it refers to."""

import os
import shutil
from pathlib import Path

import mujoco

from shoal.errors import UsageError


def find_robot(robot: str) -> Path:
    """Return the MJCF file of a robot by its path, or by its name in the package mujoco-menagerie.

    Raises:
        UsageError: There is none.
    """
    path = Path(robot).expanduser()
    if path.is_file():
        return path
    if path.suffix.lower() == ".xml":
        message = f"--env.robot {robot} was asked for, but there is no such file: pass the path of an MJCF file."
        raise UsageError(message)
    try:
        import mujoco_menagerie  # pyright: ignore[reportMissingImports]  An extra.
    except ImportError as error:
        raise UsageError(
            f"--env.robot {robot} was asked for, which is no file, and so a name of the package mujoco-menagerie, "
            "which is not installed: install shoal[menagerie], or pass the path of an MJCF file."
        ) from error
    try:
        found = mujoco_menagerie.get(robot)
        return found.xml(found.default_model)  # Its default is a scene, with a floor of its own.
    except mujoco_menagerie.MenagerieError as error:
        raise UsageError(
            f"--env.robot {robot} cannot be had from the package mujoco-menagerie ({error}): pass one of its names, or "
            "the path of an MJCF file."
        ) from error


def copy_model(file: Path, directory: Path, name: str) -> None:
    """Copy an MJCF file and all files that it refers to, with their relative paths.

    A file that is missing, or no MJCF, is not copied: building the model reports it. The old content of `directory` is
    removed; `name` is the new name of the MJCF file.

    Raises:
        OSError: They cannot be written.
    """
    try:
        files = [Path(each).absolute() for each in mujoco.mju_getXMLDependencies(str(file))]
    except mujoco.FatalError:
        return
    shutil.rmtree(directory, ignore_errors=True)
    root = os.path.commonpath([each.parent for each in files])
    for each in files:
        target = directory / each.relative_to(root)
        if each == file.absolute():
            target = target.with_name(name)
        if each.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, target)
