"""Load a Shoal checkpoint without Shoal: the actor of `Cartpole-Swingup` in plain torch and rsl_rl.

python docs/examples/load_in_rsl_rl.py logs/Cartpole-Swingup/<run>/checkpoints/<iterations>/model.pt
"""

from __future__ import annotations

import sys

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict

checkpoint = torch.load(sys.argv[1], weights_only=True, map_location="cpu")

observations = TensorDict({"policy": torch.zeros(1, 5)}, batch_size=[1])
actor = MLPModel(
    observations,
    {"actor": ["policy"]},
    "actor",
    output_dim=1,
    hidden_dims=[64, 64],
    activation="elu",
    obs_normalization=True,
    distribution_cfg={"class_name": "GaussianDistribution", "init_std": 1.0},
)
actor.load_state_dict(checkpoint["actor_state_dict"])
actor.eval()

with torch.inference_mode():
    action = actor(observations)
sys.stdout.write(f"iterations done {checkpoint['iter'] + 1}, action {action.item():.3f}\n")
