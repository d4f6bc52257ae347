"""Physics engines behind one interface: MuJoCo C on the CPU, MuJoCo Warp on a GPU."""
