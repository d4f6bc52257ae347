"""`mjlab:TASK` is refused where mjlab cannot run, with the command that mends it."""

from __future__ import annotations

import re

import pytest

from shoal.envs import mjlab_spec
from shoal.envs.mjlab_spec import OVERRIDES, problem_of_mjlab
from shoal.errors import UsageError
from shoal.tasks.registry import resolve

WHOLE = {"mjlab": "1.6.0", "rsl-rl-lib": "5.5.1", "mujoco": "4.0.0", "mujoco-warp": "4.0.0", "prettytable": "3.0"}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"mjlab": None}, "mjlab is not installed: run `uv pip install --override "),
        ({"mjlab": "0.1.0"}, "mjlab's tasks were not tested with mjlab 0.1.0 (not 1.6.0): run"),
        ({"rsl-rl-lib": "5.4.2", "mujoco": "3.11.0"}, "with rsl-rl-lib 5.4.2 (not 5.5.1), mujoco 3.11.0 (not 4.0.0)"),
        ({"prettytable": None}, "mjlab needs prettytable, which are not installed: run"),
    ],
)
def test_what_mjlab_lacks_is_named(
    changed: dict[str, str | None], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mjlab_spec, "installed_version", (WHOLE | changed).get)
    monkeypatch.setattr(mjlab_spec, "requires", lambda _: ["mujoco==3.11", "prettytable", "pytest; extra == 'test'"])
    found = problem_of_mjlab() or ""
    assert (problem or "") in found
    assert (str(OVERRIDES) in found) == (problem is not None)
    if problem is not None:
        with pytest.raises(UsageError, match=r"mjlab:Mjlab-Cartpole-Balance was asked for, but " + re.escape(found)):
            resolve("mjlab:Mjlab-Cartpole-Balance")
