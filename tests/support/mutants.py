"""Break the learning code on purpose, a line at a time, and count which breaks the tests see.

    python tests/support/mutants.py                 all of them: an hour of one core
    python tests/support/mutants.py fast_sac grpo   those of files whose name has one of these words
    python tests/support/mutants.py --number 17     one of them, with the tests' output

Each mutant is one line of a file of `src/shoal`, in a copy. Exits with 1 if the tests see fewer than 95 in 100.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENOUGH = 0.95

OPTIMA = "tests/learn/test_known_optima.py"
TESTS: dict[str, tuple[str, ...]] = {
    "learn/fast_sac.py": (
        "tests/learn/test_fast_sac.py",
        "tests/learn/test_soft_actor_critics.py",
        f"{OPTIMA}",
        "-k",
        "not skrl and not rl_games and not grpo and not rsl_rl",
    ),
    "learn/replay.py": ("tests/learn/test_replay.py",),
    "learn/gradients.py": ("tests/learn/test_fast_sac.py", "tests/learn/test_ppo.py", "tests/learn/test_two_ranks.py"),
    "learn/returns.py": ("tests/learn/test_ppo.py",),
    "learn/grpo.py": ("tests/learn/test_grpo.py", OPTIMA, "-k", "grpo or advantage or loss"),
    "learn/skrl/learner.py": (
        "tests/learn/test_skrl.py",
        "tests/learn/test_soft_actor_critics.py",
        "tests/learn/test_learners.py",
        OPTIMA,
        "-k",
        "skrl and not jax or squashed",
    ),
    "learn/skrl/rollout.py": (
        "tests/learn/test_skrl.py",
        OPTIMA,
        "tests/learn/test_two_ranks.py",
        "-k",
        "skrl and not jax or advantages",
    ),
    "learn/training_env.py": ("tests/learn/test_health.py", OPTIMA, "-k", "not jax"),
    "learn/groups.py": ("tests/learn/test_two_ranks.py", "-k", "advantages"),
    "learn/rl_games/learner.py": ("tests/learn/test_learners.py", OPTIMA, "-k", "rl_games"),
    "learn/rsl_rl/ppo.py": ("tests/learn/test_ppo.py", "tests/learn/test_two_ranks.py"),
    "learn/rsl_rl/gaussian.py": ("tests/learn/test_ppo.py",),
    "learn/normalisers.py": ("tests/learn/test_ppo.py", "tests/learn/test_two_ranks.py"),
    "learn/statistics.py": (
        "tests/learn/test_statistics.py",
        "tests/learn/test_loop.py",
        "tests/learn/test_two_ranks.py",
        "-k",
        "not two_ranks or means",
    ),
    "learn/episodes.py": ("tests/jobs/test_episodes.py", "tests/learn/test_evaluation.py"),
    "jobs/statistics.py": ("tests/jobs/test_statistics.py",),
    "jobs/intervals.py": ("tests/jobs/test_intervals.py", "tests/jobs/test_comparison.py"),
    "jobs/comparison.py": ("tests/jobs/test_comparison.py",),
    "sim/bookkeeping.py": ("tests/sim/test_kernel_task.py", "tests/sim/test_bad_rewards.py", "tests/envs"),
    "sim/task.py": ("tests/envs/test_vec_env.py", "-k", "final"),
    "sim/kernel_task.py": ("tests/envs/test_vec_env.py", "-k", "final"),
    "learn/inference.py": ("tests/learn/test_soft_actor_critics.py",),
    "learn/evaluation.py": ("tests/learn/test_evaluation.py", "tests/learn/test_interval_evaluation.py"),
    "learn/rsl_rl/distillation.py": (OPTIMA, "tests/learn/test_distillation.py", "-k", "student or teacher"),
    "learn/rsl_rl/categorical.py": ("tests/envs/test_gymnasium_env.py",),
    "envs/gymnasium_env.py": ("tests/envs/test_gymnasium_env.py",),
    "docs": (OPTIMA, "-k", "actor_critic"),
}
"""The tests that look at a file, with pytest's arguments."""

