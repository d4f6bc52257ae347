"""Learning: rsl_rl's PPO and runner over one process or many, with pooled statistics and safe checkpoints."""
