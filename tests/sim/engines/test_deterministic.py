"""MuJoCo Warp with sorted contacts and constraint rows: the same bits in any order, and the physics of MuJoCo."""

from __future__ import annotations

import inspect
from typing import Any

import mujoco
import mujoco_warp as mjw
import numpy as np
import pytest
import warp as wp
from mujoco_warp._src import collision_driver, constraint
from support.emulated_gpu.contacts import permuted_contacts

from shoal.errors import UsageError
from shoal.sim.engines.deterministic import make_deterministic

STUBS = (collision_driver._sort_contacts, constraint._sort_constraints)
"""As MuJoCo Warp has them, before any test replaces them."""

PILE = """
<mujoco>
  <option timestep="0.004" cone="{cone}" jacobian="{jacobian}" tolerance="1e-10"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .099"><freejoint/><geom type="box" size=".1 .1 .1" condim="4"/></body>
    <body pos=".02 .01 .298"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
    <body pos=".3 0 .049"><freejoint/><geom type="sphere" size=".05" condim="1" margin=".01"/></body>
    <body pos="-.4 0 .3" name="arm">
      <joint name="hip" axis="0 1 0" frictionloss=".2" limited="true" range="-3 3"/>
      <geom type="capsule" size=".03" fromto="0 0 0 .2 0 -.1" contype="0" conaffinity="0"/>
      <body pos=".2 0 -.1" name="hand">
        <joint name="knee" axis="0 1 0" frictionloss=".1" limited="true" range="10 90"/>
        <joint name="slide" type="slide" axis="1 0 0" frictionloss=".3"/>
        <geom type="capsule" size=".03" fromto="0 0 0 .2 0 -.17"/>
      </body>
    </body>
    <body pos="-.8 0 .5" name="left"><joint name="left" axis="0 1 0"/><geom size=".04" pos=".1 0 0"/></body>
    <body pos="-1.2 0 .5" name="right"><joint name="right" axis="0 1 0"/><geom size=".04" pos=".1 0 0"/></body>
    <body pos="-1.6 0 .5" name="welded"><freejoint/><geom size=".04"/></body>
  </worldbody>
  <tendon>
    <fixed name="both" frictionloss=".1"><joint joint="left" coef="1"/><joint joint="right" coef="1"/></fixed>
  </tendon>
  <equality>
    <weld body1="welded"/>
    <joint joint1="left" joint2="right"/>
    <connect body1="hand" anchor="0 0 0"/>
  </equality>
</mujoco>
"""
"""Every kind of constraint, with several rows of most."""

ROWS = ("type", "id", "pos", "margin", "D", "vel", "aref", "frictionloss")
"""Fields of `Data.efc` with a value for each row."""

LAYOUTS = pytest.mark.parametrize(
    ("cone", "jacobian"),
    [
        ("elliptic", "sparse"),
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in [("elliptic", "dense"), ("pyramidal", "dense"), ("pyramidal", "sparse")]
        ),
    ],
)


@LAYOUTS
def test_the_order_of_contacts_and_rows_changes_no_bit(cone: str, jacobian: str) -> None:
    one, other = (simulate(cone, jacobian, order) for order in range(2))
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


@LAYOUTS
def test_without_sorts_it_does(cone: str, jacobian: str) -> None:
    one, other = (simulate(cone, jacobian, order, deterministic=False) for order in range(2))
    assert not np.array_equal(one["qpos"], other["qpos"])


@LAYOUTS
@pytest.mark.parametrize("name", ["qacc", "cfrc_ext"])
def test_sorted_rows_give_the_forces_of_mujoco(cone: str, jacobian: str, name: str) -> None:
    model = mujoco.MjModel.from_xml_string(PILE.format(cone=cone, jacobian=jacobian))
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 20)
    mujoco.mj_forward(model, data)
    mujoco.mj_rnePostConstraint(model, data)
    errors: dict[bool, float] = {}
    for deterministic in (False, True):
        with permuted_contacts():
            warp_model, warp_data = on_warp(model, deterministic=deterministic, data=data)
            mjw.forward(warp_model, warp_data)
            mjw.rne_postconstraint(warp_model, warp_data)
        errors[deterministic] = float(np.abs(getattr(warp_data, name).numpy() - getattr(data, name)).max())
    assert errors[True] <= 2.0 * errors[False] + 1e-3, errors
    assert errors[True] < 0.01 * np.abs(getattr(data, name)).max(), errors


