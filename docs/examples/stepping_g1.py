r"""The velocity task of the G1 with legs that step by a clock, which the policy corrects.

    train docs/examples/stepping_g1.py:SteppingG1 --agent.algorithm.entropy-coef 0.001 \
        --agent.algorithm.symmetry.enabled --agent.algorithm.symmetry.use-data-augmentation

Without the clock a small batch learns to stand (docs/tasks/humanoid.md). Arms and waist are
corrected less than legs, pushes and commands grow with what the robot can do.
"""

from shoal import mdp, registered

PERIOD, SWING = 0.8, 0.3
"""Of the steps [s], and how far hips and ankles swing [rad]; knees swing twice as far."""
SCALE = {".*hip_(pitch|yaw)_joint": 0.548, ".*(hip_roll|knee)_joint": 0.35, ".*ankle.*": 0.44}
SCALE |= {".*(shoulder|elbow|wrist_roll).*": 0.1, ".*wrist_(pitch|yaw).*": 0.05, "waist.*": 0.15}
STEP = {".*(hip|ankle)_pitch.*": -SWING, ".*knee.*": 2 * SWING, "(?!.*(hip_pitch|knee|ankle_pitch)).*": 0.0}
PUSHES = {"x": 0.5, "y": 0.5, "z": 0.4, "roll": 0.52, "pitch": 0.52, "yaw": 0.78}
"""The largest pushes, of the task [m/s, rad/s]."""

G1 = registered()["G1-Velocity-Flat"]
CLOCK = {"phase": mdp.Obs("gait_phase", period=PERIOD)}


class SteppingG1(mdp.RobotTask[mdp.RobotConfig]):
    """Walk with a G1 on flat ground."""

    config = G1.env.change(
        actions={
            "joint_pos": mdp.Action(
                "gait_joint_position",
                actuators=".*",
                command="twist",
                scale=SCALE,
                swing=STEP,
                shift={"left.*": 0.0, "(?!left).*": 0.5},
                period=PERIOD,
            )
        },
        observations={"policy": CLOCK, "critic": CLOCK},
        rewards={
            "gait": mdp.Reward(
                "feet_gait",
                weight=1.0,
                contact="feet",
                command="twist",
                period=PERIOD,
                offset={"left.*": 0.0, "right.*": 0.5},
            ),
            "action_rate": {"weight": -0.02},
        },
        curricula={
            "pushes": mdp.Curriculum(
                "event_curriculum",
                event_name="push",
                when="Train/mean_episode_length",
                above=(0.0, 850.0, 950.0),
                **{
                    name: tuple((-part * most, part * most) for part in (0.0, 0.5, 1.0))
                    for name, most in PUSHES.items()
                },
            ),
            "command_vel": mdp.Curriculum(
                "commands_vel",
                command_name="twist",
                when="Metrics/error_linear_velocity",
                below=(100.0, 0.3, 0.3),
                lin_vel_x=((-0.4, 0.6), (-0.7, 0.8), (-1.0, 1.0)),
                lin_vel_y=((-0.3, 0.3), (-0.6, 0.6), (-1.0, 1.0)),
            ),
        },
    )
    agent, num_envs, max_iterations = G1.agent, 256, G1.max_iterations
