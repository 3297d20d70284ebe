# make demo   train one job of each kind on an embedded cluster, end to end
# make check  style, types, import rules, house rules (two minutes at most)
# make test   every test

SHELL := /bin/bash
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: demo check test env clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(shell find workers -name '*.cpp' -o -name '*.h')
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(PYTHON) -m api.demo

check: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PYTHON) -m pytest -q tests/house

test: $(STAMP)
	$(PYTHON) -m pytest -q tests

clean:
	rm -rf $(VENV) build *.egg-info
