"""The commands: parse the arguments, run, print the result, and exit with the code of the outcome.

torch is imported inside the commands that need it, so that help and usage errors come at once.
"""

import errno
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from shoal import __version__
from shoal.cli import report
from shoal.cli.output import finish_output, mend_streams, release_output
from shoal.cli.start import ENDING
from shoal.config.checks import listed
from shoal.config.evaluate import CompareConfig, EvaluateConfig
from shoal.errors import InterruptedRunError, ShoalError, TerminatedRunError, UsageError, did_you_mean
from shoal.logs import configure_logging
from shoal.plan.evaluation import EvaluatePlan
from shoal.plan.job import Job
from shoal.plan.launch import LaunchPlan
from shoal.plan.launchers import launcher_of

_Command = Callable[[Sequence[str]], None]


def _shoal(words: Sequence[str]) -> None:
    if not words or words[0] in {"-h", "--help", "help"}:
        report.print_overview({name: summary for name, (summary, _) in _COMMANDS.items()})
        return
    if words[0] in {"-V", "--version"}:
        report.print_line(f"shoal {__version__}")
        return
    if words[0] not in _COMMANDS:
        gone = {"checkpoints": " `shoal runs RUN` lists a run's checkpoints."}
        hint = gone.get(words[0]) or did_you_mean(words[0], _COMMANDS)
        raise UsageError(f"There is no command 'shoal {words[0]}'.{hint} `shoal --help` lists the commands.")
    _COMMANDS[words[0]][1](words[1:])


def _train(words: Sequence[str]) -> None:
    from shoal.cli.parse import parse_train
    from shoal.commands.train import make_plan, train

    config = parse_train(words)
    plan = make_plan(config)
    _configure_logging(plan)
    if config.dry_run:
        if plan.leads:
            report.print_plan(plan, os.environ)
        return
    release_output()
    try:
        with report.training_view(plan, silent=not plan.leads) as view:

            def abort(error: ShoalError) -> NoReturn:
                view.close()
                _exit(error.exit_code, error)

            outcome = train(plan, view, abort)
    except (InterruptedRunError, TerminatedRunError) as error:
        if plan.leads:
            raise
        _exit(error.exit_code)  # Rank 0 prints the error.
    if plan.leads:
        report.print_outcome(outcome)


def _configure_logging(plan: LaunchPlan) -> None:
    """Log as this rank. Those that a launcher started share one terminal: only the first prints more than warnings."""
    configure_logging(rank=plan.rank.rank if plan.rank else None, level=None if plan.leads else logging.WARNING)


def _play(words: Sequence[str]) -> None:
    from shoal.cli.parse import parse_play
    from shoal.commands.play import play, show

    config = parse_play(words, program="play")
    if config.viewer is None:
        report.print_episodes(play(config))
        return
    try:
        show(config, report.print_line)
    except _Ended:
        raise
    except KeyboardInterrupt:  # Ends the viewer.
        report.print_line("Viewer closed.")


def _evaluate(words: Sequence[str]) -> None:
    if all(word in {"-h", "--help"} for word in words):
        report.print_usage("evaluate")
        report.print_line("Jobs of several tasks: `evaluate --jobs FILE`.")
        return
    from shoal.cli.evaluations import print_evaluation, print_evaluation_plan
    from shoal.cli.parse import parse_evaluate
    from shoal.commands.evaluate import make_plan, watch

    config, overrides = parse_evaluate(words)

    def run(config: EvaluateConfig, jobs: Sequence[Job] | None = None) -> None:
        plan = make_plan(config, overrides, jobs)
        if config.dry_run:
            if plan.leads:
                print_evaluation_plan(plan)
            return
        out, results = _run_jobs(plan)
        if plan.leads:
            print_evaluation(out, results, [job.name for job in plan.jobs])

    if config.watch is None:
        run(config)
    else:
        watch(config, overrides, run)


def _run_jobs(plan: EvaluatePlan) -> tuple[Path, dict[str, Any]]:
    """Run the jobs of a plan; return the directory of the results, and the results, which rank 0 alone has."""
    from shoal.cli.evaluations import evaluation_view
    from shoal.commands.evaluate import evaluate

    _configure_logging(plan)
    release_output()
    return evaluate(plan, evaluation_view(plan, silent=not plan.leads), _abort)


