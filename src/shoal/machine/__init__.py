"""Facts about this machine: GPUs, host, network. Nothing here imports torch, judges or decides."""
