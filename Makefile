# `make demo` and `make test` do all set-up on a fresh machine: Python 3.10+ is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The oldest Keras that is supported: tests run it beside the newest.
OLDEST_KERAS := 3.13.2
# Processes that share the tests: they wait for disks and for dying children half of the time. Five were slower than three.
WORKERS ?= 3
# Bounds of `make soak`, whichever is reached first; the next one goes on with what is left (soak/tally.jsonl).
SOAK_MINUTES ?= 60
KILLS ?= 1000
# Of `make experiments`: names (default: all), --quick.
EXPERIMENTS ?=
# Of `make bench`: --quick.
BENCH ?=

.PHONY: demo test test-most test-beside test-ranks test-rest check lint docs alluxio bench experiments gpu-wheels soak clean

demo: $(VENV)/.usable
	$(BIN)/tranlogs demo

# Tests start hundreds of processes, which would compile the checkout each time.
test test-most test-ranks test-rest: export PYTHONDONTWRITEBYTECODE :=
# Threads of OpenMP that wait for each other would keep the processors from other tests.
test test-most test-ranks test-rest: export OMP_WAIT_POLICY := passive

test: $(VENV)/.ready
	$(MAKE) --no-print-directory --keep-going --jobs 4 test-most test-beside

test-most: $(VENV)/.ready
	$(BIN)/python -m pytest --durations=20 -n $(WORKERS) --dist worksteal --ignore tests/alluxio --ignore tests/distributed \
		--ignore tests/trainers --ignore tests/rehearsal

# These run beside all others, and print when they are done. mypy takes a core for a minute where it has no cache. The tests wait
# for the processes that they start half of the time; each is one process of pytest, whose tests share launchers and a cluster.
test-beside: $(VENV)/.ready
	$(MAKE) --no-print-directory --keep-going --output-sync=target check test-ranks test-rest

test-ranks: $(VENV)/.ready
	$(BIN)/python -m pytest --durations=20 tests/distributed tests/trainers
test-rest: $(VENV)/.ready
	$(BIN)/python -m pytest --durations=20 tests/rehearsal tests/alluxio

check lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, into build/site. A link that leads nowhere is an error.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/.ready
	$(BIN)/mkdocs build --strict

# A real Alluxio cluster on this machine to try things on, until Ctrl-C. It needs a JDK 17 and Maven.
alluxio: $(VENV)/.ready
	$(BIN)/python -m tests.alluxio.cluster

# The figures that the project is judged by, into docs/results.md: less than half an hour. BENCH=--quick only checks the scripts.
bench: $(VENV)/.ready
	$(BIN)/python experiments/run.py bench $(BENCH)

# All experiments, and docs/results.md from what they find: an hour or more.
experiments: $(VENV)/.ready
	$(BIN)/python experiments/run.py $(EXPERIMENTS)

# What a machine with a GPU lacks besides Python 3.12, torch, numpy and xxhash, as wheels to be carried there: experiments/gpu.py.
gpu-wheels: $(VENV)/.usable
	$(BIN)/python -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
		$(foreach n,28 27 17,--platform manylinux_2_$(n)_x86_64) --platform manylinux2014_x86_64 -d gpu-wheels \
		'lmdb >= 3.0, < 4' 'msgpack >= 1.1'

soak: $(VENV)/.ready
	$(BIN)/python -m tests.crash.soak --minutes $(SOAK_MINUTES) --kills $(KILLS)

$(VENV)/.usable: setup.cfg pyproject.toml
	@echo "Installing into $(VENV): PyTorch brings its CUDA libraries, some 5 GB. This takes minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --upgrade pip
	rm -rf *.egg-info  # of an older installation: found first in the checkout, with entry points that may be gone
	$(BIN)/python -m pip install -qq -e '.[torch,experiments]'
	touch $@

$(VENV)/.ready: $(VENV)/.usable
	$(BIN)/python -m pip install -qq -e '.[dev,docs,keras]'
	$(BIN)/python -m pip install -qq --no-deps --target $(VENV)/keras-oldest 'keras==$(OLDEST_KERAS)'
	# Apart from the rest: where it is installed, torch and Lightning import TensorFlow.
	$(BIN)/python -m pip install -qq --no-deps --target $(VENV)/tensorboard 'tensorboard >= 2.18'
	# Tests put it at the end of the path, so that none of what comes along shadows what is installed.
	$(BIN)/python -m pip install -qq --target $(VENV)/trackers 'mlflow-skinny >= 3.4' 'wandb >= 0.21'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info demo-run
