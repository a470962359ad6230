# `make demo` and `make test` do all set-up on a fresh machine: Python 3.10+ is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check lint bench soak clean

demo: $(VENV)/.ready
	$(BIN)/tranlogs demo

test: $(VENV)/.ready
	$(MAKE) --no-print-directory check
	$(BIN)/python -m pytest

check lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.ready
	$(BIN)/python experiments/bench.py

soak: $(VENV)/.ready
	TRANLOGS_SOAK=1 $(BIN)/python -m pytest -m crash

$(VENV)/.ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[torch,experiments,dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info demo-run
