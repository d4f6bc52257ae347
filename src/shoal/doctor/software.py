"""Checks of the software: Python, packages and their known-bad releases, torch and its CUDA, locale, environment."""

import locale
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from shoal import __version__
from shoal.checks.findings import Finding, note, ok, problem
from shoal.checks.gpu import check_driver
from shoal.doctor.context import DoctorContext
from shoal.envs.mjlab_spec import problem_of_mjlab
from shoal.machine import gpu_health
from shoal.machine.cuda_versions import read_built_with
from shoal.plan.ranks import stale_rank_note
from shoal.provenance import installed_version

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
    found, wanted = gpu_health.read_driver(), "cpu" not in context.devices
    if found is not None:
        yield check_driver(found, read_built_with(), wanted=wanted)
        return
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
        yield problem("torch", f"torch cannot be imported ({facts})", "install it anew")
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
