# Needs Python 3.11+, make and a package index; nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests wait for processes most of the time: two at a time take little more than half as long.
SIDE ?= -n 2 --dist worksteal
# The versions that CI has. `make newest` does without.
CONSTRAINTS ?= --constraint constraints.txt
export PATH := $(CURDIR)/$(BIN):$(PATH)
# Compiled once: without, each of hundreds of processes compiles all of kdlab.
unexport PYTHONDONTWRITEBYTECODE
export MLFLOW_DISABLE_TELEMETRY := true
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo quick functions test test-slow nightly fuzz lint types layers docs format clean

demo: $(VENV)/.demo
	$(BIN)/kdlab run demo

# After each edit: functions, each in less than a quarter of a second, and nothing else. Types are
# checked meanwhile, which takes a core for half a minute where nothing is remembered.
quick: lint layers
	$(MAKE) --no-print-directory -j 2 types functions

functions: $(VENV)/.dev
	EXAMPLES=quick $(BIN)/python -m pytest -m "not long and not slow and not processes and not nightly" --no-processes -q $(SIDE)

# With the processes that only processes can show.
test: lint types layers
	$(BIN)/python -m pytest -m "not slow and not nightly" -q $(SIDE) --costs=build/costs/test.csv

# First steps, a comparison, a pipeline.
FEW := 01_first_student 03_soft_labels_compared 05_blockwise_pipeline
# Whole runs, a browser, notebooks, docs; what needs a Debian package is installed by .ci/run.
test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m "slow and not nightly" -q $(SIDE) --costs=build/costs/slow.csv
	$(MAKE) notebooks NOTEBOOKS="$(FEW)"
	$(BIN)/mkdocs build --strict --quiet

# Run in copies, whose outputs the docs show: what they claim, they assert. All of them, or
# NOTEBOOKS="01_first_student ..."
.PHONY: notebooks
notebooks: $(VENV)/.dev
	rm -rf build/notebooks && mkdir -p build && cp -r notebooks build/notebooks
	$(BIN)/python -m pytest -p nbmake --nbmake --overwrite --nbmake-timeout=1200 -q $(SIDE) \
	  $(if $(NOTEBOOKS),$(NOTEBOOKS:%=build/notebooks/%.ipynb),build/notebooks)

# Nightly: 20,000 hostile configs, with the time and memory of each.
fuzz: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python tests/fuzz/nightly.py 20000 $$(date +%j)

# What says little that the rest does not say and takes long: benches, storms of hundreds of
# faults, hundreds of teachers, all examples of what CI tries some of.
nightly: fuzz
	FAULTS=200 EXAMPLES=nightly $(BIN)/python -m pytest -m "nightly or tiered" -q $(SIDE) --costs=build/costs/nightly.csv
	$(MAKE) notebooks

# The 50 dearest tests of the last `make test test-slow`, kept.
.PHONY: costs
costs: build/costs/test.csv build/costs/slow.csv
	$(BIN)/python tests/cpu_seconds.py $^ > build/costs.csv
	mv build/costs.csv tests/costs.csv

# The newest versions that the bounds of pyproject.toml allow become those that CI has.
.PHONY: constraints newest
constraints: $(VENV)/.dev
	mkdir -p build && $(BIN)/python .ci/constraints.py > build/constraints.txt
	mv build/constraints.txt constraints.txt

# Weekly: does kdlab stand on the newest of all, beyond its own upper bounds too? In an environment
# of its own. What fails here and not in CI is a change of somebody else's.
BOUNDED := dask distributed optuna timm anywidget
newest:
	rm -rf build/newest
	$(MAKE) VENV=build/newest CONSTRAINTS= build/newest/.dev
	build/newest/bin/python -m pip install --quiet --upgrade --no-deps $(BOUNDED)
	build/newest/bin/python -m pip list --format=freeze
	$(MAKE) VENV=build/newest CONSTRAINTS= quick test

# Whatever needs a GPU, within ten minutes: tests, then short benches that leave a card in
# benchmarks/results. `make gpu GPU_PYTHON=python3` takes an environment that is there already.
GPU_PYTHON ?= $(BIN)/python
.PHONY: gpu
gpu: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.dev)
	$(GPU_PYTHON) -m pytest tests/gpu -q -n 4 --durations=15
	$(GPU_PYTHON) -m kdlab reproduce gpu --keep

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell kdlab benchmarks registry configs tests docs README.md CHANGELOG.md Makefile

types: $(VENV)/.dev
	$(BIN)/mypy

layers: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/.dev
	$(BIN)/mkdocs serve

# Lowers tests/rules/budgets.toml to what kdlab/ and benchmarks/ are; prints rooms and sizes into the docs.
.PHONY: house
house: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m rules.printed

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The stamps are newer than pyproject.toml when the environment is up to date.
$(VENV)/.venv:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), f"kdlab needs Python 3.11 or newer, this is {sys.version}"'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.venv pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[pretrained]'
	touch $@

$(VENV)/.dev: $(VENV)/.venv pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet $(CONSTRAINTS) --editable '.[dev]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
