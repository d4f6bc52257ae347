"""Four-legged robots that walk as they are told."""