MUTANTS: dict[str, list[tuple[str, str]]] = {
    "learn/fast_sac.py": [
        ("self.config.gamma * ~begins", "self.config.gamma * begins"),
        ("ended.new_zeros(2, self._num_envs)", "ended.new_ones(2, self._num_envs)"),
        ("torch.where(ended[-1], 0.0, sums[-1])", "torch.where(ended[-1], sums[-1], 0.0)"),
        (
            "self.scale.update(sums.view(-1, 1), self.world, *networks)",
            "self.scale.update(sums.view(-1, 1), self.world)",
        ),
        ("self._critic_gradients.clip(self.config.max_grad_norm)", "self._critic_gradients.clip()"),
        ("(batch.discounts * ~batch.terminated)", "(batch.discounts * batch.terminated)"),
        ("self.targets.atoms - self.temperature() * log_probs", "self.targets.atoms + self.temperature() * log_probs"),
        ("self.scale(batch.rewards).unsqueeze(1) + discounts", "self.scale(batch.rewards).unsqueeze(1) - discounts"),
        ("return -(target * logits.log_softmax", "return (target * logits.log_softmax"),
        ("detach() * log_probs - values).mean()", "detach() * log_probs + values).mean()"),
        ("detach() * log_probs - values).mean()", "detach() * -log_probs - values).mean()"),
        ("entropy = -log_probs.detach().mean()", "entropy = log_probs.detach().mean()"),
        ("self.temperature() * (entropy - self", "self.temperature() * (entropy + self"),
        ("self.temperature() * (entropy - self", "-self.temperature() * (entropy - self"),
        ("- log_std - 0.5 * math.log", "+ log_std - 0.5 * math.log"),
        ("gaussian = -0.5 * noise.square()", "gaussian = 0.5 * noise.square()"),
        ("(gaussian - slope).sum", "(gaussian + slope).sum"),
        ("raw = mean + log_std.exp() * noise", "raw = mean - log_std * noise"),
        ("return rewards / self.divisor", "return rewards * self.divisor"),
        ("probabilities * (places - lower)", "probabilities * (1 - places + lower)"),
        ("lower.long(), probabilities - upper_part", "lower.long(), probabilities"),
        ("list(critics.networks.parameters()), tau)", "list(critics.networks.parameters()), 0.0)"),
        ("torch.maximum(self.returns.std, self.largest", "torch.minimum(self.returns.std, self.largest"),
        ("env.step(self._actions * self.config.action_limit)", "env.step(self._actions / 4)"),
        ("self.updates % config.policy_delay == 0", "self.updates % config.policy_delay != 0"),
        ("low + 0.5 * (high - low) * (torch.tanh(raw) + 1)", "low + 0.5 * (high - low) * (torch.tanh(raw) - 1)"),
    ],
    "learn/replay.py": [
        ('"terminated": ended & ~cut}', '"terminated": ended & cut}'),
        ('"terminated": ended & ~cut}', '"terminated": ended}'),
        ("discounts * rewards.index_select(0, last), 0.0)", "rewards.index_select(0, last), 0.0)"),
        ("total + torch.where(goes_on", "total - torch.where(goes_on"),
        ("goes_on = ~ended.index_select(0, last)", "goes_on = ended.index_select(0, last)"),
        (" & (last // self.num_envs != newest)", ""),
        ("discounts * gamma, discounts)", "discounts, discounts)"),
        ('self._steps["terminated"].index_select(0, last)', 'self._steps["terminated"].index_select(0, rows)'),
        ("self.observations_of(self._next(last))", "self.observations_of(self._next(rows))"),
        ("torch.where((numbers >= 0)", "torch.where((numbers < 0)"),
        ("(rows + self.num_envs) %", "(rows + 1) %"),
        ("stored - num_steps + 1)", "stored - num_steps + 2)"),
        ("self._num_slots, self._most_new = capacity + 1,", "self._num_slots, self._most_new = capacity,"),
        ("torch.where(cut, numbers % self._num_finals, self._num_finals)", "numbers % self._num_finals"),
        ("torch.where(cut, numbers, -1)", "numbers"),
        ("in_use + self._most_new <= self._num_finals", "in_use <= self._num_finals"),
        ("self._next_number - in_use + torch", "self._next_number + torch"),
        ("(capacity // max_episode_length + 1)", "(capacity // max_episode_length)"),
        ("self._slot - number + torch", "self._slot - number - 1 + torch"),
    ],
    "learn/gradients.py": [
        ("for gradients, norm in zip(self._groups, largest", "for gradients, norm in zip([self._flat], largest"),
        (".clamp(max=1.0)", ".clamp(min=1.0)"),
    ],
    "learn/returns.py": [("factors[:-reach] * values[reach:]", "values[reach:]")],
    "learn/grpo.py": [
        ('"surrogate": -(weights * torch.min', '"surrogate": (weights * torch.min'),
        ("torch.min(ratio * advantages", "torch.max(ratio * advantages"),
        ("log_probs - samples", "samples"),
        ("torch.full_like(rewards, gamma)", "torch.full_like(rewards, -gamma)"),
        ("centred / (deviation + _EPSILON)", "-centred / (deviation + _EPSILON)"),
        ("centred / (deviation + _EPSILON)", "centred * (deviation + _EPSILON)"),
        ("- config.entropy_coef * losses", "+ config.entropy_coef * losses"),
        ("ratio.clamp(1 - self.config.clip_param, 1 + self.config.clip_param)", "ratio.clamp(1, 1)"),
        ("loss + config.kl_coef * losses", "loss - config.kl_coef * losses"),
        ("(difference.exp() - 1 - difference)", "(difference.exp() - 1 + difference)"),
        ('cumsum(dim=0) == rollout["ended"]', 'cumsum(dim=0) >= rollout["ended"]'),
    ],
    "learn/skrl/learner.py": [
        ('outputs["log_prob"] - slope.sum', 'outputs["log_prob"] + slope.sum'),
        ("+ math.log(self.limit)", "- math.log(self.limit)"),
        ("(observations - self.mean) / self.deviation", "(observations - self.mean) * self.deviation"),
        ("torch.tanh(actions) * self.limit", "actions * self.limit"),
        ("squares / counts - mean.square()", "squares / counts + mean.square()"),
    ],
    "learn/skrl/rollout.py": [
        ('"terminated": (ended & ~cut)', '"terminated": (ended & cut)'),
        ('"terminated": (ended & ~cut)', '"terminated": ended'),
        ('"truncated": cut', '"truncated": ended & ~cut'),
        ("rewards.unsqueeze(1).clone()", "-rewards.unsqueeze(1).clone()"),
        ('"next_observations": after["actor"]', '"next_observations": inputs["actor"]'),
        ('"next_states": after["critic"]', '"next_states": inputs["critic"]'),
        ("normalise(returns - named", "normalise(named"),
    ],
    "learn/training_env.py": [
        ("ended & extras[", "ended & ~extras["),
        ("else torch.zeros_like(ended)", "else ended"),
    ],
    "learn/groups.py": [
        ("(exact - mean) / (std", "(exact - mean) * (std"),
        ("(count - correction)", "(count + correction)"),
    ],
    "learn/rl_games/learner.py": [
        ("rewards.clone(), dones", "-rewards.clone(), dones"),
        ('{"time_outs": extras["time_outs"]}', '{"time_outs": ~extras["time_outs"].bool()}'),
        ('if "time_outs" in extras else {}', 'if "time_outs" not in extras else {}'),
    ],
    "learn/rsl_rl/ppo.py": [
        ("divergence > self.desired_kl * 2.0", "divergence < self.desired_kl * 2.0"),
        ("(rate / _RATE_FACTOR)", "(rate * _RATE_FACTOR)"),
        ("(divergence > 0.0) & ", ""),
        ("get_kl_divergence(batch.old_distribution_params, parameters)", "get_kl_divergence(parameters, parameters)"),
        ("normalised_over_ranks(advantages) if self.is_multi_gpu else", "_normalised(advantages) if True else"),
        ("- self.entropy_coef", "+ self.entropy_coef"),
        ("-advantages * clipped", "advantages * clipped"),
        ("self.lam * discounts", "discounts"),
        ("clip(self.max_grad_norm, self.max_grad_norm)", "clip(self.max_grad_norm)"),
        ("value=self.gamma", "value=1.0"),
    ],
    "learn/rsl_rl/gaussian.py": [("self.mean + ", "self.mean - ")],
    "learn/normalisers.py": [
        ("square - mean.square()", "square"),
        ("rate * (variance", "(variance"),
        ("dist.all_reduce(total)", "total.clone()"),
    ],
    "learn/statistics.py": [
        ("(ended.cumsum(dim=0) > 1)", "(ended.cumsum(dim=0) >= 1)"),
        ("torch.where(ended, self._zero, measured)", "measured"),
        ("next(values) / size for name in losses", "next(values) for name in losses"),
        ("logged.left_out.append(1 - weight)", "logged.left_out.append(weight - 1)"),
        ("tensor = torch.where(kept, tensor, self._zero)", "tensor = torch.where(~kept, tensor, self._zero)"),
        ("mean_square - mean_return**2", "mean_square + mean_return**2"),
        ("whole_return / whole_count", "whole_count / whole_return"),
        (
            "torch.where(ended.unsqueeze(1), torch.stack(self._measured)",
            "torch.where(~ended.unsqueeze(1), torch.stack(self._measured)",
        ),
    ],
    "learn/episodes.py": [
        ("self._returns += torch.where(running, rewards, 0.0)", "self._returns += rewards"),
        ("self._lengths += running", "self._lengths += 1"),
        ('"time out" if bool(self._time_out[row])', '"time out" if not bool(self._time_out[row])'),
        ("self.running = running & ~ended", "self.running = running"),
        ("self._divergences[row] > self._divergences_before[row]", "self._divergences[row] > 0"),
        ("again=step < within", "again=step <= within"),
    ],
    "jobs/statistics.py": [
        ("(1 + confidence) / 2", "confidence"),
        ("rate + squared / 2", "rate + squared"),
    ],
    "jobs/intervals.py": [
        ("count * math.log(rate) +", "count * math.log(rate) -"),
        ("- _log_beta(0.5, 0.5) + math.log(alpha)", "- _log_beta(0.5, 0.5) - math.log(alpha)"),
        ("known = np.concatenate([[0.25], variances[:-1]])", "known = variances"),
        ("np.log1p(-np.minimum", "np.log1p(np.minimum"),
        ("2 * math.log(2 / alpha) / (known", "math.log(2 / alpha) / (4 * known"),
        ("values > middle + _FAR * spread", "values > middle + 2 * _FAR * spread"),
        ("returns[:, 1] - returns[:, 0]", "returns[:, 0] - returns[:, 1]"),
        ("(most_down - self.down + self.up - least_up)", "(self.down - most_down + self.up - least_up)"),
        ("(most_up - self.up + self.down - least_down)", "0"),
        ("(math.log(scaled) / 2 - log_alpha)", "(math.log(scaled) / 2)"),
    ],
    "jobs/comparison.py": [
        ('"B" if low > 1 / 2 else "A" if high < 1 / 2', '"A" if low > 1 / 2 else "B" if high < 1 / 2'),
        ("((0, 1), (1, 0))", "((1, 0), (0, 1))"),
    ],
    "sim/bookkeeping.py": [
        ("or truncated[env]) and not failed", "or truncated[env])"),
        ("failed = terminated[env] or is_diverged", "failed = terminated[env]"),
        ("time_out[env] = cut_off", "time_out[env] = ended"),
        ("length >= max_episode_length", "length > max_episode_length"),
    ],
    "sim/task.py": [("(*(call for _, call in observing), *copies)", "copies")],
    "sim/kernel_task.py": [
        (
            '*self.final_stages([observing]),\n            ("reset", self.reset),',
            '("reset", self.reset),\n            *self.final_stages([observing]),',
        )
    ],
    "learn/inference.py": [
        ("(cut.unsqueeze(1), final[name], rows)", "(cut.unsqueeze(1), rows, final[name])"),
        ("(cut.unsqueeze(1), final[name], rows)", "(cut.unsqueeze(1), rows, rows)"),
    ],
    "learn/evaluation.py": [
        ('fmean(each["return"] for', 'sum(each["return"] for'),
        ("restart(EVALUATION_SEED)", "restart()"),
    ],
    "learn/rsl_rl/distillation.py": [
        ("self.teacher.reset(hidden_state=memory)", "self.teacher.reset()"),
        ('parts = {"teacher": True}', 'parts = {"student": True}'),
    ],
    "learn/rsl_rl/categorical.py": [
        ("(outputs * self._categorical.logits).sum", "(outputs * self._categorical.probs).sum"),
        ("return kl_divergence(old, new)", "return kl_divergence(new, old)"),
        ("self.mean * (1.0 - self.mean)", "self.mean * (1.0 + self.mean)"),
    ],
    "envs/gymnasium_env.py": [
        ("terminated | truncated", "terminated"),
        ("torch.from_numpy(truncated & ~terminated)", "torch.from_numpy(truncated)"),
        ("torch.from_numpy(truncated & ~terminated)", "torch.from_numpy(terminated & ~truncated)"),
        ("torch.where(dones, 0, self._lengths + 1)", "self._lengths + 1"),
        ("plain.clip(-1, 1) + 1) / 2 * (high - low)", "plain.clip(-1, 1) + 1) * (high - low)"),
        ("space.start + columns.argmax(axis=1)", "columns.argmax(axis=1)"),
        ('np.stack(infos["final_obs"][ended])', "observations[ended]"),
    ],
    "docs": [
        ("reward + self.gamma * values[-1].detach() *", "reward - self.gamma * values[-1].detach() *"),
        ("reward + self.gamma * values[-1].detach() * extras", "reward + 0 * extras"),
        ("value * goes for reward", "value for reward"),
        ("actor_loss = -(advantages", "actor_loss = (advantages"),
    ],
}