def test_contacts_are_sorted_by_world_geoms_and_number() -> None:
    model = mujoco.MjModel.from_xml_string(PILE.format(cone="elliptic", jacobian="sparse"))
    with permuted_contacts():
        warp_model, data = on_warp(model, deterministic=True)
        mjw.step(warp_model, data)
    number = int(data.nacon.numpy()[0])
    contact = data.contact
    keys = np.c_[contact.worldid.numpy(), contact.geom.numpy(), contact.geomcollisionid.numpy()][:number].tolist()
    assert keys == sorted(keys)
    assert len({tuple(key) for key in keys}) == number


@pytest.mark.parametrize("hook", STUBS)
def test_mujoco_warp_itself_sorts_nothing_yet(hook: Any) -> None:
    """Where this fails, MuJoCo Warp has a sort of its own: remove ours."""
    body = inspect.getsource(hook).splitlines()[2:]
    assert [line.strip() for line in body if not line.strip().startswith("#")] == ["pass"]


def test_a_model_whose_contacts_cannot_be_sorted_is_refused() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><flexcomp name="cloth" type="grid" count="2 2 1" spacing=".1 .1 .1" radius=".01" dim="2">'
        '<edge equality="true"/></flexcomp></worldbody></mujoco>'
    )
    with pytest.raises(UsageError, match=r"the model has flexes \(1\)"):
        make_deterministic(model, mjw.put_model(model), mjw.make_data(model))


def test_a_release_without_the_sorting_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mujoco.MjModel.from_xml_string("<mujoco/>")
    monkeypatch.delattr(constraint, "_sort_constraints")
    with pytest.raises(UsageError, match="has no function '_sort_constraints'"):
        make_deterministic(model, mjw.put_model(model), mjw.make_data(model))


def simulate(cone: str, jacobian: str, order: int, *, deterministic: bool = True) -> dict[str, np.ndarray]:
    """Return the state after some steps, with contacts and rows numbered in an order of its own."""
    model = mujoco.MjModel.from_xml_string(PILE.format(cone=cone, jacobian=jacobian))
    with permuted_contacts(order) as counts:
        warp_model, data = on_warp(model, deterministic=deterministic)
        warp_model.opt.run_rne_postconstraint = True
        for _ in range(25):
            mjw.step(warp_model, data)
        mjw.rne_postconstraint(warp_model, data)
    assert max(counts) > 10
    names = ("qpos", "qvel", "qacc", "qfrc_constraint", "cfrc_ext", "ne", "nf", "nl", "nefc")
    assert all(getattr(data, name).numpy().min() > 0 for name in ("ne", "nf", "nl"))
    used = np.arange(data.njmax) < data.nefc.numpy()[:, None]
    rows = {name: getattr(data.efc, name).numpy()[:, : data.njmax][used] for name in ROWS}
    return rows | {name: getattr(data, name).numpy().copy() for name in names}


def on_warp(
    model: mujoco.MjModel, *, deterministic: bool, data: mujoco.MjData | None = None
) -> tuple[mjw.Model, mjw.Data]:
    """Return two worlds of a model on the CPU."""
    with wp.ScopedDevice("cpu"):
        warp_model = mjw.put_model(model)
        warp_data = mjw.put_data(model, data or mujoco.MjData(model), nworld=2, nconmax=40, njmax=200)
    assert warp_model.is_sparse == (model.opt.jacobian == mujoco.mjtJacobian.mjJAC_SPARSE)
    if deterministic:
        make_deterministic(model, warp_model, warp_data)
    return warp_model, warp_data
