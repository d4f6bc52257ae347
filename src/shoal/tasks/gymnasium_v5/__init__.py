"""The eleven MuJoCo v5 tasks of Gymnasium, on Shoal's engines."""
