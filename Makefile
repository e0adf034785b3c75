# `make demo` and `make test` need Python 3.10+ and nothing else: they create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint proof speed clean

demo: $(STAMP)
	$(BIN)/rl-training demo

test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

proof: $(STAMP)
	$(BIN)/python benchmarks/proof.py

speed: $(STAMP)
	$(BIN)/python benchmarks/speed.py

# torch comes first and pinned, so that no other package pulls a build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
