"""Output of `shoal motion`."""

from shoal.cli.report import print_line
from shoal.commands.motion import InspectedMotion
from shoal.config.commands import MotionConfig

_SHOWN = 5


def print_motion(found: InspectedMotion, config: MotionConfig) -> None:
    """Print what is in a motion, and what may keep the robot from following it."""
    motion, findings = found.motion, found.findings
    print_line(
        f"{found.file}: {len(motion.qpos)} frames, {motion.fps:g} a second, {motion.seconds:.2f} s, of the robot "
        f"{config.robot} with {motion.qpos.shape[1] - 7} joints."
    )
    low, high = findings.height
    print_line(f"Base: {low:.3f} to {high:.3f} m high, travels {findings.travel:.2f} m.")
    print_line(
        f"Fastest joint: {findings.fastest_joint}, {findings.fastest_speed:.1f} rad/s. Largest change between two "
        f"frames: {findings.largest_jump:.3f} rad."
    )
    where = "below" if findings.deepest > 0 else "above"
    print_line(f"Lowest geom: {abs(findings.deepest):.3f} m {where} the ground at most.")
    beyond = sorted(findings.joints_beyond.items(), key=lambda item: -item[1])
    if beyond:
        listed = ", ".join(f"{name} by {value:.3f}" for name, value in beyond[:_SHOWN])
        more = f" and {len(beyond) - _SHOWN} more" if len(beyond) > _SHOWN else ""
        print_line(f"Joints beyond their ranges [rad]: {listed}{more}.")
    else:
        print_line("All joints stay within their ranges.")
    if config.out is not None:
        print_line(f"Motion: {config.out}")
    if config.video_path is not None:
        print_line(f"Film: {config.video_path}")
