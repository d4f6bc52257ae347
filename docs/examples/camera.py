"""A quadruped with a depth camera on its base: see docs/guide/cameras.md."""

from typing import Any

from shoal import mdp, registered

FlatVelocity: Any = registered()["Quadruped-Velocity-Flat"].load_builder()
# It looks ahead (+x of the base) and 30 degrees down.
AHEAD = mdp.Camera(parent_body="{base}", pos=(0.3, 0.0, 0.05), quat=(0.61, 0.35, -0.35, -0.61), width=24, height=16)


class Seeing(FlatVelocity):
    """Walk on flat ground, and see it."""

    config = FlatVelocity.config.change(
        sensors={"eye": AHEAD},
        observations={"image": {"depth": mdp.Obs("camera_depth", sensor_name="eye", cutoff_distance=2.0, noise=0.01)}},
    )
