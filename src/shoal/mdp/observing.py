"""The text of the kernels that observe."""

from collections.abc import Mapping
from typing import Any

import warp as wp

from shoal.errors import UsageError
from shoal.mdp.accesses import uses
from shoal.mdp.binding import Binder, Bound
from shoal.mdp.config import TermsConfig
from shoal.mdp.kernels import Source
from shoal.mdp.noise import GaussianNoise, Noise, is_noisy
from shoal.mdp.observations import camera_rgb
from shoal.mdp.rings import Rings
from shoal.mdp.terms import ObsTerm
from shoal.mdp.values import numbers_by_name, numbers_of

_WIDE = 32
"""An observation with more columns is computed by one thread for each column."""
_OPERATIONS = {"add": "{} + {}", "scale": "({}) * {}", "abs": "{1}"}
"""The text of a value with its error, by the operation of the noise."""
_Terms = Mapping[str, Mapping[str, Bound]]


def observe(config: TermsConfig, terms: _Terms, rings: Rings, binder: Binder) -> list[Source]:
    """Observations: one kernel, and one for each wide term. What groups share is computed once."""
    together, wide, declared = Source("observe"), list[Source](), config.flat("observations")
    streams = 0  # Random numbers of one thread each, of which no two wide terms have the same.
    for value, users in _users(declared, terms).items():
        bound = users[0][-1]
        count = len(bound.columns)
        draws = "rng" in uses(bound.function)
        if bound.is_by_column and count > _WIDE and not draws:  # Threads would race on the environment's random state.
            source, depth = Source(f"observe_{bound.name}", columns=count), 0
            if any(_draws(declared[path]) for path, *_ in users):
                source.add(f"rng = wp.rand_init(wp.int32(state.rng[env]), {streams} + i)")
                streams += count
            wide.append(source)
        else:
            source, depth = together, 1
            if not bound.is_by_column:
                source.add(*_drawing(f"{bound.name} = {value}", draws=draws))
                value, draws = f"{bound.name}[i]" if count > 1 else bound.name, False  # noqa: PLW2901
            source.add(f"for i in range({count}):")
        source.add(*_drawing(f"value = {value}", draws=draws), depth=depth)
        for path, first, _ in users:
            lines = _columns(rings, binder, f"observations.{path}", declared[path], first, bound.columns)
            source.add(*lines, depth=depth)
    if streams:
        together.add("wp.randf(rng)")  # Other numbers in the next step, also where nothing else draws.
    if together.lines:
        together.lines = ["rng = state.rng[env]", *together.lines, "state.rng[env] = rng"]
    return [*wide, together]


def columns_by_term(config: TermsConfig, terms: _Terms) -> dict[str, dict[str, int]]:
    """Return the number of columns of each term, by group and name."""
    declared = config.flat("observations")
    return {
        group: {name: len(bound.columns) * declared[f"{group}.{name}"].num_values for name, bound in bounds.items()}
        for group, bounds in terms.items()
    }


def image_shapes(config: TermsConfig, terms: _Terms) -> dict[str, tuple[int, ...]]:
    """Return channels, height and width of each group of images: channels for each of the values of a term.

    Raises:
        UsageError: A group has something else beside an image.
    """
    declared, shapes = config.flat("observations"), dict[str, tuple[int, ...]]()
    for group, bounds in terms.items():
        image = next((name for name, bound in bounds.items() if bound.shape), None)
        if image is None:
            continue
        other = next((name for name, bound in bounds.items() if bound.shape != bounds[image].shape), None)
        if other:
            raise UsageError(
                f"observations.{group} has the image '{image}' and '{other}', which is none of its size: give images "
                "of one size a group of their own."
            )
        channels = sum(declared[f"{group}.{name}"].num_values * bound.width for name, bound in bounds.items())
        shapes[group] = channels, *bounds[image].shape
    return shapes


def image_tiles(config: TermsConfig, terms: _Terms) -> dict[str, list[tuple[int, int, int]]]:
    """Return, for each group of images, the channels that are red, green and blue of each of its tiles.

    Each three channels of colours are a tile, and each other channel is one in grey.
    """
    tiles: dict[str, list[tuple[int, int, int]]] = {}
    for group in image_shapes(config, terms):
        first, tiles[group] = 0, []
        for name, bound in terms[group].items():
            red, green, blue = (0, 1, 2) if bound.function is camera_rgb else (0, 0, 0)
            last = first + bound.width * config.flat("observations")[f"{group}.{name}"].num_values
            tiles[group] += [(at + red, at + green, at + blue) for at in range(first, last, 1 + blue)]
            first = last
    return tiles


