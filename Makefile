# One place for every command. `make help` lists them.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Python compiles a module when it is first imported: compiling all of them here would double the time of setting up.
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
READY  := $(VENV)/.ready
DEV    := $(VENV)/.dev
DATA   ?= data
MNIST  ?= $(DATA)/mnist
CIFAR  ?= $(DATA)/cifar-10-batches-bin
NETWORKS ?= runs/networks
WORKERS ?= 2
# Tests in one process per core, at most four, each on one thread: the networks are too small for more.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test check browser lint format bench paper paper-medium paper-full docs reference zoo clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || (echo "cleverscore needs Python 3.10 or newer"; exit 1)
	@echo "setting up $(VENV): torch and a few packages, this can take some minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[attacks,images,onnx,report]'
	@touch $(READY)

$(DEV): $(READY)
	@echo "adding what tests and checks need"
	$(PIP) -e '.[all,dev]'
	@touch $(DEV)

demo: $(READY)  ## set up, score ten shipped digits, write a table, plots and a report to demo/
	$(BIN)/cleverscore demo

test: lint browser  ## set up, check style and types, run the whole test suite
	$(PYTEST)

check: lint  ## set up, check style and types, run the fast tests (a minute or two)
	$(PYTEST) -m "not slow"

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "installing Chromium, in which the report is tested"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null; \
	else echo "no Chromium here: tests of the report in a browser are skipped (Debian: apt-get install chromium)"; fi

lint: $(DEV)  ## check style (ruff) and types (mypy, strict)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV)  ## rewrite files in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV)  ## measure accuracy and speed side by side with peers (some hours; MNIST=folder CIFAR=folder)
	$(PIP) -e '.[all,dev,bench]'
	$(BIN)/python -m benchmarks.tails --networks
	$(BIN)/python -m benchmarks.speed
	$(BIN)/python -m benchmarks.elimination --timed
	$(if $(wildcard $(DATA)/mobilenet_v1.onnx),$(BIN)/python -m benchmarks.many_classes --data $(DATA))
	$(BIN)/python -m benchmarks.trained_networks --folder $(NETWORKS) --mnist $(MNIST) --cifar $(CIFAR)
	$(BIN)/python -m benchmarks.attacks --folder $(NETWORKS) --networks mlp-relu mlp-silu robust-mlp-l2 zoo:mnist-cnn
	$(BIN)/python -m benchmarks.answer --folder $(NETWORKS) --networks zoo:mnist-mlp zoo:mnist-cnn zoo:cifar-cnn
	$(BIN)/python -m benchmarks.certificates
	$(BIN)/python -m benchmarks.truth
	$(BIN)/python -m benchmarks.scaling

paper: $(READY)  ## tables and figures of the paper in small sizes, an hour or two, resumable (DATA=folder, see paper/)
	$(BIN)/python -m paper --quick --data $(DATA) $(OPTIONS)

paper-medium: $(READY)  ## larger sizes, days in the background, from the units of work in the repository (DATA=folder)
	$(BIN)/python -m paper --medium --data $(DATA) --workers $(WORKERS) $(OPTIONS)

paper-full: $(READY)  ## the same in the paper's sizes, for a cluster (OPTIONS=--ray-address=...)
	$(BIN)/python -m paper --full --data $(DATA) --out paper/made-full $(OPTIONS)

docs: reference  ## build the documentation into build/site; a broken link or a page without a place fails
	$(BIN)/python -m sphinx -q -W --keep-going -n -b html docs build/site
	@echo "open build/site/index.html"

reference: $(DEV)  ## write docs/cli.md and docs/api.md from the program, and figures of benchmarks into docs/peers.md
	$(BIN)/python docs/_tools/reference.py

zoo: $(READY)  ## train the eight shipped networks again, some hours on two cores (MNIST=folder CIFAR=folder)
	$(BIN)/python -m cleverscore.loading.zoo.train --mnist $(MNIST) --cifar $(CIFAR)

clean:  ## remove what these commands made
	rm -rf $(VENV) demo runs build dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
