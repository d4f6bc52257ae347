"""What the pages say of the repository is so: links, the packages, and the generated command line reference."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest
from support.documented import ROOT, pages, script

from shoal.learn.learner import Learner, TorchLearner
from shoal.tasks.cartpole.config import BalanceConfig, SwingupConfig
from shoal.tasks.registry import registered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGE = ROOT / "src" / "shoal"
each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))


def links_of(text: str) -> list[str]:
    """The targets of a page's links and pictures, without those to other sites."""
    # A link's text may break over lines.
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@each_page
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = [link.partition("#")[0] for link in links_of(page.read_text(encoding="utf-8"))]
    assert [target for target in targets if target and not (page.parent / target).is_file()] == []


def test_links_are_found() -> None:
    text = "[a](b.md) ![two\nlines](c.svg) [site](https://example.org/d.md) `[0]` [e](f.md#g)"
    assert links_of(text) == ["b.md", "c.svg", "f.md#g"]


def test_the_page_of_the_architecture_names_every_package() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in page} == set()


def test_the_tasks_page_has_the_defaults_of_the_tasks() -> None:
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert [told for told in told_of_tasks() if told not in page] == []


def told_of_tasks() -> Iterator[str]:
    """What the tasks page has to say, from the tasks' own configurations."""
    for name, where in (("Cartpole-Balance", "upright"), ("Cartpole-Swingup", "hanging down")):
        spec = registered()[name]
        env = spec.env
        assert isinstance(env, BalanceConfig | SwingupConfig)
        yield (
            f"cart within {env.reset_position_range:g} m of the middle, pole within {env.reset_angle_range:g} rad of "
            f"{where}, slower than {env.reset_cart_speed_range:g} m/s and {env.reset_pole_speed_range:g} rad/s"
        )
        steps = spec.agent.num_steps_per_env
        yield f"{spec.num_envs:,} environments on each worker, {spec.max_iterations} iterations of {steps} steps"
        for weight in (field.name for field in fields(env) if field.name.endswith("_weight")):
            yield f"| term `{weight.removesuffix('_weight')}`, weight {getattr(env, weight):g} |"
        if isinstance(env, BalanceConfig):
            yield f"leans more than {env.fallen_angle:g} rad"
            yield f"at most {env.upright_weight * env.episode_length_s:g}, the length"
        else:
            yield f"at most {env.swung_up_weight * env.episode_length_s:g}: the weight"
            yield f"tolerance(x, {env.centred_margin:g} m)"
            yield f"tolerance(θ', {env.slow_margin:g} rad/s)"
    yield f"| mass of the cart, of the pole | {env.cart_mass} kg, {env.pole_mass} kg |"
    yield f"| half the length of the pole | {env.pole_half_length} m |"
    yield f"| gravity | {env.gravity} m/s² |"
    yield f"| {env.force_limit:g} N |"
    yield f"| half the length of the rail | {env.rail_half_length} m |"
    yield f"| {env.physics_dt} s, {env.decimation} |"
    yield f"| {env.episode_length_s:g} s, so {env.episode_length_s / env.physics_dt / env.decimation:.0f} actions |"
    yield f"speed of the cart (in units of {env.cart_speed_scale:g} m/s)"
    yield f"angular speed of the pole (in units of {env.pole_speed_scale:g} rad/s)"


def test_the_page_of_learners_names_every_member_of_a_learner() -> None:
    page = (ROOT / "docs" / "guide" / "your_own_learner.md").read_text(encoding="utf-8")
    members = {name for cls in (Learner, TorchLearner) for name in (*vars(cls), *cls.__annotations__) if name[0] != "_"}
    assert {name for name in members if f"`{name}`" not in page and f"`{name}(" not in page} == set()


@pytest.mark.parametrize("page", ["cli", "terms", "python"])
def test_a_generated_page_is_up_to_date(page: str) -> None:
    module = script(ROOT / "docs" / f"generate_{page}.py")
    assert module.render() == module.PAGE.read_text(encoding="utf-8"), f"Run: python docs/generate_{page}.py"