def _users(declared: Mapping[str, ObsTerm], terms: _Terms) -> dict[str, list[tuple[str, int, Bound]]]:
    """Return, by the expression of a value, each term that observes it by its path, and the first of its columns."""
    users: dict[str, list[tuple[str, int, Bound]]] = {}
    for group, bounds in terms.items():
        first = 0
        for name, bound in bounds.items():
            path = f"{group}.{name}"
            users.setdefault(bound.value, []).append((path, first, bound))
            first += len(bound.columns) * declared[path].num_values
    return users


def _drawing(line: str, *, draws: bool) -> list[str]:
    """Return a line between those that lend the random state to its function, if that draws."""
    return ["state.rng[env] = rng", line, "rng = state.rng[env]"] if draws else [line]


def _draws(term: ObsTerm) -> bool:
    return is_noisy(term.noise) or is_noisy(term.bias)


def _columns(rings: Rings, binder: Binder, path: str, term: ObsTerm, first: int, columns: tuple[str, ...]) -> list[str]:
    """Return the lines that write one column of one group: with noise, clipped, scaled, delayed, with its history."""
    output, lines, count = f"obs_{path.split('.')[1]}", list[str](), len(columns)
    shown = _noisy(binder, f"{path}.noise", term.noise, columns, "value")
    if is_noisy(term.bias):
        bias = f"{path.replace('.', '_')}_bias"
        rings.columns[bias] = count
        drawn = _noisy(binder, f"{path}.bias", term.bias, columns, "0.0")
        lines += ["if age[env] == 0:", f"    {bias}[env, i] = {drawn}"]
        shown = f"{shown} + {bias}[env, i]"
    if term.clip:
        low, high = _limits(binder, f"{path}.clip", term.clip, columns)
        shown = f"wp.clamp({shown}, {low}, {high})"
    if term.scale != 1.0:
        shown = f"({shown}) * {_by_column(binder, f'{path}.scale', term.scale, columns)}"
    kept, shown = rings.delayed(binder, path, term, count, shown)
    lines += kept
    if term.history_length <= 1:
        return [*lines, f"{output}[env, {first} + i] = {shown}"]
    ring, slots = f"{path.replace('.', '_')}_history", term.history_length
    lines.append(rings.keep(ring, count, slots, shown))
    for slot in range(slots):
        recalled = f"recall({ring}, env, i, {count}, {slots}, age[env], {slots - 1 - slot})"
        lines.append(f"{output}[env, {first + slot * count} + i] = {recalled}")
    return lines


def _noisy(binder: Binder, path: str, noise: Any, columns: tuple[str, ...], value: str) -> str:
    """Return the expression of a value with an error, which `rng` draws."""
    if not is_noisy(noise):
        return value
    if not isinstance(noise, Noise):
        return f"{value} + {_by_column(binder, path, noise, columns)} * wp.randf(rng, -1.0, 1.0)"

    def number(name: str) -> str:
        return _by_column(binder, f"{path}.{name}", getattr(noise, name), columns)

    if isinstance(noise, GaussianNoise):
        error = f"({number('mean')} + {number('std')} * wp.randn(rng))"
    else:
        error = f"wp.randf(rng, {number('n_min')}, {number('n_max')})"
    return _OPERATIONS[noise.operation].format(value, error)


def _limits(binder: Binder, path: str, clip: Any, columns: tuple[str, ...]) -> tuple[str, str]:
    """Return the expressions of the least and the largest value: two numbers, or the largest magnitude."""
    if isinstance(clip, tuple):
        low, high = (binder.number(f"{path}.{at}", each) for at, each in enumerate(numbers_of(path, clip, 2)))
        return low, high
    limit = _by_column(binder, path, clip, columns)
    return f"-{limit}", limit


def _by_column(binder: Binder, path: str, numbers: Any, columns: tuple[str, ...]) -> str:
    """Return the expression of the number of column `i`."""
    if isinstance(numbers, int | float):
        return binder.number(path, numbers)
    array = path.replace(".", "_")
    row = numbers_by_name(path, numbers, columns)
    binder.arrays[array] = wp.array(row, dtype=wp.float32, device=binder.device)
    return f"{array}[i]"
