"""Launch modes: they start or join the workers of a training, supervise them, and report a failure's first cause."""
