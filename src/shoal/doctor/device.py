"""A child that runs one kernel on one device, and records one step."""

from __future__ import annotations

from shoal.doctor.children import begin

if __name__ == "__main__":
    asked, answer = begin()
    from shoal.sim.probe import probe

    answer(probe(asked["device"]))
