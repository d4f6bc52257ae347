"""The doctor's checks of versions, cores, GPUs and links, on machines that are not there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.fake_devices import GIB, gpu_uuid, seen

from shoal import __version__, doctor
from shoal.checks.findings import Finding, note, ok, problem
from shoal.config import DoctorConfig
from shoal.doctor import CHECKS, Diagnosis, _findings_of, node
from shoal.doctor import context as context_module
from shoal.doctor.context import DoctorContext
from shoal.errors import MachineBusyError, UsageError
from shoal.machine import gpu_health
from shoal.machine.gpu_health import GpuState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
GOOD = {"torch": "2.15.0+cu132", "torchrunx": "0.4.0", "warp-lang": "1.19.0", "rsl-rl-lib": "5.5.1", "mujoco": "4.0.0"}
FACTS = {
    "torch": "2.15.0",
    "cuda": "13.2",
    "gloo": True,
    "nccl": "2.28.3",
    "device_count": 2,
    "problem": None,
    "peers": [],
}
OLD_DRIVER = (
    "The NVIDIA driver is 550.54.14, which supports CUDA 12.4, but CUDA 13 is needed by torch (built with CUDA 13.2): "
    "install driver 580 or newer, or pass --gpu-ids None to use the CPU."
)


def context_of(visible: int = 0, environ: dict[str, str] | None = None, **config: Any) -> DoctorContext:
    """An examination of a machine with so many GPUs."""
    return DoctorContext(config=DoctorConfig(**config), environ=environ or {}, gpus=seen(visible), log=lambda _: None)


def with_torch(context: DoctorContext, torch: dict[str, Any] | str) -> DoctorContext:
    """The same examination, with the result of `probe_torch`."""
    context.__dict__["torch"] = torch
    return context


def sentences(found: Iterable[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.sentence) for finding in found]


# Software ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "level"), [((3, 10), "problem"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "problem")]
)
def test_python_has_a_range(release: tuple[int, int], level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "sys", SimpleNamespace(version_info=(*release, 0), executable="python"))
    (finding,) = node.python(context_of())
    assert finding.level == level
    if level == "problem":
        assert finding.sentence == (
            f"Shoal needs Python 3.11 to 3.13, and this is 3.{release[1]}: install it with one of them."
        )


def test_this_python_is_in_the_range() -> None:
    assert [level for level, _ in sentences(node.python(context_of()))] == ["ok"]


def packages_with(monkeypatch: pytest.MonkeyPatch, **releases: str | None) -> list[tuple[str, str]]:
    """What is found of packages whose releases are good but for these."""
    monkeypatch.setattr(node, "installed_version", {**GOOD, **releases}.__getitem__)
    return sentences(node.packages(context_of()))


@pytest.mark.parametrize(
    ("name", "release", "sentence"),
    [
        (
            "rsl-rl-lib",
            "5.4.2",
            (
                "rsl-rl-lib is 5.4.2, but observation normalisers differ between ranks outside of "
                "'rsl-rl-lib>=5.5.1,<6': "
                "install 'rsl-rl-lib>=5.5.1,<6'."
            ),
        ),
        (
            "torchrunx",
            "0.5.0",
            (
                "torchrunx is 0.5.0, but spawned launches depend on what 0.4 does outside of 'torchrunx>=0.4,<0.5': "
                "install 'torchrunx>=0.4,<0.5'."
            ),
        ),
        ("mujoco", None, "mujoco is not installed: install 'mujoco>=4.0'."),
    ],
)
def test_a_release_that_is_known_to_be_bad_is_a_problem(
    name: str, release: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert packages_with(monkeypatch, **{name: release})[:-1] == [("problem", sentence)]


def test_good_releases_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "torch 2.15.0+cu132, torchrunx 0.4.0, warp-lang 1.19.0, rsl-rl-lib 5.5.1, mujoco 4.0.0."
    assert packages_with(monkeypatch) == [("ok", f"shoal {__version__}, {listed}")]
    assert [level for level, _ in packages_with(monkeypatch, **{"rsl-rl-lib": "5.10.0", "torch": "3.0"})] == ["ok"]


def test_commands_that_another_package_has_replaced_are_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As mjlab, which brings the model of a robot, replaces `train` and `play`."""
    assert [level for level, _ in sentences(node.commands(context_of()))] == ["ok"]
    monkeypatch.setattr(node.sysconfig, "get_path", lambda _: str(tmp_path))
    for name, package in {"train": "mjlab.scripts.train", "play": "mjlab.scripts.play", "evaluate": "shoal"}.items():
        (tmp_path / name).write_text(f"#!python\nfrom {package} import main\n", encoding="utf-8")
    ((level, sentence),) = sentences(node.commands(context_of()))
    assert level == "note"
    assert sentence.startswith(f"train and play in {tmp_path} are commands of another package: type `shoal train`")


