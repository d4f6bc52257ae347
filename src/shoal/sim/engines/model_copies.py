"""Copies of models for runs: an MJCF or URDF file with all files that it refers to, side by side in one directory.

Only references are rewritten, and the directories that they are relative to. MuJoCo's own writer would flatten a model,
too, but rounds all numbers to six digits.
"""

import html
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.files import Folder
from shoal.reading import read_bytes

logger = logging.getLogger(__name__)

MOST_BYTES = 2**30
"""Size of a file that a model may refer to, such as a mesh."""
_ENCODING: Mapping[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}
_TAG = re.compile(r"""<!--.*?-->|<(\w+)((?:[^<>"']|"[^"]*"|'[^']*')*)>""", re.DOTALL)
_ATTRIBUTE = re.compile(r"""\s(\w+)\s*=\s*("[^"]*"|'[^']*')""")
_FOLDERS = ("meshdir", "texturedir", "assetdir")
_NAMED_BY_FILE = ("mesh", "hfield", "texture", "skin")
"""Elements whose name is that of their file, unless they have one."""


class _Copy:
    """A model, and the names of its files in one directory."""

    def __init__(self, main: Path, name: str) -> None:
        """Read a model, whose new name is `name`."""
        self._main = main
        self._folders = dict.fromkeys(_FOLDERS, "")
        self._texts: dict[Path, str] = {}
        self._strips = False
        self._read(main)
        self._names = {main: name}
        self.children: dict[Path, _Copy] = {}
        self._texts = {file: self._rewritten(file) for file in self._texts}

    @property
    def files(self) -> dict[str, tuple[Path, bytes | None]]:
        """Every file by its new path: the original, and its new content if that is another."""
        own = {name: (file, self._texts.get(file)) for file, name in self._names.items() if file not in self.children}
        found = {name: (file, None if text is None else text.encode(**_ENCODING)) for name, (file, text) in own.items()}
        for file, child in self.children.items():
            folder = Path(self._names[file]).parent
            found |= {str(folder / name): content for name, content in child.files.items()}
        return found

    def _read(self, file: Path) -> None:
        """Read a file and those that it includes, and the directories that it names."""
        self._texts[file] = read_bytes(file, MOST_BYTES).decode(**_ENCODING)
        for tag, attributes in _TAG.findall(self._texts[file]):
            values = _values_of(attributes)
            if tag == "compiler":
                given = {name: values.get(name, values.get("assetdir")) for name in _FOLDERS}
                self._folders |= {name: folder for name, folder in given.items() if folder is not None}
                self._strips = values.get("strippath", str(self._strips)).lower() == "true"
            elif tag == "include":
                included = self._find(values.get("file", ""), tag, file)
                if included and included not in self._texts:
                    self._read(included)

    def _find(self, name: str, tag: str, file: Path) -> Path | None:
        """Return the file that an element of `file` refers to by `name`, if there is one."""
        is_xml = tag in ("include", "model")
        usual = "" if is_xml else self._folders["texturedir" if tag == "texture" else "meshdir"]
        names = (Path(name).name, name) if self._strips and not is_xml else (name,)
        parents = (self._main.parent, file.parent)
        paths = (
            parent / folder / each
            for folder in (usual, *self._folders.values(), "")
            for parent in parents
            for each in names
            if each
        )
        return next((_absolute(each) for each in paths if each.is_file()), None)

    def _rewritten(self, file: Path) -> str:
        """Return the text of a file with the new names of those that it refers to."""

        def tag(match: re.Match[str]) -> str:
            element, attributes = match.groups()
            if not element:
                return match[0]

            def attribute(found: re.Match[str]) -> str:
                if element == "compiler" and found[1] in _FOLDERS:
                    return ""
                if not found[1].startswith("file"):
                    return found[0]
                original = self._find(html.unescape(found[2][1:-1]), element, file)
                if original is None:
                    return found[0]
                name = self._name_of(original, is_child=element == "model")
                usual = original.stem if element in _NAMED_BY_FILE and "name" not in _values_of(attributes) else ""
                named = f' name="{html.escape(usual)}"' if usual not in ("", Path(name).stem) else ""
                return f' {found[1]}="{html.escape(name)}"{named}'

            return f"<{element}{_ATTRIBUTE.sub(attribute, attributes)}>"

        return _TAG.sub(tag, self._texts[file])

    def _name_of(self, file: Path, *, is_child: bool) -> str:
        """Return the new name of a file, which no other has. A model that is attached has a directory of its own."""
        if file not in self._names:
            taken = {name.partition("/")[0].partition(".")[0].lower() for name in self._names.values()}
            stem = next(
                each
                for at in range(len(taken) + 1)
                if (each := f"{file.stem}_{at}".removesuffix("_0")).lower() not in taken
            )
            self._names[file] = f"{stem}/{file.name}" if is_child else f"{stem}{file.suffix}"
            if is_child:
                self.children[file] = _Copy(file, file.name)
        return self._names[file]


def _absolute(file: Path) -> Path:
    """Return an absolute path without following links, whose names may matter."""
    return Path(os.path.abspath(file))  # noqa: PTH100


def _values_of(attributes: str) -> dict[str, str]:
    """Return the attributes of an element."""
    return {name: html.unescape(value[1:-1]) for name, value in _ATTRIBUTE.findall(attributes)}


def _copy_of(file: Path, name: str) -> dict[str, tuple[Path, bytes | None]]:
    """Return the files of a copy by their new paths: the original of each, and its new content if that is another."""
    name = Path(name).with_suffix(file.suffix.lower()).name
    return _Copy(file, name).files if _is_model(file) else {name: (file, None)}


def _is_model(file: Path) -> bool:
    return file.suffix.lower() in (".xml", ".urdf")


def copy_model(file: Path, folder: Folder, directory: Path, name: str) -> None:
    """Copy an MJCF or URDF file and all files that it refers to; or another file, such as a motion.

    They go into a `directory` of `folder`, whose old content is removed; `name` is the new name of the file, but for
    its suffix. A model that MuJoCo does not compile is no failure: building it reports it.

    Raises:
        OSError: They cannot be read or written.
        UsageError: MuJoCo compiles the model, but not its copy.
    """
    copied = _copy_of(_absolute(file), name)
    folder.remove_tree(directory)
    for path, (original, content) in copied.items():
        folder.make((directory / path).parent)
        folder.write(directory / path, read_bytes(original, MOST_BYTES) if content is None else content)
    if _is_model(file):
        problem = _problem_of(directory / next(iter(copied)))
        if problem and not _problem_of(file):
            raise UsageError(
                f"The run's copy of {file} cannot be read back ({problem}): let the model refer to its files by their "
                "names alone, and put them beside it."
            )


def _problem_of(model: Path) -> str:
    """Return why MuJoCo does not compile a model, or an empty string."""
    import mujoco

    # MuJoCo itself would write to MUJOCO_LOG.TXT in the working directory.
    mujoco.set_mju_user_warning(lambda message: logger.debug("MuJoCo: %s", message))
    try:
        mujoco.MjSpec.from_file(str(model)).compile()
    except (ValueError, OSError, RuntimeError) as error:
        return " ".join(str(error).split())
    return ""


def differing_file(file: Path, copy: Path, directory: Path) -> Path | None:
    """Return the first file of a model that differs from its copy, which `copy_model` made as `copy` in `directory`."""
    for name, (original, content) in _copy_of(_absolute(file), copy.name).items():
        with suppress(OSError):
            if read_bytes(directory / name, MOST_BYTES) == (content or read_bytes(original, MOST_BYTES)):
                continue
        return file if original == _absolute(file) else original
    return None
