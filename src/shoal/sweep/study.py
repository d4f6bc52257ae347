"""The study of a sweep in its directory: Optuna's proposals and pruning, and which process trains which trial.

A process that trains a trial holds the lock of the trial's run. The kernel drops it with the process, so that the trial
of a killed worker is free at once. Its state in the study stays `RUNNING`, with its parameters and reported scores.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from shoal.config.sweep import SweepFile
from shoal.files import Folder
from shoal.plan.rundir import RunDir
from shoal.reading import read_lines, refusing
from shoal.run_record import is_in_use, lock_run
from shoal.sweep.file import config_of, grid_of, is_whole, number_of_trials

End = Literal["finished", "pruned", "failed"]
_STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
_ENDS = {name: state for state, name in _STATES.items()}
_ITERATIONS, _ERROR = "iterations", "error"


class _JournalLock:
    """A lock on the journal itself, which ends with its process; Optuna's own stay for a while."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._opened: IO[bytes] | None = None

    def acquire(self) -> bool:
        self._opened = opened = Folder(self._journal.parent).open(self._journal, "r+")
        fcntl.flock(opened, fcntl.LOCK_EX)
        data = opened.read()
        if not data.endswith(b"\n"):  # A killed process, or a full disk, has left the line incomplete.
            opened.truncate(data.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        if self._opened is not None:
            self._opened.close()


@dataclass(slots=True)
class Trial:
    """A trial that this process trains."""

    study: optuna.Study
    trial: optuna.Trial
    run: RunDir
    parameters: dict[str, Any]
    reported: dict[int, float]
    """Score after each iteration for which there is one."""

    def report(self, iteration: int, score: float) -> bool:
        """Report the score after an iteration, unless an earlier attempt has; return whether to prune the trial."""
        if iteration in self.reported:
            return False
        self.reported[iteration] = score
        self.trial.report(score, iteration)
        return self.trial.should_prune()

    def end(self, end: End, iterations: int, error: str = "") -> None:
        """Record the end of the trial. Its score is the last one that was reported."""
        self.trial.set_user_attr(_ITERATIONS, iterations)
        self.trial.set_user_attr(_ERROR, error)
        score = self.reported[max(self.reported)] if end == "finished" else None
        self.study.tell(self.trial, score, _ENDS[end])


class SweepStudy:
    """The trials of a sweep, as all its processes see them."""

    def __init__(self, folder: Path, sweep: SweepFile) -> None:
        """Open the study in the sweep's directory, or make it."""
        self._folder, self._sweep = folder, sweep
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        journal = folder / "study.journal"
        if not journal.exists():  # Optuna would make it where a link leads.
            Folder(folder).open(journal, "a").close()
        backend = JournalFileBackend(str(journal), lock_obj=_JournalLock(journal))  # pyright: ignore[reportArgumentType]
        warmup = max(1, config_of(sweep, {}).max_iterations // 10)  # Returns of the first iterations say little.
        pruners = {
            "median": optuna.pruners.MedianPruner(n_warmup_steps=warmup),
            "asha": optuna.pruners.SuccessiveHalvingPruner(min_resource=warmup),
            "none": optuna.pruners.NopPruner(),
        }
        remedy = "give the sweep another name"
        with refusing(journal, remedy):
            for _ in read_lines(journal, {"op_code": int}, remedy):
                pass
            self._study = optuna.create_study(
                storage=JournalStorage(backend),
                study_name=sweep.name,
                direction=sweep.direction,
                pruner=pruners[sweep.pruner],
                load_if_exists=True,
            )

    @contextmanager
    def claim(self) -> Iterator[Trial | None]:
        """Lock a trial for the body: an unfinished one that no process trains, or else a new one; None without."""
        with ExitStack() as stack:
            # So that no more trials are made than were asked for.
            with Folder(self._folder).locked(self._folder / "trials"):
                trial = self._claim(stack)
            yield trial

    def _claim(self, stack: ExitStack) -> Trial | None:
        known = [each for each in self._study.get_trials(deepcopy=False) if each.state != TrialState.WAITING]
        for each in known:
            if each.state == TrialState.RUNNING and not is_in_use(self._run(each.number)):
                return self._lock(each.number, each, stack)
        if len(known) >= number_of_trials(self._sweep):
            return None
        return self._lock(len(known), None, stack)

    def _lock(self, number: int, earlier: FrozenTrial | None, stack: ExitStack) -> Trial:
        """Lock a trial, new or not, and get its parameters: a process may have been killed before it had all."""
        sweep, study = self._sweep, self._study
        # A sampler of its own for each trial: those of several processes would begin with the same random numbers.
        seed = sweep.seed + number
        if sweep.sampler == "tpe":  # Trials in training count as bad: workers would all propose nearly the same.
            study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        else:
            study.sampler = optuna.samplers.RandomSampler(seed)
        if earlier is None and sweep.sampler == "grid" and not study.get_trials(states=(TrialState.WAITING,)):
            grid = grid_of(sweep)[number].items()  # Optuna takes no lists, so choices are JSON.
            study.enqueue_trial(
                {name: json.dumps(value) if sweep.parameters[name].choices else value for name, value in grid}
            )
        trial = study.ask() if earlier is None else optuna.Trial(study, earlier._trial_id)  # noqa: SLF001  No other way.
        run = self._run(number)
        Folder(self._folder).make(run.path)
        lock_run(run, stack)
        return Trial(
            study=study,
            trial=trial,
            run=run,
            parameters={name: self._suggest(trial, name) for name in sweep.parameters},
            reported=dict(earlier.intermediate_values) if earlier else {},
        )

    def _run(self, number: int) -> RunDir:
        return RunDir(self._folder / "trials" / f"{number:04d}")

    def _suggest(self, trial: optuna.Trial, name: str) -> Any:  # noqa: ANN401
        """Return the value of a parameter in a trial, which is proposed where the trial has none yet."""
        parameter = self._sweep.parameters[name]
        if parameter.choices:
            return json.loads(trial.suggest_categorical(name, [json.dumps(each) for each in parameter.choices]))
        low, high = parameter.low or 0.0, parameter.high or 0.0
        if is_whole(self._sweep, name):
            return trial.suggest_int(name, int(low), int(high), step=int(parameter.step or 1), log=parameter.log)
        return trial.suggest_float(name, low, high, step=parameter.step, log=parameter.log)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each trial, the best one first: finished trials by their score, then pruned ones."""
        rows = [self.row(each) for each in self._study.get_trials(deepcopy=False) if each.state != TrialState.WAITING]
        sign = -1.0 if self._sweep.direction == "maximize" else 1.0
        order = [*_ENDS, "unfinished"]
        return sorted(rows, key=lambda row: (order.index(row["state"]), sign * (row["score"] or 0.0), row["trial"]))

    def row(self, trial: FrozenTrial) -> dict[str, Any]:
        """Return what is known about a trial."""
        parameters = {
            name: json.loads(value) if self._sweep.parameters[name].choices else value
            for name, value in trial.params.items()
        }
        last = trial.last_step
        return {
            "trial": trial.number,
            "state": _STATES.get(trial.state, "unfinished"),
            "score": None if last is None else trial.intermediate_values[last],
            "iterations": trial.user_attrs.get(_ITERATIONS, last or 0),
            "parameters": {name: parameters[name] for name in self._sweep.parameters if name in parameters},
            "error": trial.user_attrs.get(_ERROR, ""),
            "run": str(self._run(trial.number).path),
        }
