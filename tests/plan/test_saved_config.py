"""Reading the configuration of a run. `cli/test_parse` tests what the commands make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.bombs import YAML

from shoal.errors import UsageError
from shoal.plan.rundir import RunDir
from shoal.plan.saved_config import config_of_run

if TYPE_CHECKING:
    from pathlib import Path

LEARNER = """
from pathlib import Path
from shoal.config import AgentConfig

Path(__file__).with_suffix(".imported").touch()

class Learner:
    config = AgentConfig()
"""


def test_a_learner_of_another_s_run_is_not_imported_before_it_is_trusted(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "theirs" / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    file = tmp_path / "evil.py"
    file.write_text(LEARNER, encoding="utf-8")
    run.train_yaml.write_text(f"task: Cartpole-Swingup\nlearner: {file}:Learner\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"would import '.*evil.py:Learner' \(learner\).* pass --trust-run"):
        config_of_run("Cartpole-Swingup", None, run, str(tmp_path / "mine"), trust="--trust-run")
    assert not file.with_suffix(".imported").exists()
    config_of_run("Cartpole-Swingup", None, run, str(tmp_path / "mine"), trust=None)
    assert file.with_suffix(".imported").exists()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", YAML)
def test_a_configuration_that_multiplies_or_nests_is_refused(kind: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "2026-01-01_00-00-00")
    run.params_dir.mkdir(parents=True)
    run.train_yaml.write_text(YAML[kind], encoding="utf-8")
    for trust in (None, "--trust-run"):
        with pytest.raises(UsageError, match=r"^--config .*train\.yaml (cannot be read \(|holds no named values)"):
            config_of_run("Cartpole-Swingup", None, run, str(tmp_path / "mine"), trust=trust)
