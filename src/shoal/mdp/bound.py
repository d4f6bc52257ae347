"""All terms of a configuration, bound to a model."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from shoal.mdp.binding import Binder, Bound
from shoal.mdp.cameras import CameraTerm, RayCastTerm
from shoal.mdp.config import TermsConfig, members
from shoal.mdp.marks import metrics_of
from shoal.mdp.sensors import bind_contacts
from shoal.mdp.stages import BoundTerms
from shoal.mdp.terms import Term
from shoal.sim.task import CommandRange


def bind_terms(config: TermsConfig, binder: Binder, followed: Mapping[str, Any]) -> BoundTerms:
    """Bind all terms, in the order in which they refer to each other; for `followed` see `TermsTask`.

    Raises:
        ShoalError: A term is at fault.
    """

    def bind(group: str, *own: str, **more: Term) -> dict[str, Bound]:
        """Bind the terms of a group and more, whose functions take `own` parameters from the generated text."""
        terms, library = config.terms(group) | more, "observations" if group == "recorders" else group
        return {name: binder.bind(f"{group}.{name}", term, library, own or ("i",)) for name, term in terms.items()}

    actions = bind("actions", "i", "action", "physics_step")
    binder.action_columns = tuple(chain.from_iterable(bound.columns for bound in actions.values()))
    commands = bind("commands", "first", "is_new")
    sensors = config.terms("sensors").items()
    binder.cameras = {name: each for name, each in sensors if isinstance(each, CameraTerm)}
    binder.ray_casts = {name: each for name, each in sensors if isinstance(each, RayCastTerm)}
    return BoundTerms(
        actions=actions,
        commands=commands,
        contacts=bind_contacts(binder, config.terms("contacts"), binder.allocate),
        rewards=bind("rewards"),
        terminations=bind("terminations"),
        metrics=bind("metrics", **metrics_of(commands)),
        events=bind("events"),
        observations={
            group: {
                name: binder.bind(f"observations.{group}.{name}", term, "observations")
                for name, term in members(terms).items()
            }
            for group, terms in config.terms("observations").items()
        },
        recorders=bind("recorders"),
        followed=followed,
    )


def number_commands(config: TermsConfig, binder: Binder) -> dict[str, CommandRange]:
    """Give each command its columns; return the name, range and unit of each."""
    columns: dict[str, CommandRange] = {}
    for name, term in config.terms("commands").items():
        binder.commands[name], binder.command_columns[name] = len(columns), term.columns
        for column, unit in zip(term.columns, term.units, strict=True):
            low, high = getattr(term, column, (-1.0, 1.0))  # What a slider shows where no range is declared.
            columns[f"{name}_{column}" if column in columns else column] = CommandRange(low=low, high=high, unit=unit)
    return columns
