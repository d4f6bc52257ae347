"""The names of `shoal.mdp`."""

import subprocess
import sys

import pytest

from shoal import mdp


def test_the_module_imports_nothing_before_a_name_is_used() -> None:
    code = "import sys; from shoal import mdp; assert 'warp' not in sys.modules; mdp.Reward; assert 'warp' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Rewards'"):
        mdp.Rewards  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