def test_the_known_releases_are_those_that_are_installed_by_pyproject() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = {re.split(r"[><=]", each)[0]: each for each in settings["project"]["dependencies"]}
    for name, (first, after, _) in node.PACKAGES.items():
        assert asked[name] == f"{name}>={first}{f',<{after}' if after else ''}"


@pytest.mark.parametrize(
    ("found", "gpu_ids", "expected"),
    [
        (None, "auto", ("note", "NVIDIA driver: none (no NVIDIA driver was found): mend it.")),
        (None, "None", ("ok", "none (no NVIDIA driver was found).")),
        (("580.65.06", (13, 0)), "auto", ("ok", "580.65.06, which supports CUDA 13.0.")),
        (("550.54.14", (12, 4)), "auto", ("problem", OLD_DRIVER)),
        (("550.54.14", (12, 4)), "None", ("note", OLD_DRIVER)),
    ],
)
def test_the_driver_matters_to_gpus(
    monkeypatch: pytest.MonkeyPatch,
    found: tuple[str, tuple[int, int] | None] | None,
    gpu_ids: str,
    expected: tuple[str, str],
) -> None:
    monkeypatch.setattr(gpu_health, "read_driver", lambda: found and gpu_health.Driver(*found))
    monkeypatch.setattr(gpu_health, "read_built_with", lambda: {"torch": (13, 2)})
    context = context_of(gpu_ids=(gpu_ids,))
    context = replace(context, gpus=replace(seen(1), problem=None if found else "no NVIDIA driver was found"))
    assert sentences(node.driver(context)) == [expected]


@pytest.mark.parametrize(
    ("facts", "config", "expected"),
    [
        ({}, {"gpu_ids": ("0", "1")}, []),
        (
            {"cuda": None},
            {},
            [("problem", "2 GPUs are visible, but this torch has no CUDA: install a torch with CUDA.")],
        ),
        (
            {"cuda": None},
            {"gpu_ids": ("None",)},
            [("note", "2 GPUs are visible, but this torch has no CUDA: install a torch with CUDA.")],
        ),
        (
            {"problem": "The NVIDIA driver on your system is too old (found version 11040)"},
            {},
            [
                (
                    "problem",
                    (
                        "torch cannot use CUDA (The NVIDIA driver on your system is too old (found version 11040)): "
                        "install a torch that fits the driver."
                    ),
                )
            ],
        ),
        (
            {"device_count": 1},
            {},
            [("note", "torch sees 1 GPUs, but the driver shows 2: report this, with the output of nvidia-smi -L.")],
        ),
        (
            {"gloo": False},
            {},
            [("problem", "this torch has no gloo, through which workers on the CPU talk: install another build.")],
        ),
    ],
)
def test_torch_is_held_against_the_gpus(
    facts: dict[str, Any], config: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    context = with_torch(context_of(2, **config), {**FACTS, **facts})
    assert [each for each in sentences(node.torch(context)) if each[0] != "ok"] == expected


def test_a_torch_that_cannot_be_imported_is_a_problem() -> None:
    context = with_torch(context_of(), "it left with exit code 1: ImportError: libcudart.so.13")
    assert sentences(node.torch(context)) == [
        (
            "problem",
            "torch cannot be imported (it left with exit code 1: ImportError: libcudart.so.13): reinstall it.",
        )
    ]


def test_variables_that_decide_something_are_sentences() -> None:
    found = sentences(node.variables(context_of(environ={"NCCL_DEBUG": "INFO", "RANK": "3", "HOME": "/root"})))
    assert found == [
        ("note", "RANK is set, but no launcher started this process: ignoring it."),
        ("ok", "NCCL_DEBUG=INFO."),
    ]


# The machine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "quota", "expected"),
    [
        (2, None, ("ok", "4 of 8 cores may be used; Xeon.")),
        (2, 4.5, ("ok", "4 of 8 cores may be used (a container's limit: 4.5); Xeon.")),
        (5, None, ("note", "4 of 8 cores may be used, and 5 workers will share them: pass fewer --nproc-per-node.")),
    ],
)
def test_workers_are_compared_with_cores(
    workers: int, quota: float | None, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "cpu_name", lambda: "Xeon")
    monkeypatch.setattr(node, "usable_cores", lambda: 4)
    monkeypatch.setattr(node, "cpu_quota", lambda: quota)
    monkeypatch.setattr(node.os, "cpu_count", lambda: 8)
    assert sentences(node.cores(context_of(nproc_per_node=workers))) == [expected]


