"""The names of `shoal.mdp`."""

import subprocess
import sys

import pytest

from shoal import mdp


def test_the_module_imports_nothing_before_a_name_is_used() -> None:
    code = "import sys; from shoal import mdp; before = {*sys.modules}; print('warp' in before, mdp.uniform)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.startswith("False <")


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Rewards'"):
        mdp.Rewards  # noqa: B018
