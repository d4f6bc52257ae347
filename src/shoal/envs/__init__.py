"""Environments as rsl_rl sees them: its `VecEnv` around the simulated world."""