@pytest.mark.parametrize("own", ["nowhere.invalid", "localhost"])
def test_a_machine_that_does_not_know_its_own_name_is_noted(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.platform, "node", lambda: own)
    loopback, name = node.network(context_of())
    assert (loopback.topic, loopback.level) == ("loopback", "ok")
    assert (name.topic, name.level) == ("host name", "ok" if own == "localhost" else "note")


def test_few_open_files_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node.resource, "getrlimit", lambda _: (64, 4096))
    assert sentences(node.open_files(context_of())) == [
        ("note", "A process may open 64 files only: raise the limit, as by `ulimit -n 4096`.")
    ]


def test_a_log_root_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "logs").touch()
    found = sentences(_findings_of(node.task, context_of(log_root=str(tmp_path / "logs"))))
    assert found == [
        (
            "problem",
            (
                f"--log-root asks for {tmp_path}/logs/Cartpole-Swingup, but {tmp_path}/logs is no directory: "
                "pass a directory that you can write to."
            ),
        )
    ]


def test_a_tasks_training_is_held_against_the_machine(tmp_path: Path) -> None:
    context = context_of(task="Cartpole-Swingup", gpu_ids=("None",), nproc_per_node=4, log_root=str(tmp_path))
    found = sentences(node.task(context))
    assert found[0] == ("ok", "Cartpole-Swingup: 4 workers on cpu, 512 environments each.")
    assert any("a checkpoint takes at least 102 KiB" in sentence for _, sentence in found)


# GPUs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "config", "devices"),
    [
        (0, {}, ("cpu", "cpu")),
        (0, {"nproc_per_node": 1}, ("cpu",)),
        (3, {}, ("cuda:0", "cuda:1", "cuda:2")),
        (3, {"gpu_ids": ("None",)}, ("cpu", "cpu")),
        (3, {"gpu_ids": ("2", "0")}, ("cuda:2", "cuda:0")),
        (2, {"nproc_per_node": 1}, ("cuda:0",)),
        (2, {"nproc_per_node": 3}, ("cuda:0", "cuda:1", "cuda:0")),
        (1, {"gpu_ids": ("1",)}, ()),
    ],
)
def test_flags_decide_the_devices(visible: int, config: dict[str, Any], devices: tuple[str, ...]) -> None:
    assert context_of(visible, **config).devices == devices


def test_gpus_that_cannot_be_had_are_a_problem_and_not_the_end() -> None:
    found = sentences(node.gpus(context_of(0, gpu_ids=("0",))))
    level, sentence = found[0]
    assert level == "problem"
    assert sentence.startswith("GPU 0 was asked for, but no GPU is visible")
    assert len(found) == 2


def test_every_visible_gpu_is_reported_and_the_wanted_ones_are_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = [
        GpuState(index=index, name="NVIDIA H200", uuid=gpu_uuid(index), problem="GPU is lost") for index in range(2)
    ]
    monkeypatch.setattr(gpu_health, "read_gpu_states", lambda gpus: tuple(lost[gpu.index] for gpu in gpus))
    context = context_of(2, gpu_ids=("1",), log_root=str(tmp_path))
    assert [(finding.topic, finding.level) for finding in node.gpus(context)] == [
        *(("devices", "ok"), ("GPU 0", "ok"), ("GPU 1", "ok"))
    ]
    judged = [(finding.topic, finding.level) for finding in node.task(context)]
    assert [each for each in judged if each[0].startswith("GPU")] == [("GPU 1", "problem")]


def test_a_gpu_is_described_in_one_line() -> None:
    state = GpuState(index=0, name="NVIDIA H200", uuid=gpu_uuid(0))
    assert node.describe(state) == "NVIDIA H200"
    full = replace(
        state,
        uuid="MIG-1",
        free_bytes=GIB,
        total_bytes=2 * GIB,
        holders="python (process 7)",
        temperature_c=34,
        uncorrected_errors=0,
        compute_mode="exclusive process",
    )
    assert node.describe(full) == (
        "NVIDIA H200, 1.0 GiB of 2.0 GiB free, used by python (process 7), 34 °C, 0 uncorrected memory errors, "
        "compute mode exclusive process, a MIG device"
    )


