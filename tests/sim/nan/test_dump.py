"""The file of diverged environments: whole or absent, and refused in a sentence where it is not what it should be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.bombs import ARRAYS
from support.diverged_envs import RUNAWAY, bouncing, dump_of, step_until_lost
from support.limits import files_of_at_most

from shoal.cli import main
from shoal.errors import UsageError
from shoal.sim.nan.dump import read_dump, write_dump
from shoal.sim.render.trajectory import load_scene, save_scene

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shoal.sim.nan.dump import Dump


@pytest.fixture(scope="module")
def dump() -> Dump:
    """What a task leaves."""
    task = bouncing(engine="mujoco", runaway=RUNAWAY)
    step_until_lost(task)
    return dump_of(task)


@pytest.fixture
def file(dump: Dump, tmp_path: Path) -> Path:
    """It, as a file."""
    path = tmp_path / "rank_00000.diverged.npz"
    write_dump(dump, path)
    return path


def test_it_comes_back_as_it_was_written(dump: Dump, file: Path) -> None:
    read = read_dump(file)
    assert read.info == dump.info
    assert read.model.tobytes() == dump.model.tobytes() == read.scene.tobytes()
    (here,), (there,) = read.envs, dump.envs
    assert (here.env, here.step) == (there.env, there.step)
    assert here.states.tobytes() == there.states.tobytes()
    assert here.begins.tolist() == there.begins.tolist()
    assert {name: values.tobytes() for name, values in here.parameters.items()} == {
        name: values.tobytes() for name, values in there.parameters.items()
    }


def test_another_scene_is_kept_beside_the_model(dump: Dump, tmp_path: Path) -> None:
    scene = np.arange(5, dtype=np.uint8)
    write_dump(replace(dump, scene=scene), tmp_path / "x.diverged.npz")
    assert read_dump(tmp_path / "x.diverged.npz").scene.tobytes() == scene.tobytes()


def test_it_is_alone_in_its_directory(file: Path) -> None:
    assert [path.name for path in file.parent.iterdir()] == ["rank_00000.diverged.npz"]


def test_a_full_disk_leaves_nothing(dump: Dump, tmp_path: Path) -> None:
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        write_dump(dump, tmp_path / "x.diverged.npz")
    assert list(tmp_path.iterdir()) == []


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def spoil(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


def one_array(file: Path) -> None:
    with file.open("wb") as out:
        np.save(out, np.zeros(3))


def other_arrays(file: Path) -> None:
    with file.open("wb") as out:
        np.savez(out, states=np.zeros(3))


def code(file: Path) -> None:
    pickled: Any = np.array([print], dtype=object)
    with file.open("wb") as out:
        np.savez(out, about=pickled)


@pytest.mark.parametrize("change", [truncate, spoil, empty, one_array, other_arrays, code])
def test_what_is_no_such_file_is_refused(file: Path, change: Callable[[Path], None]) -> None:
    change(file)
    with pytest.raises(UsageError, match=r"diverged\.npz cannot be read \(.+\): pass <run>.*, or copy it once more\."):
        read_dump(file)


def test_a_model_of_another_mujoco_is_refused_with_the_one_that_is_needed(dump: Dump, tmp_path: Path) -> None:
    info = replace(dump.info, versions={**dump.info.versions, "mujoco": "3.1.4"})
    write_dump(replace(dump, info=info), tmp_path / "old.diverged.npz")
    with pytest.raises(UsageError, match=r"a model of MuJoCo 3\.1\.4, which MuJoCo .* cannot read: .*mujoco==3\.1\.4`"):
        read_dump(tmp_path / "old.diverged.npz")


def test_a_file_with_the_key_of_earlier_ones_is_read(dump: Dump, tmp_path: Path) -> None:
    write_dump(dump, tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as arrays:
        kept = dict(arrays)
    about = json.loads(str(kept["about"]))
    about["lost"] = about.pop("diverged")
    earlier: dict[str, Any] = kept | {"about": np.array(json.dumps(about))}
    np.savez_compressed(tmp_path / "old.npz", **earlier)
    assert read_dump(tmp_path / "old.npz").info == dump.info


def test_an_environment_that_is_not_there_is_refused(dump: Dump) -> None:
    assert dump.find(None) is dump.find(1) is dump.envs[0]
    with pytest.raises(UsageError, match=r"--env 0 was asked for, but the file has the environments 1: pass one"):
        dump.find(0)


# A file that was made to do harm


def replayed_by_command(dump: Dump, directory: Path) -> None:
    """Run `shoal replay` of a file in this process."""
    write_dump(dump, directory / "rank_00000.diverged.npz")
    main.shoal(["replay", str(directory / "rank_00000.diverged.npz")])


def test_a_model_that_breaks_mujoco_ends_in_a_sentence(dump: Dump, tmp_path: Path) -> None:
    model = load_scene(dump.model)
    model.body_treeid[...] = 1 << 27  # MuJoCo does not check it, and looks far outside of its memory.
    with pytest.raises(UsageError, match=r"diverged\.npz could not be replayed \(killed by SIG(SEGV|BUS)"):
        replayed_by_command(replace(dump, model=save_scene(model)), tmp_path)


def test_a_model_that_mujoco_refuses_is_refused(dump: Dump, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"could not be replayed \(.*: ValueError: .*mj_loadModel"):
        replayed_by_command(replace(dump, model=dump.model[: len(dump.model) // 2]), tmp_path)


def test_a_replay_that_does_not_end_is_ended(dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.commands.replay._MOST_S", 0.1)
    with pytest.raises(UsageError, match=r"could not be replayed \(it did not end within 0\.1 s\)"):
        replayed_by_command(dump, tmp_path)


def test_what_would_command_a_terminal_is_printed_escaped(
    dump: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = replace(dump.info, task="\x1b]0;owned\x07\u202eRobot")
    replayed_by_command(replace(dump, info=info), tmp_path)
    printed = capsys.readouterr().out
    assert r"\x1b]0;owned\x07\u202eRobot, simulated by" in printed
    assert "\x1b" not in printed


def rewrite(file: Path, **changes: Any) -> None:
    """Change entries of the JSON in a file; None removes one."""
    with np.load(file) as held:
        arrays: dict[str, Any] = dict(held)
    about = json.loads(str(arrays["about"])) | changes
    about = {name: value for name, value in about.items() if value is not None}
    arrays["about"] = np.array(json.dumps(about))
    np.savez(file.with_suffix(""), **arrays)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"envs": []}, "it has 0 environments"),
        ({"envs": None}, "envs is missing, but must be list"),
        ({"envs": ["one"]}, "string indices must be integers"),
        ({"envs": [{"env": "1", "step": 1}]}, "env is '1', but must be int"),
        ({"envs": [{"env": 1, "step": 10**30}]}, "more than 64 bits"),
        ({"versions": {}}, "has no 'mujoco'"),
        ({"versions": None}, "missing"),
        ({"versions": "word"}, "versions is 'word', but must be a mapping"),
        ({"task": None}, "task"),
        ({"decimation": 10**12}, "1000000000000 physics steps in a step"),
        ({"decimation": "many"}, "decimation is 'many', but must be a whole number"),
        ({"seed": json.loads("[" * 150 + "]" * 150)}, "nested more than 100 deep"),
    ],
)
def test_a_file_whose_description_does_not_fit_is_refused(file: Path, changes: dict[str, Any], said: str) -> None:
    rewrite(file, **changes)
    with pytest.raises(UsageError, match=said) as refusal:
        read_dump(file)
    assert str(file) in str(refusal.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_that_are_not_what_they_say_are_refused(kind: str, file: Path) -> None:
    ARRAYS[kind](file)
    with pytest.raises(UsageError, match=r"diverged\.npz cannot be read \(.{8,}\): pass <run>"):
        read_dump(file)
