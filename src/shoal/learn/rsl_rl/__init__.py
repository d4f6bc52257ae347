"""rsl_rl's PPO as a learner. Its networks, storage and optimizer are used as they are."""
