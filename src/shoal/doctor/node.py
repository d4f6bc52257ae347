"""Checks of this node: software, cores, names, what `train` checks, GPUs, their links, a kernel on each device."""

import locale
import os
import platform
import re
import resource
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from shoal import __version__
from shoal.checks.findings import Finding, note, ok, problem, problem_of
from shoal.checks.preflight import check_loopback, findings_of, wanted_gpus
from shoal.checks.resources import check_driver
from shoal.doctor.context import DoctorContext, training_of
from shoal.envs.mjlab_spec import problem_of_mjlab
from shoal.errors import UsageError
from shoal.machine import gpu_health
from shoal.machine.gpu_health import GpuState
from shoal.machine.host import cpu_name, cpu_quota, usable_cores, why_unresolved
from shoal.plan.ranks import stale_rank_note
from shoal.plan.training import plan_training
from shoal.provenance import installed_version
from shoal.text import size

PYTHONS = ((3, 11), (3, 14))
"""The first release of Python that works, and the first later one that does not."""

PACKAGES: dict[str, tuple[str, str | None, str]] = {
    "torch": ("2.8", None, "Shoal is not tested with it"),
    "torchrunx": ("0.4", "0.5", "spawned launches depend on what 0.4 does"),
    "warp-lang": ("1.19", None, "it cannot record steps on the CPU"),
    "rsl-rl-lib": ("5.5.1", "6", "observation normalisers differ between ranks"),
    "mujoco": ("4.0", None, "it has no batch of simulations"),
}
"""For each package: the first release that works, the first later one that does not, and why not."""

_ENVIRONMENT = ("CUDA_", "NCCL_", "GLOO_", "WARP_", "OMP_", "TORCHRUNX_", "TORCH_NCCL_")
_FEW_FILES = 256
"""Open files below which a launch with sockets, logs and libraries hardly works."""


# Software -------------------------------------------------------------------------------------------------------------


def python(_context: DoctorContext) -> Iterator[Finding]:
    """Check the release of this interpreter."""
    (major, first), (_, after), release = *PYTHONS, sys.version_info[:2]
    if PYTHONS[0] <= release < PYTHONS[1]:
        yield ok("python", f"Python {platform.python_version()}, {sys.executable}, on {platform.platform()}")
    else:
        truth = f"Shoal needs Python {major}.{first} to {major}.{after - 1}, and this is {release[0]}.{release[1]}"
        yield problem("python", truth, "install it with one of them")


def packages(_context: DoctorContext) -> Iterator[Finding]:
    """Check the packages that Shoal depends on: whether they are installed, and known to work."""
    installed = [f"shoal {__version__}"]
    for name, (first, after, why) in PACKAGES.items():
        wanted = f"'{name}>={first}{f',<{after}' if after else ''}'"
        release = installed_version(name)
        if release is None:
            yield problem("packages", f"{name} is not installed", f"install {wanted}")
            continue
        installed.append(f"{name} {release}")
        if _numbers(release) < _numbers(first) or (after and _numbers(release) >= _numbers(after)):
            yield problem("packages", f"{name} is {release}, but {why} outside of {wanted}", f"install {wanted}")
    yield ok("packages", ", ".join(installed))


def commands(_context: DoctorContext) -> Iterator[Finding]:
    """Check that no package that was installed later has replaced commands by its own of the same name."""
    scripts = [Path(sysconfig.get_path("scripts"), name) for name in ("train", "play", "evaluate")]
    taken = [script.name for script in scripts if script.exists() and b"shoal" not in script.read_bytes()]
    if taken:
        truth = f"{' and '.join(taken)} in {scripts[0].parent} are commands of another package"
        yield note("commands", truth, "type `shoal train` and the like, or install Shoal again")
    else:
        yield ok("commands", f"train, play and evaluate in {scripts[0].parent} are Shoal's")


