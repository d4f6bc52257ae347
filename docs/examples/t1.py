"""The velocity task of the G1 with another humanoid: a Booster T1, whose model is a file in the package holosoma.

    pip install --no-deps holosoma
    train docs/examples/t1.py:T1

Gains, armature and pose are holosoma's, torques the model's; weights, commands, noise and
the learner stay those of the G1.
"""

from typing import Any

from shoal import mdp, registered

HEAD, ARMS = ".*Head.*", ".*(Shoulder|Elbow|Wrist|Hand).*"
TORQUE = {HEAD: 7.0, ARMS: 18.0, ".*Hip_(Pitch|Roll)": 45.0, ".*Hip_Yaw|Waist": 30.0, ".*Knee.*": 65.0}
TORQUE |= {".*Ankle_Pitch": 24.0, ".*Ankle_Roll": 15.0}
SCALE = {".*(Hip|Knee|Ankle).*": 0.4, "Waist": 0.15, f"{HEAD}|{ARMS}": 0.1}
"""How far actions move the targets of joints [rad]."""
REST = {"Waist": 0.2, HEAD: 0.1, ".*(Shoulder|Elbow).*": 0.15, ".*(Wrist|Hand).*": 0.3}
WALKING, RUNNING = ({".*Hip_(Roll|Yaw)": hips, ".*Ankle_Roll": ankles} for hips, ankles in ((0.15, 0.1), (0.2, 0.15)))
"""How far joints may be from the pose [rad]."""
HEIGHT: dict[str, Any] = {"target_height": 0.14}
"""Of a foot's body in a step [m]; its sole is 4 cm below."""

G1 = registered()["G1-Velocity-Flat"]
CONFIG = G1.env.change(
    robot="t1_29dof",
    feet="[LR]_rail_[1-7]",
    pose={".*Hip_Pitch": -0.2, ".*Knee_Pitch": 0.4, ".*Ankle_Pitch": -0.25, ".*Shoulder_Pitch": 0.2}
    | {"Left_Shoulder_Roll": -1.35, "Right_Shoulder_Roll": 1.35, "Left_Elbow_Yaw": -0.5, "Right_Elbow_Yaw": 0.5},
    stiffness={HEAD: 5.0, ARMS: 20.0, ".*(Hip|Knee).*|Waist": 200.0, ".*Ankle.*": 50.0},
    damping={f"{HEAD}|{ARMS}": 0.5, ".*(Hip|Knee).*|Waist": 5.0, ".*Ankle.*": 3.0},
    effort_limit=TORQUE,
    armature={".*": 0.01},
    actions={"joint_pos": {"scale": SCALE}},
    sensors={"root_angmom": mdp.Sensor("subtreeangmom", subtree="Trunk")},
    contacts={
        "feet": mdp.Contact(bodies="(left|right)_foot_link", secondary_body="world"),
        "itself": {"subtrees": "Trunk", "secondary_subtree": "Trunk"},
    },
    rewards={
        "upright": {"body": "Trunk"},
        "body_ang_vel": {"body": "Trunk"},
        "pose": {"std_walking": WALKING | REST, "std_running": RUNNING | REST},
        "foot_clearance": HEIGHT,
        "foot_swing_height": HEIGHT,
    },
    events={"base_com": {"bodies": "Trunk"}},
)


class T1(mdp.RobotTask[mdp.RobotConfig]):
    """Walk with a T1 on flat ground."""

    config = CONFIG
    agent, num_envs, max_iterations = G1.agent, G1.num_envs, G1.max_iterations
