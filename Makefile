# `make demo` and `make test` need Python 3.10+ and nothing else: they create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed so far: torch, then the package with what the demo needs, then with what the tests need.
TORCH := $(VENV)/.installed-torch
PACKAGE := $(VENV)/.installed-package
DEV := $(VENV)/.installed-dev
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo help test test-all lint docs proof speed clean

demo: $(PACKAGE)  ## train PPO on CartPole-v1 and draw its learning curve (default)
	$(BIN)/rl-training demo

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

# Each process begins with one half, in order, and takes over tests from the other when it has done its own.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal --durations 10

test: $(DEV) lint  ## lint, types and the whole test suite
	$(PYTEST)

# Everything that takes longer: every variant of the tests that try a few by default, then the suite as on three other
# machines, each time in another random order (its seed is printed; `-p randomly --randomly-seed=SEED` repeats it).
test-all: $(DEV) lint  ## every variant of every test, then the suite on three imitated machines
	RL_TRAINING_TEST_ALL=1 $(PYTEST)
	ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 $(PYTEST) -p randomly
	ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41 $(PYTEST) -p randomly
	OMP_NUM_THREADS=1 $(PYTEST) -p randomly

lint: $(DEV)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DEV)  ## build the documentation site: docs/_build/html/index.html
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

proof: $(DEV)  ## train every preset on several seeds and write docs/results.md (hours)
	$(BIN)/python benchmarks/proof.py

speed: $(DEV)  ## measure training speed and write docs/speed.md; set PEER_PYTHON
	$(BIN)/python benchmarks/speed.py

# torch comes first and pinned, so that no other package pulls a build of several gigabytes.
$(TORCH): constraints.txt
	@echo "Making $(VENV) and installing torch (the largest download)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch
	@touch $@

$(PACKAGE): $(TORCH) pyproject.toml
	@echo "Installing rl-training with what the demo needs"
	$(BIN)/python -m pip install -c constraints.txt -e ".[plot]"
	@touch $@

# It contains what the demo needs, so that `make demo` after `make test` installs nothing.
$(DEV): $(TORCH) pyproject.toml
	@echo "Installing rl-training with what the tests need"
	$(BIN)/python -m pip install -c constraints.txt -e ".[dev]"
	@touch $(PACKAGE) $@

clean:  ## remove .venv and the caches
	rm -rf $(VENV) docs/_build .mypy_cache .ruff_cache .pytest_cache
