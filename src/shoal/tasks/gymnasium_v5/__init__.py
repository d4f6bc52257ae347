"""The eleven MuJoCo v5 tasks of Gymnasium: its models, observations, rewards and ends, on Shoal's engines."""
