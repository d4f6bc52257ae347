"""Makes docs/images/robots.webp, with which README.md and the landing page begin: six videos of tasks, side by side.

python docs/tile_videos.py
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import imageio_ffmpeg

IMAGES = Path(__file__).parent / "images"
PICTURE = IMAGES / "robots.webp"
VIDEOS = ("quadruped", "quadruped_rough", "g1", "hand_reorient_cube", "arm_lift_cube", "humanoid_tracking")
COLUMNS, WIDTH, HEIGHT = 3, 270, 170
SECONDS, FPS, QUALITY = 6, 15, 45


def main() -> None:
    """Cut, scale and tile the videos."""
    cut = f"fps={FPS},scale={WIDTH}:{HEIGHT}:force_original_aspect_ratio=increase:flags=lanczos,crop={WIDTH}:{HEIGHT}"
    tiles = ";".join(f"[{number}]{cut}[tile{number}]" for number in range(len(VIDEOS)))
    corners = "|".join(f"{i % COLUMNS * WIDTH}_{i // COLUMNS * HEIGHT}" for i in range(len(VIDEOS)))
    names = "".join(f"[tile{number}]" for number in range(len(VIDEOS)))
    inputs = [word for name in VIDEOS for word in ("-t", str(SECONDS), "-i", str(IMAGES / f"{name}.mp4"))]
    stack = f"{tiles};{names}xstack=inputs={len(VIDEOS)}:layout={corners}"
    webp = ("-c:v", "libwebp_anim", "-quality", str(QUALITY), "-compression_level", "6", "-loop", "0")
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    subprocess.run([ffmpeg, "-y", "-loglevel", "error", *inputs, "-filter_complex", stack, *webp, PICTURE], check=True)


if __name__ == "__main__":
    main()