@pytest.mark.parametrize(
    ("access", "peers", "expected"),
    [
        ("ok", [[0, 1], [1, 0]], []),
        ("ok", None, []),
        (None, [], []),
        (
            "ok",
            [[0, 1]],
            [
                (
                    "note",
                    (
                        "GPUs 0 and 1 have peer access by the driver, but not by torch: "
                        "set NCCL_P2P_DISABLE=1 if NCCL hangs."
                    ),
                )
            ],
        ),
        (
            "it is not supported",
            [],
            [
                (
                    "note",
                    "GPUs 0 and 1 have no peer access (it is not supported): gradients go through the host's memory.",
                )
            ],
        ),
    ],
)
def test_gpus_that_do_not_reach_each_other_are_noted(
    access: str | None, peers: list[list[int]] | None, expected: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = (*seen(2).gpus, "PIX", access)
    monkeypatch.setattr(gpu_health, "read_gpu_links", lambda wanted: (link,) * (len(wanted) - 1))
    context = with_torch(context_of(2), "it was not found" if peers is None else {"peers": peers})
    found = sentences(node.links(context))
    assert found[:-1] == expected
    assert found[-1] == ("ok", f"GPUs 0 and 1: PIX, peer access {access or 'unknown'}.")


@pytest.mark.parametrize(
    ("answer", "level"),
    [
        ({"right": True, "why_not_captured": None, "loaded_s": 1.0}, "ok"),
        ({"right": True, "why_not_captured": "no memory pools", "loaded_s": 1.0}, "problem"),
        ({"right": False, "why_not_captured": None, "loaded_s": 1.0}, "problem"),
        ("killed by SIGSEGV", "problem"),
    ],
)
def test_a_kernel_that_does_not_run_is_a_problem(answer: dict[str, Any] | str, level: str) -> None:
    context = context_of(1)
    context.__dict__["probes"] = {"cuda:0": SimpleNamespace(result=lambda: answer)}
    (finding,) = node.kernels(context)
    assert (finding.level, finding.topic) == (level, "kernel on cuda:0")


# The whole --------------------------------------------------------------------------------------------------------


def test_notes_do_not_fail_an_examination() -> None:
    assert Diagnosis((ok("a", "x"), note("b", "y"))).error is None


def test_a_problem_ends_the_command_with_two() -> None:
    error = Diagnosis((problem("a", "it is lost", "reset it"), problem("b", "y", "z", transient=True))).error
    assert isinstance(error, UsageError)
    assert error.exit_code == 2
    assert str(error) == "Training would not work as asked (2 problems). The first: it is lost: reset it."


def test_problems_that_may_pass_by_end_the_command_with_seventy_five() -> None:
    error = Diagnosis((problem("a", "it is taken", "wait", transient=True),)).error
    assert isinstance(error, MachineBusyError)
    assert error.exit_code == 75
    assert str(error) == "Training would not work now (1 problem that may pass by). The first: it is taken: wait."


def test_a_check_that_fails_is_a_problem_and_the_others_go_on() -> None:
    def broken(_context: DoctorContext) -> Iterator[Finding]:
        yield ok("first", "x")
        message = "half a thought"
        raise ValueError(message)

    assert sentences(_findings_of(broken, context_of())) == [
        ("ok", "x."),
        ("problem", "The check 'broken' failed (ValueError: half a thought): please report it, with this line."),
    ]


def test_a_refusal_is_a_finding_in_its_own_words() -> None:
    def refusing(_context: DoctorContext) -> Iterator[Finding]:
        yield ok("a", "x")
        raise UsageError("The task cannot be had: take another one.")

    assert sentences(_findings_of(refusing, context_of()))[1] == (
        "problem",
        "The task cannot be had: take another one.",
    )


def test_without_a_place_for_temporary_files_the_other_checks_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_place(*_: object) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(context_module, "Probe", no_place)
    monkeypatch.setattr(doctor, "CHECKS", (node.language, node.kernels))
    found = doctor.examine(DoctorConfig(gpu_ids=("None",)), {}, lambda _: None).findings
    assert [finding.topic for finding in found] == ["locale", "kernels"]
    assert "No usable temporary directory found" in found[1].truth


def test_what_two_checks_find_is_one_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(_context: DoctorContext) -> Iterator[Finding]:
        yield problem("driver", "it is too old", "update it")

    monkeypatch.setattr(doctor, "CHECKS", (check, check))
    monkeypatch.setattr(DoctorContext, "probes", {})
    assert len(doctor.examine(DoctorConfig(), {}, lambda _: None).findings) == 1


def test_every_check_says_what_it_looks_at() -> None:
    assert [check.__name__ for check in CHECKS if not check.__doc__] == []


def test_the_page_has_every_line() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    sources = [*(ROOT / "src/shoal/doctor").glob("*.py"), *(ROOT / "src/shoal/checks").glob("*.py")]
    calls = [
        node for source in sources for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)
    ]
    finders = [call for call in calls if ast.unparse(call.func) in {"ok", "note", "problem"}]
    topics = {call.args[0].value for call in finders if isinstance(call.args[0], ast.Constant)}
    assert {"python", "loopback", "memory", "links"} <= topics
    assert [topic for topic in topics if f"`{topic}" not in page] == []


def test_the_doctor_itself_imports_nothing_heavy() -> None:
    script = "import sys, shoal.doctor; print([name for name in ('torch', 'warp', 'mujoco') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
