"""Writing below a directory that may hold anything: links, pipes, files with a second name, another user's files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.errors import UsageError
from shoal.files import Folder, UnsafePathError, folder_of, make_first_free, write_all

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A directory, beside which is one of its user that nothing may touch."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "kept" / "inner").mkdir(parents=True)
    for name in ("file", "inner/file"):
        (tmp_path / "kept" / name).write_text("kept", encoding="utf-8")
    return Folder(tmp_path / "folder")


def kept(folder: Folder) -> dict[str, str]:
    beside = folder.path.parent / "kept"
    return {
        str(each.relative_to(beside)): each.read_text(encoding="utf-8") for each in beside.rglob("*") if each.is_file()
    }


WRITERS: dict[str, Callable[[Folder, Path], object]] = {
    "open to append": lambda folder, path: folder.open(path, "a").close(),
    "open to append and read": lambda folder, path: folder.open(path, "a+").close(),
    "open empty": lambda folder, path: folder.open(path, "w+").close(),
    "open to change": lambda folder, path: folder.open(path, "r+").close(),
    "open to read": lambda folder, path: folder.open(path, "r").close(),
    "append": lambda folder, path: folder.append(path, "line"),
}
IN_PLACE: dict[str, Callable[[Folder, Path], object]] = {
    "write": lambda folder, path: folder.write(path, "data"),
    "remove": lambda folder, path: folder.remove(path),
    "remove a tree": lambda folder, path: folder.remove_tree(path),
    "open again": lambda folder, path: folder.open(path, "x").close(),
    "rename to": lambda folder, path: (
        folder.write(folder.path / "new", "data"),
        folder.rename(folder.path / "new", path),
    ),
    "rename from": lambda folder, path: folder.rename(path, folder.path / "new"),
}
INNER: dict[str, Callable[[Folder, Path], object]] = {
    "make": lambda folder, path: folder.make(path),
    "flush": lambda folder, path: folder.flush(path),
    "lock": lambda folder, path: folder.locked(path).__enter__(),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_not_opened_through_a_link(folder: Folder, name: str) -> None:
    (folder.path / "file").symlink_to("../kept/file")
    with pytest.raises(UnsafePathError, match="folder/file is a link, and nothing is written there: remove it"):
        WRITERS[name](folder, folder.path / "file")
    assert set(kept(folder).values()) == {"kept"}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_with_a_second_name_is_not_opened(folder: Folder, name: str) -> None:
    (folder.path / "file").hardlink_to(folder.path.parent / "kept" / "file")
    with pytest.raises(UnsafePathError, match="is a file with a second name"):
        WRITERS[name](folder, folder.path / "file")
    assert set(kept(folder).values()) == {"kept"}


@pytest.mark.parametrize("name", WRITERS)
def test_a_pipe_is_neither_waited_for_nor_written_to(folder: Folder, name: str) -> None:
    os.mkfifo(folder.path / "file")
    with pytest.raises(UnsafePathError, match="is no file"):
        WRITERS[name](folder, folder.path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("name", WRITERS)
def test_a_third_user_s_file_is_not_opened(folder: Folder, name: str) -> None:
    (folder.path / "file").touch()
    os.chown(folder.path / "file", 12345, 12345)
    with pytest.raises(UnsafePathError, match="is another user's"):
        WRITERS[name](folder, folder.path / "file")
    os.chown(folder.path, 12345, 12345)  # A colleague's directory, with the colleague's file in it.
    WRITERS[name](folder, folder.path / "file")


@pytest.mark.parametrize("name", [*WRITERS, *IN_PLACE, *INNER])
def test_no_directory_on_the_way_may_be_a_link(folder: Folder, name: str) -> None:
    (folder.path / "linked").symlink_to("../kept")
    before = kept(folder)
    with pytest.raises(UnsafePathError, match="folder/linked is no directory"):
        (WRITERS | IN_PLACE | INNER)[name](folder, folder.path / "linked" / "inner" / "file")
    assert kept(folder) == before


@pytest.mark.parametrize("name", INNER)
def test_no_directory_itself_may_be_a_link(folder: Folder, name: str) -> None:
    (folder.path / "linked").symlink_to("../kept")
    with pytest.raises(UnsafePathError, match="folder/linked is no directory"):
        INNER[name](folder, folder.path / "linked")


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("target", ["../kept/file", "../kept"])
def test_a_link_itself_is_replaced_renamed_or_removed_but_not_followed(folder: Folder, name: str, target: str) -> None:
    (folder.path / "file").symlink_to(target)
    before = kept(folder)
    try:
        IN_PLACE[name](folder, folder.path / "file")
    except FileExistsError:
        assert name == "open again"
    else:
        assert not (folder.path / "file").is_symlink()
    assert kept(folder) == before


@pytest.mark.parametrize("name", [*WRITERS, *IN_PLACE, *INNER])
def test_nothing_leads_out_of_the_directory(folder: Folder, name: str) -> None:
    before = kept(folder)
    with pytest.raises(UnsafePathError, match="leads out of"):
        (WRITERS | IN_PLACE | INNER)[name](folder, folder.path / "inner" / ".." / ".." / "kept" / "file")
    assert kept(folder) == before


def test_a_tree_is_removed_with_links_in_it_and_not_with_what_they_lead_to(folder: Folder) -> None:
    (folder.path / "inner" / "deeper").mkdir()
    (folder.path / "inner" / "deeper" / "linked").symlink_to(folder.path.parent / "kept")
    folder.remove_tree(folder.path / "inner")
    assert not (folder.path / "inner").exists()
    assert len(kept(folder)) == 2
    folder.remove_tree(folder.path / "inner")  # It is gone already.


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_what_is_in_the_place_of_a_tree_is_not_taken_for_one(folder: Folder, make: Callable[[Path], None]) -> None:
    make(folder.path / "tree")
    with pytest.raises(NotADirectoryError):
        folder.remove_tree(folder.path / "tree")
    assert (folder.path / "tree").exists()


def test_the_directory_itself_may_be_reached_by_a_link(folder: Folder) -> None:
    linked = folder.path.parent / "linked"
    linked.symlink_to(folder.path)
    Folder(linked).write(linked / "inner" / "file", "data")
    assert (folder.path / "inner" / "file").read_text(encoding="utf-8") == "data"


def test_files_are_written_whole_appended_to_and_found_again(folder: Folder) -> None:
    file = folder.path / "a" / "b" / "file"
    folder.make(file.parent)
    folder.make(file.parent)  # It is there.
    folder.write(file, b"first")
    folder.write(file, memoryview(b"second"))
    folder.append(file.with_name("lines"), "one")
    folder.append(file.with_name("lines"), "two")
    folder.rename(file, file.with_name("renamed"))
    assert {each.name: each.read_bytes() for each in file.parent.iterdir()} == {
        "renamed": b"second",
        "lines": b"one\ntwo\n",
    }
    with folder.open(file.with_name("renamed"), "w+") as opened:
        write_all(opened, "third")
        opened.seek(0)
        assert opened.read() == b"third"


def test_a_file_that_cannot_be_written_stays_as_it_was(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder.path / "file"
    folder.write(file, "old")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(OSError, match="No space left"):
        folder.write(file, "new")
    assert file.read_text(encoding="utf-8") == "old"
    assert not list(folder.path.glob("file.*"))


def test_an_unsafe_path_is_a_usage_error_and_tells_callers_of_os_what_is_wrong(folder: Folder) -> None:
    (folder.path / "file").symlink_to("elsewhere")
    with pytest.raises(OSError) as caught:  # noqa: PT011  The class is the point.
        folder.append(folder.path / "file", "line")
    assert isinstance(caught.value, UsageError)
    assert (caught.value.errno, caught.value.strerror) == (errno.ELOOP, "file is a link")


def test_the_directory_of_a_file_that_a_user_names_is_made(tmp_path: Path) -> None:
    folder_of(tmp_path / "a" / "b" / "file").write(tmp_path / "a" / "b" / "file", "data")
    assert (tmp_path / "a" / "b" / "file").read_text(encoding="utf-8") == "data"


def test_the_first_free_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a" / "1").mkdir(parents=True)
    assert make_first_free(tmp_path / "a", ["1", "2"]) == tmp_path / "a" / "2"
