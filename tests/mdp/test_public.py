"""The names of `shoal.mdp`."""

import subprocess
import sys
from pathlib import Path

import pytest

from shoal import mdp


def test_the_module_imports_nothing_before_a_name_is_used() -> None:
    code = "import sys; from shoal import mdp; before = {*sys.modules}; print('warp' in before, mdp.uniform)"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.startswith("False <")


TERM = """from __future__ import annotations
from typing import Any
{imports}

@wp.func
def height(state: Any, env: int, site: mdp.SiteId, joints: mdp.Joints) -> float:
    return 0.0

print(height.input_types["site"], mdp.SiteId)
"""


@pytest.mark.parametrize(
    "imports", ["import warp as wp; from shoal import mdp", "from shoal import mdp; import warp as wp"]
)
def test_warp_reads_types_where_a_function_is_the_first_to_use_a_name(tmp_path: Path, imports: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(TERM.format(imports=imports))
    ended = subprocess.run([sys.executable, file], check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1].startswith("<class 'int'> typing.Annotated[int, ")


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Rewards'"):
        mdp.Rewards  # noqa: B018
