"""The page in a real browser: its numbers are those of the results, and it loads nothing but videos beside it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import imageio_ffmpeg
import pytest
from playwright.sync_api import sync_playwright
from support.browser import CHROMIUM, WITHOUT_A_GPU, needs_chromium

from shoal.jobs.report import report_html
from shoal.jobs.results import write_results
from shoal.plan.job import Job, JobFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Page

EVIL = "<script>document.title = 'run'</script><img src=http://example.com/x onerror=\"document.title='run'\">&amp;"
"""As a name that a user chose."""

WITH_VIDEO = "a job #1%"
"""Name whose characters mean something in an address."""


class Visit(NamedTuple):
    """A report in a browser."""

    page: Page
    results: dict[str, Any]
    requests: list[str]
    """Addresses of everything that the page asked for."""
    out: Path


def write_output(out: Path) -> dict[str, Any]:
    """Write an output directory, its results and its report; return the results."""
    cartpole: dict[str, Any] = {"task": "Cartpole-Swingup", "policy": "/runs/a/checkpoints/000100/model.pt"}
    jobs = [
        Job(name=WITH_VIDEO, **cartpole),
        Job(name="second seed", seed=2, **cartpole),
        Job(name="varied", variation={"friction": [0.5, 1], "name": EVIL}, **cartpole),
        Job(name="a-control", task="Cartpole-Swingup", policy="zero"),
        Job(name="failed", retries=0, task="Ant-v5", policy=EVIL),
    ]
    manifest = {"shoal": "1.2.3", "started": EVIL, "command": ["shoal", "evaluate", EVIL]}
    out.mkdir()
    text = json.dumps({**manifest, "jobs": [asdict(job) for job in jobs]})
    (out / "manifest.json").write_text(text, encoding="utf-8")
    for job, returns in zip(jobs, ([10.0, 20.0], [60.0, math.nan], [5.0, 6.0, 8.0], [1.0, 1.0]), strict=False):
        write_episodes(out, job, returns)
    failure = {"part": 0, "rank": 0, "host": "node", "error": f"Traceback\n{EVIL}", "time": "now"}
    (out / "failed").mkdir()
    JobFiles(out / "failed").failures.write_text(json.dumps(failure) + "\n", encoding="utf-8")
    write_video(out / WITH_VIDEO / "episode_000000.mp4")
    results = write_results(out)
    (out / "report.html").write_text(report_html(results, out), encoding="utf-8")
    return results


def write_episodes(out: Path, job: Job, returns: Sequence[float]) -> None:
    lines = [
        {
            "index": index,
            "seed": job.seed,
            "return": value,
            "length": 500,
            "success": value > 5,
            "ended": "diverged" if math.isnan(value) else "time out",
            "met_at_reset": value == 20,
            "terms": {"upright": value / 2, EVIL: 1.0},
            "metrics": {"distance": 0.25},
        }
        for index, value in enumerate(returns)
    ]
    files = JobFiles(out / job.name)
    files.path.mkdir()
    files.episodes.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_video(path: Path) -> None:
    writer = imageio_ffmpeg.write_frames(str(path), (32, 32), ffmpeg_log_level="error")
    writer.send(None)
    for _ in range(3):
        writer.send(bytes(32 * 32 * 3))
    writer.close()


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """The report, opened from the disk."""
    out = tmp_path_factory.mktemp("report") / "out"
    results = write_output(out)
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(WITHOUT_A_GPU))
        try:
            page = browser.new_page(viewport={"width": 900, "height": 600})
            page.on("request", lambda request: requests.append(request.url))
            page.goto((out / "report.html").as_uri())
            page.wait_for_function("document.querySelector('video').readyState >= 1")
            yield Visit(page, results, requests, out)
        finally:
            browser.close()


def read_table(page: Page, css: str) -> list[dict[str, str]]:
    """Return the rows of a table, by the names of its columns."""
    header = page.locator(f"{css} th").all_inner_texts()
    rows = page.locator(f"{css} tbody tr").all()
    return [dict(zip(header, row.locator("td").all_inner_texts(), strict=True)) for row in rows]


@needs_chromium
def test_the_table_shows_the_pooled_results_of_each_policy_and_variation(visit: Visit) -> None:
    seeds, varied, control = read_table(visit.page, "section:first-of-type table.returns")
    summary = visit.results["groups"][0]["summary"]
    low, high = summary["return"]["low"], summary["return"]["high"]
    assert seeds["policy"] == "/runs/a/checkpoints/000100/model.pt"
    assert (seeds["jobs"], seeds["episodes"], seeds["length"]) == ("2 of 2", "4", "500")
    assert seeds["return"] == f"30 [{low:.4g}, {high:.4g}], 1 left out"
    # Of the three others, the one that diverged did not succeed.
    assert seeds["success"].startswith("66.7% [20.8%, 93.9%], 1 at reset left out")
    assert seeds["ended"] == "1 diverged, 3 time out"
    assert varied["variation"] == f"friction=[0.5, 1], name={json.dumps(EVIL)}"
    assert (control["policy"], control["return"]) == ("zero (zero-action control)", "1 [1, 1]")


@needs_chromium
def test_a_policy_without_finished_jobs_is_in_the_table(visit: Visit) -> None:
    (row,) = read_table(visit.page, "section:nth-of-type(2) table.returns")
    assert (row["policy"], row["jobs"], row["episodes"], row["return"]) == (EVIL, "0 of 1", "-", "-")


@needs_chromium
def test_the_plot_draws_each_interval_to_scale(visit: Visit) -> None:
    rows = [group["summary"]["return"] for group in visit.results["groups"][:3]]
    lines = visit.page.locator("section:first-of-type svg line[stroke-width]").all()
    drawn = [[float(line.get_attribute(end) or "nan") for end in ("x1", "x2")] for line in lines]
    means = [float(circle.get_attribute("cx") or "nan") for circle in visit.page.locator("svg circle").all()]
    ticks = visit.page.locator("section:first-of-type svg text[text-anchor]").all()
    left, right = (float(tick.get_attribute("x") or "nan") for tick in ticks)
    first, last = (float(tick.inner_html()) for tick in ticks)
    assert (first, last) == pytest.approx((1.0, max(row["high"] for row in rows)), rel=1e-3)

    def value_at(x: float) -> float:
        return first + (x - left) / (right - left) * (last - first)

    # A tenth of a pixel, and four digits.
    assert [[value_at(x) for x in ends] for ends in drawn] == [
        pytest.approx([row["low"], row["high"]], abs=0.02) for row in rows
    ]
    assert [value_at(x) for x in means] == pytest.approx([row["mean"] for row in rows], abs=0.02)


@needs_chromium
def test_terms_and_metrics_have_a_column_each(visit: Visit) -> None:
    terms = read_table(visit.page, "table.terms")
    assert [row["upright"] for row in terms] == ["15", "3.167", "0.5"]
    assert [row[EVIL] for row in terms] == ["1"] * 3
    assert read_table(visit.page, "table.metrics")[0] == {"#": "1", "distance": "0.25"}


@needs_chromium
def test_failed_jobs_show_the_last_line_of_their_error(visit: Visit) -> None:
    (row,) = read_table(visit.page, "table.failures")
    assert row == {"job": "failed", "state": "failed", "failed attempts": "1", "last error": EVIL}


@needs_chromium
def test_videos_play(visit: Visit) -> None:
    assert visit.page.locator("figcaption").all_inner_texts() == [WITH_VIDEO]
    assert visit.page.locator("video").evaluate("video => [video.videoWidth, video.error]") == [32, None]


@needs_chromium
def test_nothing_but_the_page_and_its_videos_is_loaded(visit: Visit) -> None:
    report, video = (visit.out / name for name in ("report.html", f"{WITH_VIDEO}/episode_000000.mp4"))
    assert set(visit.requests) == {report.as_uri(), video.as_uri()}


@needs_chromium
def test_names_are_text_and_no_markup(visit: Visit) -> None:
    assert visit.page.title() == "Evaluation"
    assert visit.page.locator("script, img").count() == 0
    assert EVIL in visit.page.locator("p").first.inner_text()
    assert "1 failed" in visit.page.locator("p").first.inner_text()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_light_and_in_dark(visit: Visit, scheme: Any) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    # The page itself has no colour, and shows the browser's: a cell painted with that one tells it.
    painted = "element => { element.style.background = 'Canvas'; return getComputedStyle(element).backgroundColor }"
    paper = visit.page.locator("table.returns td").first.evaluate(painted)
    colours = [
        visit.page.locator(css).first.evaluate(f"element => getComputedStyle(element).{name}")
        for css, name in (("td", "color"), ("svg text", "fill"), ("svg line", "stroke"))
    ]
    apart = [abs(brightness(colour) - brightness(paper)) for colour in colours]
    assert min(apart) > 150
    assert (brightness(paper) > 128) is (scheme == "light")


def brightness(colour: str) -> float:
    """Mean of the channels of a computed colour, 0 to 255."""
    channels = colour.partition("(")[2].rstrip(")").split(",")
    return sum(map(float, channels[:3])) / 3


def test_an_evaluation_without_jobs_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"jobs": []}', encoding="utf-8")
    page = report_html(write_results(tmp_path), tmp_path)
    assert "0 jobs" in page
    assert "<table" not in page
