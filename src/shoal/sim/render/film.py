"""From a clip to an mp4 that browsers play. A program: a film is made in a process, and a GL context, of its own.

``python -m shoal.sim.render.film TARGET PARENT NICE`` reads a clip from its standard input, which must be a file, and ends
with the thread of process PARENT that has started it. `shoal.sim.render.film_process` is who does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.procfs import end_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.sim.render.clip import Clip


def unfinished(target: Path) -> Path:
    """Return the name of a film before it is whole."""
    return target.with_name(f".{target.name}.part")


def develop(clip: Clip, target: Path) -> None:
    """Draw and encode a clip.

    The film runs in real time: where there are more than 60 steps a second, only every second, third, ... is shown.
    """
    from shoal.sim.render.camera import Camera
    from shoal.sim.render.clip import load_scene

    target.parent.mkdir(parents=True, exist_ok=True)
    part = unfinished(target)
    try:
        with (
            Camera(load_scene(clip.scene), clip.size) as camera,
            _encoder(part, clip.size, clip.frames_a_second) as encode,
        ):
            for positions in clip.positions[:: clip.stride]:
                encode(camera.picture(positions).tobytes())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _encoder(file: Path, size: tuple[int, int], rate: float) -> Iterator[Callable[[bytes], object]]:
    """Yield what takes one frame after another, as colours from top left to bottom right.

    Raises:
        OSError: The film could not be written.
    """
    from imageio_ffmpeg import get_ffmpeg_exe

    frames = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{size[0]}x{size[1]}", "-r", f"{rate:.6f}", "-i", "-"]
    # Players want this colour format, and to begin before they have the whole file.
    coded = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4"]
    command = [get_ffmpeg_exe(), "-y", "-loglevel", "error", *frames, *coded, str(file)]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        if process.stdin is None:  # It is, with PIPE.
            raise OSError
        try:
            with contextlib.suppress(BrokenPipeError):  # It has ended, and says itself why.
                yield process.stdin.write
                process.stdin.close()
            code = process.wait()
        finally:
            process.kill()
            process.wait()
        if code:
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines()
            message = f"ffmpeg failed ({words[0] if words else code})"
            raise OSError(message)


def _main(target: Path, parent: int, nice: int) -> None:
    """Make a film of the clip on standard input, and tell in one line why not."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # And so clean up.
    end_with_parent(parent, signal.SIGTERM)
    os.nice(nice)
    try:
        from shoal.sim.render.clip import Clip

        develop(Clip.read(sys.stdin.buffer), target)
    except Exception as error:  # noqa: BLE001  Whatever it is, it is told by whoever has started this.
        told = " ".join(str(error).split())
        sys.stderr.write(f"{type(error).__name__}: {told}\n")
        sys.stderr.flush()
        os._exit(1)  # What libraries say when they are taken down would be the last word.


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
