"""Videos: a trajectory is drawn and encoded to an mp4 in a process, and a GL context, of its own.

``python -m shoal.sim.render.video TARGET FOLDER PARENT NICE`` reads a trajectory from its standard input, which must be
a file, and ends with the thread of process PARENT that has started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from shoal import PYTHON
from shoal.checks.optional import GL_VARIABLE
from shoal.errors import ShoalError
from shoal.files import Folder, folder_of
from shoal.procfs import end_with_parent, how_it_ended

if TYPE_CHECKING:
    from shoal.sim.render.trajectory import Trajectory

_CLEAN_UP_S = 5.0
"""Time that a terminated process has to clean up [s]; a frame takes a tenth of a second."""


class VideoProcess:
    """A process that draws and encodes one trajectory. It leaves nothing but the video."""

    def __init__(
        self, trajectory: Trajectory, target: Path, gl: str, folder: Folder | None = None, *, nice: int = 0
    ) -> None:
        """Start to make the mp4 `target`. `gl` is the GL backend, see `shoal.checks.optional`.

        It is in a directory of `folder`, by default where the user has named it.

        Raises:
            OSError: There is no room for the trajectory, or for another process.
        """
        self.target, self._folder = target, folder or Folder(target.parent)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  It lives as long as the process.
        with tempfile.TemporaryFile() as file:  # Neither file has a name that could be left behind.
            trajectory.write(file)
            file.seek(0)
            self._process = subprocess.Popen(
                [*PYTHON, "-m", __name__, str(target), str(folder.path if folder else ""), str(os.getpid()), str(nice)],
                env={**os.environ, GL_VARIABLE: gl},
                stdin=file,
                stdout=self._output,
                stderr=self._output,
                # Ctrl-C is for the parent alone. No session of its own: where the kernel schedules sessions as groups,
                # nice would only count among the processes of that session.
                process_group=0,
            )

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end, at most so long; return whether it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def why_failed(self) -> str | None:
        """Return the reason of a failure as a clause; None when there is a video. It must have ended."""
        if self._process.returncode == 0:
            return None
        lines = _lines_of(self._output)
        return lines[-1].rstrip(".") if lines else how_it_ended(self._process.returncode)

    def end(self) -> None:
        """Terminate it if it still runs, and remove an unfinished video."""
        self._process.terminate()
        if not self.wait(_CLEAN_UP_S):
            self._process.kill()
            self._process.wait()
            self._folder.remove(unfinished(self.target))
        self._output.close()


def make_video(trajectory: Trajectory, target: Path, gl: str, folder: Folder | None = None) -> None:
    """Make a video, and wait for it. See `VideoProcess`.

    Raises:
        ShoalError: It failed.
    """
    process = VideoProcess(trajectory, target, gl, folder)
    try:
        process.wait()
        reason = process.why_failed()
    finally:
        process.end()
    if reason is not None:
        raise ShoalError(f"The video {target} could not be made ({reason}).")


def unfinished(target: Path) -> Path:
    """Return the name of a video that is still being encoded."""
    return target.with_name(f".{target.name}.part")


def _lines_of(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").strip().splitlines()


# In the process.


def _draw(trajectory: Trajectory, target: Path, folder: Folder) -> None:
    """Draw and encode a trajectory.

    The video runs in real time: above 60 steps a second, only every second, third, ... is shown.
    """
    from shoal.sim.render.camera import Camera
    from shoal.sim.render.images import enlarged
    from shoal.sim.render.trajectory import load_scene

    folder.make(target.parent)
    part = unfinished(target)
    try:
        with (
            folder.open(part, "w+") as file,
            Camera(load_scene(trajectory.scene), trajectory.size) as camera,
            _encoder(file.fileno(), trajectory.size, trajectory.frames_a_second) as encode,
        ):
            for step in range(0, len(trajectory.positions), trajectory.stride):
                marks = trajectory.marks[step] if trajectory.marks else ()
                frame, top = camera.picture(trajectory.positions[step], marks), 0
                for images in trajectory.images:  # One below the other, in the upper left corner.
                    seen = enlarged(images[step], (frame.shape[1] // 2, frame.shape[0] // 4))
                    frame[top : top + len(seen), : seen.shape[1]] = seen[: len(frame) - top]
                    top += len(seen)
                encode(frame.tobytes())
        folder.rename(part, target)
    finally:
        folder.remove(part)


@contextmanager
def _encoder(file: int, size: tuple[int, int], rate: float) -> Iterator[Callable[[bytes], object]]:
    """Yield a function that encodes one frame, colours from top left to bottom right, into an open file.

    Raises:
        OSError: The video could not be written.
    """
    from imageio_ffmpeg import get_ffmpeg_exe

    frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", f"{rate:.6f}", "-i", "-"]
    # Players want this colour format, and to begin before they have the whole file.
    coded = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *frames, *coded, f"/dev/fd/{file}"]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=output, pass_fds=[file]
        )
        if process.stdin is None:  # It is, with PIPE.
            raise OSError
        try:
            with contextlib.suppress(BrokenPipeError):  # ffmpeg has ended; its output has the reason.
                yield process.stdin.write
                process.stdin.close()
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code:
            lines = _lines_of(output)
            raise OSError(f"ffmpeg failed ({lines[0] if lines else code})")


def _main(target: Path, folder: str, parent: int, nice: int) -> None:
    """Make a video of the trajectory on standard input; a failure is one line on standard error."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # And so clean up.
    end_with_parent(parent, signal.SIGTERM)
    os.nice(nice)
    try:
        from shoal.sim.render.trajectory import Trajectory

        _draw(Trajectory.read(sys.stdin.buffer), target, Folder(Path(folder)) if folder else folder_of(target))
    except Exception as error:  # noqa: BLE001  The parent reports any error.
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        sys.stderr.flush()
        os._exit(1)  # Or output of libraries at exit would be the last line.


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
