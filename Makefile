# make demo   train one job of each kind on an embedded cluster, end to end
# make check  style, types, import rules, house rules (two minutes at most)
# make test   every test
# make bench-peers   build the rivals of some benchmarks into an environment of their own (20 minutes on two cores)

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
TRITON := $(VENV)/.triton
PEERS := .venv-peers

.PHONY: demo check test env bench-peers clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(shell find workers -name '*.cpp' -o -name '*.h')
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Only where CUDA's kernels are tested: torch's optimisers import triton where it is, 77 MB in every rank.
$(TRITON): $(STAMP)
	$(PYTHON) -m pip install --quiet --constraint constraints.txt triton
	touch $@

demo: $(STAMP)
	$(PYTHON) -m api.demo

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) -m pytest -q tests/house

# Tests that start ranks or clusters have both cores; of the others two run at a time, each on one thread of its own.
WITH_RANKS := tests/distributed tests/on_ray tests/e2e

test: $(TRITON)
	OMP_NUM_THREADS=1 $(PYTHON) -m pytest -q -n 2 tests $(WITH_RANKS:%=--ignore=%)
	$(PYTHON) -m pytest -q $(WITH_RANKS)

bench-peers: $(PEERS)/.installed

$(PEERS)/.installed: tests/benchmarks/peers.txt constraints.txt
	python3 -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt torch==2.13.0 torch-geometric scipy setuptools wheel ninja
	FORCE_ONLY_CPU=1 CFLAGS=-g0 DIST_EXTRA_CONFIG=$(CURDIR)/tests/benchmarks/peers_build.cfg \
		$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --requirement tests/benchmarks/peers.txt
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) build *.egg-info
