"""Run an exported policy without Shoal and torch: onnxruntime and what the file says of itself.

python docs/examples/act_with_onnx.py logs/Cartpole-Swingup/<run>/exports/policy.onnx
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
metadata = session.get_modelmeta().custom_metadata_map
columns = dict(
    zip(json.loads(metadata["observation_groups"]), json.loads(metadata["observation_columns"]), strict=True)
)

# One robot; a recurrent policy has h_in, or h_in and c_in, beside obs.
groups = [np.zeros((1, count), np.float32) for count in columns.values()]
(actions,) = session.run(["actions"], {"obs": np.concatenate(groups, axis=1)})
sys.stdout.write(
    f"{metadata['task']}, every {metadata['control_period_s']} s: {columns} -> {actions.shape[1]} action\n"
)
