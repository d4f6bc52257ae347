"""All terms of a configuration, bound to a model."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from shoal.errors import ShoalError
from shoal.mdp.binding import Binder, Bound
from shoal.mdp.config import TermsConfig, members
from shoal.mdp.contacts import new_contact
from shoal.mdp.stages import BoundTerms
from shoal.sim.task import Command


def bind_terms(config: TermsConfig, binder: Binder, followed: Mapping[str, Any]) -> BoundTerms:
    """Bind all terms, in the order in which they refer to each other; for `followed` see `TermsTask`.

    Raises:
        ShoalError: A term is at fault.
    """

    def bind(group: str, *own: str) -> dict[str, Bound]:
        """Bind the terms of a group, whose functions take `own` parameters from the generated text."""
        terms = config.terms(group)
        return {name: binder.bind(f"{group}.{name}", term, group, own or ("i",)) for name, term in terms.items()}

    contacts = bind("contacts")
    for name, bound in contacts.items():
        if not any(each.startswith(("geom", "body")) for each in bound.arguments):
            raise ShoalError(f"contacts.{name} tracks nothing: its function must take i, and geoms or bodies after it.")
        binder.columns[name] = bound.columns
        binder.structs[name] = new_contact(binder.allocate, f"contacts/{name}", len(bound.columns))
    actions = bind("actions", "i", "action")
    binder.action_columns = tuple(chain.from_iterable(bound.columns for bound in actions.values()))
    return BoundTerms(
        actions=actions,
        commands=bind("commands", "first", "is_new"),
        contacts=contacts,
        rewards=bind("rewards"),
        terminations=bind("terminations"),
        metrics=bind("metrics"),
        events=bind("events"),
        observations={
            group: {
                name: binder.bind(f"observations.{group}.{name}", term, "observations")
                for name, term in members(terms).items()
            }
            for group, terms in config.terms("observations").items()
        },
        followed=followed,
    )


def number_commands(config: TermsConfig, binder: Binder) -> dict[str, Command]:
    """Give each command its columns; return the name, range and unit of each."""
    columns: dict[str, Command] = {}
    for name, term in config.terms("commands").items():
        binder.commands[name], binder.command_columns[name] = len(columns), term.columns
        for column, unit in zip(term.columns, term.units, strict=True):
            low, high = getattr(term, column, (-1.0, 1.0))  # What a slider shows where no range is declared.
            columns[f"{name}_{column}" if column in columns else column] = Command(low=low, high=high, unit=unit)
    return columns
