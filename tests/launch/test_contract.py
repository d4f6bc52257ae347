"""The one contract of all doors: the same training, told in the same files, with nothing left behind or open.

One launch through each door is made for all tests.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import yaml
from support.commands import SMALL_WITH_EXPORT, TRAIN, start, torchrun
from support.ports import Stranger

if TYPE_CHECKING:
    from support.commands import Ended
    from support.ports import Listener

pytestmark = pytest.mark.spawn

ITERATIONS = 3

DOORS = {
    "in process": (TRAIN, ()),
    "spawned": (TRAIN, ("--nproc-per-node", "2")),
    "joined": (torchrun(2), ()),
    "joined alone": (torchrun(1), ()),
}
"""The words and the flags that lead through each door."""


RARELY = {"joined alone"}
"""What CI leaves out for its time; `make test-soak` has it."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(door, marks=pytest.mark.soak) if door in RARELY else door for door in DOORS],
)
def door(request: pytest.FixtureRequest) -> str:
    """Each door in turn."""
    return request.param


_heard_on: dict[str, set[Listener]] = {}


@pytest.fixture(scope="module")
def launch(door: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """A training of three iterations through a door."""
    command, flags = DOORS[door]
    where = tmp_path_factory.mktemp(door.replace(" ", "_"))
    task_and_length = ("Cartpole-Swingup", "--max-iterations", str(ITERATIONS))
    # Ranks of one machine meet on loopback, whatever interface the shell names: gloo would fail on this one.
    running = start(
        (*command, *task_and_length, *SMALL_WITH_EXPORT, *flags), where, {"GLOO_SOCKET_IFNAME": "shoal-none0"}
    )
    with Stranger(running.mark) as onlooker:
        ended = running.end()
    # torchrun's own process keeps a store, which is not ours.
    not_ours = {running.process.pid} if command != TRAIN else set[int]()
    _heard_on[door] = {listener for listener in onlooker.seen if listener.pid not in not_ours}
    return ended


@pytest.fixture
def heard_on(door: str, launch: Ended) -> set[Listener]:
    """What the processes of that training listened on, but for torchrun's own."""
    assert launch.code == 0
    return _heard_on[door]


WORKERS = {"in process": 1, "spawned": 2, "joined": 2, "joined alone": 1}


def test_it_ends_with_zero(launch: Ended) -> None:
    assert launch.code == 0, launch.stdout + launch.stderr


def test_nothing_outlives_it(launch: Ended) -> None:
    assert launch.left_processes == []
    assert launch.left_files == []


def test_there_is_one_run_directory(launch: Ended) -> None:
    assert len(launch.runs) == 1
    assert launch.run.parent.name == "Cartpole-Swingup"


def test_the_run_directory_holds_what_the_design_says_and_nothing_else(launch: Ended, door: str) -> None:
    names = sorted(path.name for path in launch.run.iterdir() if not path.name.startswith("events.out.tfevents."))
    torchrunx = ["torchrunx"] if door == "spawned" else []
    assert names == ["checkpoints", "exports", "lock", "metrics.jsonl", "params", "ranks", "run.json", *torchrunx]


def test_there_is_one_row_of_metrics_for_each_iteration(launch: Ended) -> None:
    assert [row["iteration"] for row in launch.rows] == [1, 2, 3]


def test_metrics_count_the_steps_of_all_ranks(launch: Ended, door: str) -> None:
    steps = 16 * 8 * WORKERS[door]
    assert [row["Train/total_steps"] for row in launch.rows] == [steps, 2 * steps, 3 * steps]


def test_the_only_checkpoint_is_of_the_end_and_whole(launch: Ended, door: str) -> None:
    (checkpoint,) = (launch.run / "checkpoints").iterdir()
    manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    assert (checkpoint.name, manifest["world_size"]) == ("000003", WORKERS[door])
    assert (checkpoint / "model.pt").stat().st_size == manifest["files"]["model.pt"]["bytes"]


def test_parameters_are_plain_yaml(launch: Ended) -> None:
    params = launch.run / "params"
    told = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in params.iterdir()}
    assert told["train.yaml"]["max_iterations"] == 3
    assert told["env.yaml"] == {name: told["train.yaml"][name] for name in ("task", "env")}
    assert told["agent.yaml"] == {name: told["train.yaml"][name] for name in ("task", "agent")}


