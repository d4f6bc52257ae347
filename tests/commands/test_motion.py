"""`shoal motion`: what it prints, writes and refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.cli import main
from shoal.errors import UsageError


def run(*words: str) -> None:
    main.shoal(["motion", *words])


def test_a_motion_that_ships_is_described_cut_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cut.npz"
    run("squats", "--start", "1", "--end", "3", "--fps", "30", "--out", str(out))
    said = capsys.readouterr().out
    assert "squats.npz: 61 frames, 30 a second, 2.00 s, of the robot humanoid with 21 joints." in said
    assert "All joints stay within their ranges." in said
    assert f"Motion: {out}" in said
    with np.load(out) as arrays:
        assert arrays["body_pos_w"].shape == (61, 16, 3)


def test_the_suffix_of_a_motion_may_be_in_capitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = ",".join(map(str, [0.0, 0.0, 1.3, 0.0, 0.0, 0.0, 1.0, *[0.0] * 21]))
    (tmp_path / "still.CSV").write_text(f"{row}\n{row}\n", encoding="utf-8")
    run(str(tmp_path / "still.CSV"))
    assert "still.CSV: 2 frames, 30 a second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("squats", "--start", "9"), "--start 9 and --end 8 leave nothing of a motion of 8 s"),
        (("squats", "--out", "motion.csv"), "--out is 'motion.csv', but must end with .npz, such as motion.npz"),
        (("squats", "--out", "/dev/null/motion.npz"), "/dev/null"),
        (("nothing.npz",), "There is no motion nothing.npz."),
        (("squats", "--robot", "nobody"), "--env.robot nobody was asked for"),
    ],
)
def test_what_cannot_be_done_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(*words)