def _compare(words: Sequence[str]) -> None:
    from shoal.cli.evaluations import print_comparisons
    from shoal.cli.parse import parse_compare
    from shoal.commands.compare import compare, compare_policies
    from shoal.commands.evaluate import make_plan

    if all(word in {"-h", "--help"} for word in words):
        report.print_line("usage: shoal compare A B [flags]\n\nCompares two directories of results of `evaluate`.\n")
        report.print_usage("shoal compare", "A B")
        return
    config, overrides = parse_compare(words)
    if isinstance(config, CompareConfig):
        print_comparisons(compare(config), as_json=config.json)
        return
    comparison = compare_policies(
        config,
        overrides,
        lambda flags, jobs: _run_jobs(make_plan(flags, jobs=jobs))[0],
        lambda verdict: report.print_note(verdict.text),
    )
    print_comparisons([comparison], as_json=config.json)


def _sweep(words: Sequence[str]) -> None:
    from shoal.cli.flags import SweepFlags
    from shoal.cli.parse import parse_flags
    from shoal.cli.sweep import print_sweep, print_sweep_plan, sweep_view
    from shoal.commands.sweep import make_plan, refuse_failed, sweep

    config = parse_flags(SweepFlags, words, program="shoal sweep", about="sweep")
    plan = make_plan(config)
    _configure_logging(plan.launch)
    if config.dry_run:
        if plan.launch.leads:
            print_sweep_plan(plan)
        return
    release_output()
    rows = sweep(plan, sweep_view(plan, silent=not plan.launch.leads), _abort)
    if plan.launch.leads:
        print_sweep(plan, rows)
        refuse_failed(plan, rows)


def _export(words: Sequence[str]) -> None:
    from shoal.cli.parse import parse_export
    from shoal.commands.export import export

    report.print_exported(export(parse_export(words)))


def _replay(words: Sequence[str]) -> None:
    from shoal.cli.flags import ReplayFlags
    from shoal.cli.parse import parse_flags
    from shoal.cli.replayed import print_replayed
    from shoal.commands.replay import replay

    print_replayed(replay(parse_flags(ReplayFlags, words, program="shoal replay", about="replay")))


def _motion(words: Sequence[str]) -> None:
    from shoal.cli.flags import MotionFlags
    from shoal.cli.motion import print_motion
    from shoal.cli.parse import parse_flags
    from shoal.commands.motion import inspect_motion

    config = parse_flags(MotionFlags, words, program="shoal motion", about="motion")
    print_motion(inspect_motion(config), config)


def _runs(words: Sequence[str]) -> None:
    from shoal.cli.parse import parse_runs
    from shoal.cli.runs import print_checkpoints, print_runs
    from shoal.commands.checkpoints import verify
    from shoal.commands.runs import collect

    config = parse_runs(words)
    if config.run is None:
        print_runs(collect(config), as_json=config.json)
        return
    verified = verify(config.run, config.log_root)
    print_checkpoints(verified, as_json=config.json)
    if verified.error is not None:
        raise verified.error


def _convert(words: Sequence[str]) -> None:
    from shoal.cli.flags import ConvertFlags
    from shoal.cli.parse import parse_flags
    from shoal.commands.convert import convert

    config = parse_flags(ConvertFlags, words, program="shoal convert", about="convert")
    report.print_line("\n".join(convert(config).lines()))


def _tasks(words: Sequence[str]) -> None:
    if words and words[0] in {"-h", "--help"}:
        report.print_line("usage: shoal tasks\n\nLists the tasks. It takes no flags.")
        return
    if words:
        raise UsageError(f"`shoal tasks` lists what can be trained and takes no '{words[0]}': leave it out.")
    report.print_tasks()


def _bench(words: Sequence[str]) -> None:
    from shoal.bench import bench
    from shoal.cli.parse import parse_bench

    report.print_bench(bench(parse_bench(words), report.print_line))


def _check_env(words: Sequence[str]) -> None:
    from shoal.cli.parse import parse_check_env
    from shoal.commands.check_env import check

    checked = check(parse_check_env(words))
    report.print_env_report(checked)
    if checked.failed:
        raise ShoalError(f"{len(checked.failed)} of {len(checked.findings)} checks of {checked.config.task} failed.")


def _doctor(words: Sequence[str]) -> None:
    from shoal.cli.parse import parse_doctor
    from shoal.doctor import examine

    config = parse_doctor(words)
    diagnosis = examine(config, os.environ, report.print_note)
    report.print_diagnosis(diagnosis, as_json=config.json)
    if diagnosis.error is not None:
        raise diagnosis.error


def _completion(words: Sequence[str]) -> None:
    from shoal.cli.completion import SCRIPTS, candidates

    if words and words[0] == "candidates":
        sys.stdout.write("".join(f"{word}\n" for word in candidates(words[1:], _COMMANDS)))
    elif len(words) == 1 and words[0] in SCRIPTS:
        sys.stdout.write(SCRIPTS[words[0]])
    elif words and words[0] not in {"-h", "--help"}:
        raise UsageError(f"`shoal completion` has no script for '{words[0]}': pass {listed(SCRIPTS)}.")
    else:
        report.print_line("usage: shoal completion {bash,zsh,fish}\n\nPrints the completion script of a shell.")


