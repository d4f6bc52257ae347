"""The nodes of `--hosts`: probed, reached by ssh, and run by a node agent on each."""
