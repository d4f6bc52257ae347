"""What the engine on the CPU leaves out of MuJoCo's step, and what it adds."""

from __future__ import annotations

import ctypes

import mujoco
import numpy as np
import pytest
import warp as wp

from shoal.errors import ShoalError
from shoal.sim.engines.mujoco_engine import MujocoEngine
from shoal.sim.engines.post_constraint import LIBRARY

BOX = '<body pos="{} 0 0.2"><freejoint/><geom type="box" size="0.1 0.1 0.1" contype="{}"/></body>'

RK4 = '<option integrator="RK4"/>'


def engine_with(*fields: str, option: str = RK4, boxes: int = 1, touching: bool = True) -> MujocoEngine:
    """Return an engine with boxes over a floor."""
    bodies = "".join(BOX.format(box, int(touching)) for box in range(boxes))
    floor = f'<geom type="plane" size="9 9 1" contype="{int(touching)}"/>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{option}<worldbody>{floor}{bodies}</worldbody></mujoco>")
    device = wp.get_device("cpu")
    engine = MujocoEngine(model, num_envs=3, decimation=2, device=device, threads=2)
    for name in fields:
        engine.data(name)
    engine.start()
    return engine


def test_fields_after_constraints_are_those_of_mujoco() -> None:
    names = ("cfrc_ext", "cfrc_int", "cacc")
    engine = engine_with("qpos", *names)
    engine._batch.bind("qvel")[:] = np.random.default_rng(0).uniform(-1, 1, (3, 6))
    data = mujoco.MjData(engine.model)
    for _ in range(100):
        engine.step()
        for env in range(3):
            engine._batch.get_data(env, data)
            mujoco.mj_rnePostConstraint(engine.model, data)
            for name in names:
                expected = getattr(data, name).astype(np.float32)
                np.testing.assert_array_equal(engine.fields[name].numpy()[env], expected, err_msg=name)
    assert np.abs(data.cfrc_ext).max() > 1  # The boxes have touched the floor.


def test_fields_after_constraints_of_a_model_without_actuation_are_refused() -> None:
    with pytest.raises(ShoalError, match="cacc, cfrc_ext, cfrc_int cannot be computed, because the model disables"):
        engine_with("cfrc_ext", option='<option><flag actuation="disable"/></option>')


@pytest.mark.parametrize(
    ("boxes", "touching", "names"), [(1, True, {"ISLAND"}), (2, True, set()), (1, False, {"ISLAND", "CONTACT"})]
)
def test_only_searches_that_find_nothing_are_disabled(boxes: int, touching: bool, names: set[str]) -> None:
    flags = engine_with(boxes=boxes, touching=touching).model.opt.disableflags
    known = {"ISLAND": mujoco.mjtDisableBit.mjDSBL_ISLAND, "CONTACT": mujoco.mjtDisableBit.mjDSBL_CONTACT}
    assert {name for name, flag in known.items() if flags & flag} == names


def test_mujoco_reads_no_clock() -> None:
    engine_with()
    assert ctypes.c_void_p.in_dll(LIBRARY, "mjcb_time").value is None