def _of_a_task(program: str, command: _Command) -> _Command:
    """Return a command that prints its usage if no task is given: its flags depend on the task."""

    def run(words: Sequence[str]) -> None:
        if any(word not in {"-h", "--help"} for word in words):
            command(words)
        else:
            report.print_usage(program)

    return run


_COMMANDS: dict[str, tuple[str, _Command]] = {
    "train": ("train a policy", _of_a_task("train", _train)),
    "play": ("run episodes of a trained policy, and print their returns", _of_a_task("play", _play)),
    "evaluate": (
        "run many episodes of policies on all workers, and write statistics and a report",
        _evaluate,
    ),
    "sweep": ("train many configurations, which Optuna proposes, and print a table", _sweep),
    "compare": ("find out which of two policies, or of two evaluations, has the higher mean return", _compare),
    "export": ("write a trained policy as ONNX, and as a torch.export program", _of_a_task("shoal export", _export)),
    "replay": ("replay the steps after which an environment diverged", _replay),
    "motion": ("inspect, convert, cut and film a motion for motion tracking", _motion),
    "runs": ("list runs: state, steps, score, age, changed flags; verify the checkpoints of one", _runs),
    "convert": ("convert a checkpoint of rsl_rl, mjlab or Isaac Lab", _convert),
    "tasks": ("list the tasks", _tasks),
    "doctor": ("check that this machine can train, and print remedies", _doctor),
    "check-env": ("check environments of your own", _of_a_task("shoal check-env", _check_env)),
    "completion": ("print the completion script of bash, zsh or fish", _completion),
    "bench": ("measure environment and training steps per second", _of_a_task("shoal bench", _bench)),
}


def run(name: str) -> NoReturn:
    """Run `shoal`, or one of its commands that is installed by its own name, and exit with its code.

    If the code is not 0, the last line gives the reason.
    """
    # CUDA reads it when it is initialized. Workers, remote workers and the doctor's children inherit it.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        _raise_on_signals()
        mend_streams()
        command = _shoal if name == "shoal" else _COMMANDS[name][1]
        command(sys.argv[1:])
        sys.stdout.flush()
    except ShoalError as error:
        _exit(error.exit_code, error)
    except _Ended as error:
        # torchrun ends all ranks when one has failed, and that one has printed the reason.
        is_printed = launcher_of(os.environ) == "torchrun"
        _exit(TerminatedRunError.exit_code, "" if is_printed else TerminatedRunError(f"Ended by {error}."))
    except KeyboardInterrupt:
        _exit(InterruptedRunError.exit_code, ShoalError("Interrupted."))
    except BrokenPipeError:  # As in `shoal tasks | head`; rich exits with 1 then, too.
        _exit(1)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _exit(1, ShoalError(f"The output could not be written ({error.strerror}): make room, or write it elsewhere."))
    except RuntimeError as error:
        _, refused, reason = str(error).partition("can't allocate memory: ")  # Torch has no class for it on the CPU.
        if not refused:
            raise
        sizes = "the number of environments or episodes, networks or --agent.num-steps-per-env"
        _exit(1, ShoalError(f"There is not enough memory ({reason.partition('.')[0]}): make {sizes} smaller."))
    _exit(0)


class _Ended(KeyboardInterrupt):
    """A signal that ends this command; not an Exception, which libraries catch."""


def _raise_on_signals() -> None:
    """Raise signals as exceptions, as Ctrl-C is, so that the command ends its processes.

    A training replaces these handlers when it begins. A signal that is ignored stays ignored.
    """

    def end(number: int, _frame: object) -> None:
        raise _Ended(signal.Signals(number).name)

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else end)


def _exit(code: int, reason: ShoalError | str = "") -> NoReturn:
    """Print the reason, and end this process: the one way in which a command ends, from any thread.

    After a failure nothing may delay the end: no library thread that waits for a lost peer, no signal, no full pipe.
    """
    if threading.current_thread() is threading.main_thread():
        for number in ENDING if code else (signal.SIGHUP,):
            signal.signal(number, signal.SIG_IGN)
    if code:
        release_output()
    if isinstance(reason, ShoalError):
        report.print_error(reason)
    elif reason:
        sys.stderr.write(f"{reason}\n")
    if finish_output() and code == 0:
        sys.exit(0)
    os._exit(code)


def _abort(error: ShoalError) -> NoReturn:
    """End this process with an error, from any thread."""
    _exit(error.exit_code, error)
