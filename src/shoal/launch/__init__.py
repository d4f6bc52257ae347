"""Doors: how workers come to be. Each runs `shoal.worker.run_worker` once a rank with the same job."""
