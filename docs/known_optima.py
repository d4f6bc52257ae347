"""Train every learner on problems whose best policy is known, and print how near it comes, as a table for the pages.

python docs/known_optima.py
"""

import logging
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.optima import Regulator, StayOrLeave
from support.optimum_agents import OWN, actions_at, agents, learned


def main() -> None:
    """Print the table."""
    logging.disable(logging.WARNING)
    best = Regulator.gain(0.5)
    say(f"| learner | gain; the best is {best:.2f} | cost above the least | stays (below 0) | seconds |")
    say("| --- | --- | --- | --- | --- |")
    for agent in agents(0.5):
        began = time.process_time()
        found = "- | -"
        if agent != OWN:  # It normalises no observations.
            env = Regulator()
            left, right = actions_at(learned(agent, agents(0.5)[agent], env), env, [[-0.4], [0.4]])
            gain = (left - right) / 0.8
            found = f"{gain:.2f} | {Regulator.cost(gain, 0.5) / Regulator.cost(best, 0.5) - 1:.1%}"
        stays = "-"
        if agent != "grpo":  # It has no critic.
            game = StayOrLeave()
            (action,) = actions_at(learned(agent, agents(game.GAMMA)[agent], game), game, [[0.0]])
            stays = f"{action:.2f}"
        name = Path(agent).name if agent == OWN else agent
        say(f"| {name} | {found} | {stays} | {time.process_time() - began:.0f} |")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
