# Thin: every recipe is a command that could be typed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow check clean

# One thread: with two beside another job on the same cores, torch ran ten times slower.
demo test test-slow: export OMP_NUM_THREADS := 1

demo: $(VENV)/.installed-study
	$(BIN)/arl demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "slow and not gpu"

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# The stamp says which extra is installed; it is renewed when the dependencies may have changed.
$(VENV)/.installed-%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@
