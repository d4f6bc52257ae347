"""What users' code prints inside workers, in one real launch without rank files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.commands import FAULTY, SMALL, TRAIN, run

if TYPE_CHECKING:
    from support.commands import Ended

pytestmark = pytest.mark.spawn


@pytest.fixture(scope="module")
def babble(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training whose task prints on rank 0, where standard output is limited to ASCII."""
    words = (*TRAIN, f"{FAULTY}:Babbles", *SMALL, "--nproc-per-node", "2", "--torchrunx-log-dir", "")
    environ = {"SHOAL_TEST_FAULTY_RANK": "0", "PYTHONIOENCODING": "ascii"}
    return run(words, tmp_path_factory.mktemp("babble"), environ)


def test_a_byte_that_is_no_text_does_not_end_the_training(babble: Ended) -> None:
    assert babble.code == 0, babble.stdout + babble.stderr
    assert [row["iteration"] for row in babble.rows] == [1, 2]


def test_what_rank_0_prints_reaches_the_terminal_once_though_rank_files_are_off(babble: Ended) -> None:
    lines = babble.stdout.splitlines()
    assert lines.count(r"printed by user code \xb1") == 1
    assert lines.count(r"not UTF-8: \ufffd") == 1
    assert lines.count("without an end") == 1


def test_no_rank_file_is_left(babble: Ended) -> None:
    assert list(babble.log_root.parent.rglob("*.log")) == []
    assert babble.left_files == []