def mjlab(_context: DoctorContext) -> Iterator[Finding]:
    """Check that tasks of mjlab can be trained, where it is installed."""
    problem = problem_of_mjlab()
    if problem is None:
        yield ok("mjlab", f"mjlab {version('mjlab')}, with the versions that were tested")
    elif "mjlab is not installed" in problem:
        yield ok("mjlab", "not installed")
    else:
        truth, _, remedy = problem.rpartition(": ")
        yield note("mjlab", truth, remedy)


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a release, such as (5, 5, 1)."""
    return tuple(map(int, re.findall(r"\d+", re.match(r"[0-9.]*", release)[0])))  # pyright: ignore[reportOptionalSubscript]  It matches anything.


def driver(context: DoctorContext) -> Iterator[Finding]:
    """Check the driver, which only GPUs need."""
    wanted, found = "cpu" not in context.devices, list(check_driver())
    yield from found if wanted else map(Finding.as_note, found)
    if not found:
        none = f"none ({context.gpus.problem})" if context.gpus.problem else "none"
        yield note("driver", f"NVIDIA driver: {none}", "mend it") if wanted else ok("driver", none)


def verified(context: DoctorContext) -> Iterator[Finding]:
    """Report on which devices Shoal's own tests have run, see docs/gpu.md."""
    emulated = "Shoal's tests run on emulated GPUs, and its kernels are compiled for sm_75 to sm_120"
    remedy = "on another GPU, run `make test-gpu` in a clone, and report what fails"
    on_gpus = note("verified", f"{emulated}; of real GPUs one H200 has run them", remedy)
    yield on_gpus if context.uses_gpus else ok("verified", "all tests run on the CPU")


def torch(context: DoctorContext) -> Iterator[Finding]:
    """Check that torch can be imported, and supports what the workers need."""
    facts = context.torch
    if isinstance(facts, str):
        yield problem("torch", f"torch cannot be imported ({facts})", "reinstall it")
        return
    if facts["cuda"] is None and context.gpus:
        level = problem if context.uses_gpus else note
        truth = f"{len(context.gpus)} GPUs are visible, but this torch has no CUDA"
        yield level("torch", truth, "install a torch with CUDA")
    elif facts["problem"] is not None:
        yield problem("torch", f"torch cannot use CUDA ({facts['problem']})", "install a torch that fits the driver")
    elif context.uses_gpus and facts["device_count"] != len(context.gpus):
        truth = f"torch sees {facts['device_count']} GPUs, but the driver shows {len(context.gpus)}"
        yield note("torch", truth, "report this, with the output of nvidia-smi -L")
    if not facts["gloo"]:
        yield problem("torch", "this torch has no gloo, through which workers on the CPU talk", "install another build")
    versions = f"torch {facts['torch']}, CUDA {facts['cuda'] or 'none'}, NCCL {facts['nccl'] or 'not looked at'}"
    yield ok("torch", versions)


def language(_context: DoctorContext) -> Iterator[Finding]:
    """Check the locale: the output of ranks must be UTF-8."""
    encoding = locale.getpreferredencoding(do_setlocale=False)
    is_utf8 = encoding.upper().replace("-", "") == "UTF8"
    other = note("locale", f"The locale's encoding is {encoding}", "set LC_ALL=C.UTF-8")
    yield ok("locale", encoding) if is_utf8 else other


def variables(context: DoctorContext) -> Iterator[Finding]:
    """Report environment variables that libraries read."""
    stale = stale_rank_note(context.environ)
    if stale is not None:
        yield note("environment", stale.rstrip("."))
    values = [f"{name}={context.environ[name]}" for name in sorted(context.environ) if name.startswith(_ENVIRONMENT)]
    yield ok("environment", " ".join(values) or "nothing is set")


# Resources ------------------------------------------------------------------------------------------------------------


def cores(context: DoctorContext) -> Iterator[Finding]:
    """Compare workers with cores: each worker keeps one busy, on a GPU too."""
    workers, usable, quota = len(context.devices), usable_cores(), cpu_quota()
    truth = f"{usable} of {os.cpu_count() or 1} cores may be used"
    truth += f" (a container's limit: {quota:g})" if quota is not None else ""
    if workers > usable:
        yield note("cores", f"{truth}, and {workers} workers will share them", "pass fewer --nproc-per-node")
    else:
        yield ok("cores", f"{truth}; {cpu_name()}")