def main() -> None:
    """Try the mutants, and print a line for each and how many were seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="words of the names of files")
    parser.add_argument("--number", type=int, help="the only mutant to try")
    asked = parser.parse_args()
    numbered = enumerate(((file, *lines) for file, group in MUTANTS.items() for lines in group), start=1)
    chosen = [
        (number, *mutant)
        for number, mutant in numbered
        if asked.number in (None, number) and (not asked.words or any(word in mutant[0] for word in asked.words))
    ]
    seen = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "docs/examples", "tests", "pyproject.toml"):
            source, target = ROOT / name, copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, target)
        for number, file, old, new in chosen:
            began = time.monotonic()
            is_seen = try_mutant(copy, file, old, new, shows=asked.number is not None)
            seen += is_seen
            how = "seen" if is_seen else "MISSED"
            say(f"{number:3} {how:6} {time.monotonic() - began:5.0f} s  {file}: {old}  ->  {new}")
    say(f"{seen} of {len(chosen)} mutants seen.")
    sys.exit(seen < ENOUGH * len(chosen))


def try_mutant(copy: Path, file: str, old: str, new: str, *, shows: bool) -> bool:
    """Return whether the tests of a file fail with one line of it changed; the file is as before afterwards."""
    path = copy / ("docs/examples/actor_critic.py" if file == "docs" else f"src/shoal/{file}")
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        message = f"{file} has {old!r} {text.count(old)} times, not once: change the list of mutants."
        raise SystemExit(message)
    path.write_text(text.replace(old, new), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *TESTS[file]]
    variables = {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=copy, env=os.environ | variables, capture_output=not shows, check=False)
    path.write_text(text, encoding="utf-8")
    if done.returncode not in (0, 1):
        message = f"pytest ended with {done.returncode}: {(done.stdout or b'').decode()[-2000:]}"
        raise SystemExit(message)
    return done.returncode == 1


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
