"""rsl_rl's distillation as a learner: a student that acts, and learns the actions of a teacher that is not trained."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from rsl_rl import algorithms

from shoal.learn.learner import does_not_fit
from shoal.learn.rsl_rl.learner import RslRlLearner


class Distillation(algorithms.Distillation):
    """Distillation whose recurrent teacher remembers: the library's forgets with each update."""

    rnd = None

    def update(self) -> dict[str, float]:
        """Learn from the rollout; return the mean loss. The teacher is not run, and keeps its memory."""
        memory = self.teacher.get_hidden_state()
        losses = super().update()
        self.teacher.reset(hidden_state=memory)
        return losses


class DistillationLearner(RslRlLearner):
    """The student is the policy. A checkpoint holds the teacher too, so that training goes on without its run."""

    alg: Any
    networks: ClassVar[tuple[str, ...]] = ("student", "teacher")
    algorithms: ClassVar[Mapping[str, type]] = {"Distillation": Distillation}

    @property
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """Student and teacher, as they were before they were compiled."""
        return {name: getattr(self.alg, f"_raw_{name}") for name in self.networks}

    def restore(self, state: Mapping[str, Any], *, weights_only: bool) -> None:
        """Restore a saved state. Of PPO's the actor becomes the teacher, and nothing else is taken."""
        parts = {"teacher": True}
        if "actor_state_dict" not in state:
            parts |= {"student": True, "optimizer": not weights_only}
        with does_not_fit(self.modules, state):
            self.alg.load(dict(state), parts, strict=True)

    def put_env_rows(self, rows: Mapping[str, torch.Tensor], num_envs: int) -> None:
        """Restore the memory of the first environments, which is also where the next update begins."""
        super().put_env_rows(rows, num_envs)
        self.alg.last_hidden_states = (self.alg.student.get_hidden_state(), None)