def open_files(_context: DoctorContext) -> Iterator[Finding]:
    """Check the limit of open files."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = note("open files", f"A process may open {soft} files only", "raise the limit, as by `ulimit -n 4096`")
    yield few if soft < _FEW_FILES else ok("open files", f"{soft} a process")


def task(context: DoctorContext) -> Iterator[Finding]:
    """Make the checks of `train`, for the named task or for what any task needs."""
    if not context.devices:
        return
    indices = tuple(dict.fromkeys(device.removeprefix("cuda:") for device in context.devices))
    gpu_ids = indices if context.uses_gpus else ("None",)
    config = training_of(context.config, gpu_ids=gpu_ids, nproc_per_node=len(context.devices))
    if context.config.task is None:
        config = replace(config, num_envs=1)
    plan = plan_training(config, context.environ, context.gpus)
    if context.config.task is not None:
        yield ok("task", f"{plan.spec.name}: {plan.workers}, {plan.config.num_envs:,} environments each")
    yield from findings_of(plan, context.environ, context.gpus)


def network(_context: DoctorContext) -> Iterator[Finding]:
    """Check loopback, by which workers of one machine communicate, and this machine's name, which several need."""
    yield check_loopback()
    name = platform.node()
    reason = why_unresolved(name)
    truth = f"This machine's own name, '{name}', does not resolve ({reason}), which several nodes need"
    yield note("host name", truth, "add it to /etc/hosts") if reason else ok("host name", f"{name} resolves")


def gpus(context: DoctorContext) -> Iterator[Finding]:
    """Report the devices of the workers and the visible GPUs. `train`'s own checks judge them."""
    if isinstance(context.workers, UsageError):
        yield problem_of("devices", context.workers)
    else:
        for each in context.workers.notes:
            yield note("devices", each.rstrip("."))
        yield ok("devices", f"{len(context.devices)} workers on {', '.join(dict.fromkeys(context.devices))}")
    if not context.gpus:
        reason = context.gpus.problem or "this machine has none, or CUDA_VISIBLE_DEVICES hides it"
        yield ok("GPUs", f"none is visible ({reason})")
    for state in gpu_health.read_gpu_states(context.gpus.gpus):
        yield ok(f"GPU {state.index}", describe(state))


def describe(state: GpuState) -> str:
    """Return the state of a GPU in one line."""
    parts = [state.name]
    if state.free_bytes is not None and state.total_bytes is not None:
        parts.append(f"{size(state.free_bytes)} of {size(state.total_bytes)} free")
    if state.holders:
        parts.append(f"used by {state.holders}")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c} °C")
    if state.uncorrected_errors is not None:
        parts.append(f"{state.uncorrected_errors} uncorrected memory errors")
    if state.compute_mode not in (None, "default"):
        parts.append(f"compute mode {state.compute_mode}")
    if state.is_mig:
        parts.append("a MIG device")
    return ", ".join(parts)


def links(context: DoctorContext) -> Iterator[Finding]:
    """Check the links between the wanted GPUs: whether each has direct access to the others."""
    peers = None if isinstance(context.torch, str) else context.torch["peers"]
    for one, other, path, access in gpu_health.read_gpu_links(wanted_gpus(context.devices, context.gpus)):
        pair = f"GPUs {one.index} and {other.index}"
        can = peers is None or ([one.index, other.index] in peers and [other.index, one.index] in peers)
        if access == "ok" and not can:
            truth = f"{pair} have peer access by the driver, but not by torch"
            yield note("links", truth, "set NCCL_P2P_DISABLE=1 if NCCL hangs")
        elif access not in (None, "ok"):
            yield note("links", f"{pair} have no peer access ({access}): gradients go through the host's memory")
        way = path or "the driver does not tell the way"
        yield ok("links", f"{pair}: {way}, peer access {access or 'unknown'}")


def kernels(context: DoctorContext) -> Iterator[Finding]:
    """Report whether a kernel ran on each device, each in a process of its own."""
    for device in dict.fromkeys(context.devices):
        topic, result = f"kernel on {device}", context.probes[device].result()
        if isinstance(result, str):
            truth = f"Warp could not run a kernel on {device} ({result})"
            yield problem(topic, truth, "mend the driver, or reinstall warp-lang")
        elif not result["right"]:
            yield problem(topic, f"A kernel on {device} computed something wrong", "do not trust this device")
        elif result["why_not_captured"]:
            truth = f"A step on {device} cannot be captured as a graph ({result['why_not_captured']})"
            yield problem(topic, truth, "update the driver, or train with --env.no-step-graph, which is much slower")
        else:
            yield ok(topic, f"ran, and was captured as a graph; loading it took {result['loaded_s']:.1f} s")
