# Each target does its own set-up: the virtual environment, the pinned torch first, then the package.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
TORCH := torch==2.13.0
# two processes; a file stays in one, so that what it prepares is prepared once; the quick files of
# src come last, so that both end at a time
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
# Python keeps what it has compiled, which halves every start, also where the environment says no
export PYTHONDONTWRITEBYTECODE :=
WARM := $(BIN)/python -c "import deepfishing.learn.svm, deepfishing.extraction.extract"

.PHONY: help demo page test test-slow lint bench bench-peers fire fuzz docs wheel release-check image clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.package ## few labels on the embedded photographs, and a report (about a minute)
	$(BIN)/python scripts/demo.py results/demo

page: $(VENV)/.package ## show the embedded photographs in the browser
	@test -e results/demo/report.html || $(MAKE) demo
	$(BIN)/deepfish serve results/demo

test: $(VENV)/.dev ## run the tests
	$(PYTEST) -m "not slow"

# kills, full disks, fuzzing, load, simulations, most of Ray, the docs site
test-slow: $(VENV)/.dev ## run the slow tests: kills, full disks, fuzzing, load, Ray, the docs site
	$(PYTEST) -m slow

lint: $(VENV)/.dev ## check style, types, layers and the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

bench: $(VENV)/.dev ## run the benchmarks
	$(BIN)/python benchmarks/run.py

bench-peers: $(PEERS)/.package ## compare with other packages
	$(PEERS)/bin/python benchmarks/peers/install.py
	$(PEERS)/bin/python benchmarks/peers/run.py

fire: $(VENV)/.dev ## kill, fill the disk and flip bits at every step
	$(BIN)/python -m fire

fuzz: $(VENV)/.fuzz ## feed malformed files to every reader
	$(BIN)/python -m fuzz

docs: $(VENV)/.dev ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: $(VENV)/.dev ## build wheel and sdist into dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# the wheel in a fresh environment: the demo and the docs' commands, from another folder
release-check: wheel ## try the wheel in a fresh environment
	$(BIN)/python scripts/release_check.py "$(TORCH)" dist

image: ## build the container image
	docker build --tag deepfishing .

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "deepfishing needs Python 3.11 or newer, got $$($(PYTHON) --version); set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing $(TORCH) and the package into $(VENV); the first time takes a few minutes"
	$(PIP) "$(TORCH)"
	@touch $@

$(VENV)/.package: $(VENV)/.torch pyproject.toml
	$(PIP) --editable .
	@$(WARM)
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	$(PIP) --editable ".[dev]"
	@$(WARM)
	@touch $@ $(VENV)/.package

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --editable ".[dev,fuzz]"
	@touch $@

$(PEERS)/.package: pyproject.toml
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet "$(TORCH)"
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --editable .
	@touch $@

clean: ## remove everything that make has made
	rm -rf $(VENV) $(PEERS) results site dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