def test_tensorboard_reads_every_metric_once_an_iteration(launch: Ended) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = launch.run.glob("events.out.tfevents.*")
    accumulator = EventAccumulator(str(events)).Reload()
    rewards = [row["Loss/value"] for row in launch.rows]
    assert [event.step for event in accumulator.Scalars("Loss/value")] == [1, 2, 3]
    assert [event.value for event in accumulator.Scalars("Loss/value")] == pytest.approx(rewards)


def test_all_ranks_end_with_the_same_fingerprint(launch: Ended, door: str) -> None:
    digests = launch.record["ended"]["digests"]
    assert sorted(digests) == [str(rank) for rank in range(WORKERS[door])]
    assert len(set(digests.values())) == 1
    assert len(next(iter(digests.values()))) == 16


def test_the_record_tells_what_was_planned_and_how_it_ended(launch: Ended, door: str) -> None:
    plan, ended = launch.record["plan"], launch.record["ended"]
    assert (plan["launch_mode"], plan["world_size"]) == (door.partition(" alone")[0], WORKERS[door])
    assert plan["seeds"] == [42 + rank for rank in range(WORKERS[door])]
    assert (ended["exit_code"], ended["last_line"]) == (0, "finished")


def test_every_rank_leaves_a_note_that_it_is_done(launch: Ended, door: str) -> None:
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((launch.run / "ranks").iterdir())]
    assert [(note["rank"], note["ending"]) for note in notes] == [(rank, "done") for rank in range(WORKERS[door])]


def test_it_says_first_what_it_does_and_where(launch: Ended, door: str) -> None:
    headline, place, *_ = launch.stdout.splitlines()
    workers = "2 workers" if WORKERS[door] == 2 else "1 worker"
    assert headline.startswith(f"Training Cartpole-Swingup: {workers} on cpu")
    assert place == f"Run directory: {launch.run}"


def test_no_line_is_printed_twice(launch: Ended) -> None:
    repeated = [line for line, count in Counter(launch.stdout.splitlines()).items() if line.strip() and count > 1]
    assert repeated == []


def test_progress_is_told_to_the_last_iteration(launch: Ended) -> None:
    told = [line for line in launch.stdout.splitlines() if line.startswith("[3/3] mean reward ")]
    assert len(told) == 1
    assert launch.stdout.splitlines()[-1].endswith(f"Run directory: {launch.run}")


def test_nothing_is_complained_about(launch: Ended) -> None:
    # Another test may be compiling kernels into the same cache.
    assert [line for line in launch.stderr.splitlines() if "is compiling Warp kernels" not in line] == []


def test_the_rank_files_are_named_as_torchrunx_names_them(launch: Ended, door: str) -> None:
    files = sorted(launch.run.glob("torchrunx/*/*"))
    expected = ["localhost[0].log", "localhost[1].log"] if door == "spawned" else []
    assert [path.name for path in files] == expected


def test_behind_no_door_does_a_worker_listen_to_the_network(door: str, heard_on: set[Listener]) -> None:
    # torchrun's own store does, and is excepted: `docs/security.md` says how to fence it.
    assert [listener for listener in heard_on if not listener.is_local] == []
    workers = {"in process": 0, "spawned": 2, "joined": 2, "joined alone": 0}
    assert len({listener.pid for listener in heard_on}) == workers[door]


def test_rank_0_exports_the_policy_once(launch: Ended) -> None:
    exports = launch.run / "exports"
    assert sorted(path.name for path in exports.iterdir()) == ["policy.onnx", "policy.pt2"]
    assert "not exported" not in launch.stdout + launch.stderr
