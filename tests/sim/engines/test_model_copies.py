"""The run's copy of a model: MuJoCo compiles it to the same model, with the originals out of reach."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.files import Folder
from shoal.sim.engines.model_copies import copy_model, differing_file

TETRAHEDRON = "v 0 0 0\nv {0} 0 0\nv 0 .1 0\nv 0 0 .1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
BODY = '<body name="b{0}"><geom type="mesh" mesh="{1}" mass="0.123456789"/></body>'


def written(files: dict[str, str], root: Path) -> Path:
    """Write files by their paths, in which and in whose texts {root} is the directory; return the first."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{root}", str(root)), encoding="utf-8")
    return root / next(iter(files))


def horn(size: float) -> str:
    return TETRAHEDRON.format(size)


def mjcf(inner: str) -> str:
    return f"<mujoco>{inner}</mujoco>"


MODELS: dict[str, dict[str, str]] = {
    "includes a file that is named model.xml": {
        "dog/dog.xml": mjcf('<include file="model.xml"/><option timestep="0.00333333333333"/>'),
        "dog/model.xml": mjcf(f"<worldbody>{BODY.format(0, 'horn')}</worldbody><include file='parts/asset.xml'/>"),
        "dog/parts/asset.xml": mjcf('<compiler meshdir="../meshes"/><asset><mesh file="horn.obj"/></asset>'),
        "meshes/horn.obj": horn(0.1),
    },
    "names directories and files absolutely": {
        "dog.xml": mjcf(
            '<compiler meshdir="{root}/meshes"/><include file="{root}/other/leg.xml"/>'
            f'<worldbody>{BODY.format(0, "horn")}</worldbody><asset><mesh file="horn.obj"/></asset>'
        ),
        "other/leg.xml": mjcf(
            f"<worldbody>{BODY.format(1, 'foot')}</worldbody>"
            '<asset><mesh name="foot" file="{root}/other/horn.obj"/></asset>'
        ),
        "meshes/horn.obj": horn(0.1),
        "other/horn.obj": horn(0.3),
    },
    "has two files of one name and names meshes by them": {
        "dog.XML": mjcf(
            f"<worldbody>{BODY.format(0, 'model')}{BODY.format(1, 'two')}</worldbody>"
            '<asset><mesh file="a/model.obj"/><mesh name="two" file="b/model.obj"/></asset>'
        ),
        "a/model.obj": horn(0.1),
        "b/model.obj": horn(0.2),
    },
    "strips paths": {
        "dog.xml": mjcf(
            f'<compiler strippath="true" assetdir="a"/><worldbody>{BODY.format(0, "horn")}</worldbody>'
            '<asset><mesh file="elsewhere/horn.obj"/></asset>'
        ),
        "a/horn.obj": horn(0.1),
    },
    "attaches a model with files of its own": {
        "dog.xml": mjcf(
            '<compiler meshdir="none"/><asset><model name="kid" file="kid/dog.xml"/></asset>'
            '<worldbody><frame><attach model="kid" body="b0" prefix="a_"/></frame></worldbody>'
        ),
        "kid/dog.xml": mjcf(
            f'<compiler meshdir="m"/><worldbody>{BODY.format(0, "horn")}</worldbody>'
            '<asset><mesh file="horn.obj"/></asset>'
        ),
        "kid/m/horn.obj": horn(0.1),
    },
    "is a URDF": {
        "dog.urdf": '<robot name="dog"><link name="base"><inertial><mass value="1.23456789"/>'
        '<inertia ixx="1" ixy="0" ixz="0" iyy="1" iyz="0" izz="1"/></inertial><collision><geometry>'
        '<mesh filename="meshes/horn.obj"/></geometry></collision></link></robot>',
        "meshes/horn.obj": horn(0.1),
    },
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_copy_compiles_to_the_same_model_without_the_originals(kind: str, tmp_path: Path) -> None:
    main = written(MODELS[kind], tmp_path / "own")
    wanted = mujoco.MjModel.from_xml_path(str(main))
    run = tmp_path / "run"
    run.mkdir()
    copy_model(main, Folder(run), run / "robot", "model.xml")
    copied = next(each for each in (run / "robot").glob("model.*") if each.suffix in (".xml", ".urdf"))
    assert differing_file(main, copied, run / "robot") is None
    (tmp_path / "own").rename(tmp_path / "gone")
    run.rename(tmp_path / "moved")
    model = mujoco.MjSpec.from_file(str(tmp_path / "moved" / copied.relative_to(run))).compile()
    for name in ("opt.timestep", "body_mass", "body_inertia", "geom_size", "geom_pos", "mesh_vert", "names"):
        holder, _, field = name.rpartition(".")
        one, other = (getattr(each.opt if holder else each, field) for each in (model, wanted))
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_a_changed_file_of_a_model_is_named(tmp_path: Path) -> None:
    main = written(MODELS["includes a file that is named model.xml"], tmp_path / "own")
    copy_model(main, Folder(tmp_path), tmp_path / "robot", "model.xml")
    horns = tmp_path / "own" / "meshes" / "horn.obj"
    horns.write_text(horn(0.2), encoding="utf-8")
    assert differing_file(main, tmp_path / "robot" / "model.xml", tmp_path / "robot") == horns


def test_a_model_whose_copy_does_not_compile_is_refused_at_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = written(MODELS["names directories and files absolutely"], tmp_path / "own")
    monkeypatch.setattr(
        "shoal.sim.engines.model_copies._Copy._find", lambda *_: None
    )  # As if a rule of MuJoCo's were unknown.
    with pytest.raises(UsageError, match=r"^The run's copy of .*dog.xml cannot be read back \(.*horn.obj"):
        copy_model(main, Folder(tmp_path), tmp_path / "robot", "model.xml")


def test_numbers_and_comments_of_a_copy_are_the_originals(tmp_path: Path) -> None:
    text = mjcf('<!-- "<geom" -- it\'s > -->\n<worldbody><geom name="a&gt;b" size="0.123456789012345"/></worldbody>')
    main = written({"dog.xml": text}, tmp_path)
    copy_model(main, Folder(tmp_path), tmp_path / "robot", "model.xml")
    assert (tmp_path / "robot" / "model.xml").read_text(encoding="utf-8") == text
