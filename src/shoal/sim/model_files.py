"""An MJCF file and all files that it refers to, kept together."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import mujoco


def copy_model(file: Path, directory: Path, name: str) -> None:
    """Copy an MJCF file as `name`, and what it includes and refers to, each to where it is as seen from the others.

    A file that is missing, or no MJCF, is left to whoever builds the model to tell.

    Args:
        file: The MJCF file.
        directory: Where the copies go, in place of all that is there.
        name: What the file is called there, at some depth.

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
