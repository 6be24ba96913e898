# Everything here runs in .venv, made by `make env`. `make help` lists the targets.

PYTHON ?= python3
ARGS ?=
PARALLEL ?= -n 2 --dist loadgroup
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := statemachine controlplane worker simulator

.DEFAULT_GOAL := help
.PHONY: help env demo test lint format types contracts docs site soak bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(VENV)/.installed $(VENV)/.etcd-found ## create .venv and bring etcd; quick when nothing changed

# pip is asked again only when what it would install could have changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Changeover needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." \
	       "Name another one: make env PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Installing what constraints.txt pins into $(VENV) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[worker,dev]'
	@touch $@

$(VENV)/.etcd-found: $(VENV)/.installed
	@$(BIN)/python -m controlplane.etcd_server --fetch $(VENV)/etcd
	@touch $@

demo: env ## train, lose a machine, go on; ARGS="--help" lists the knobs
	@$(BIN)/changeover demo $(ARGS)

test: env ## run the tests; ARGS="-k lease -x" goes to pytest; PARALLEL= runs them one by one
	@$(BIN)/pytest $(PARALLEL) $(ARGS)

lint: $(VENV)/.installed ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

format: $(VENV)/.installed ## let ruff fix and format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

types: $(VENV)/.installed ## mypy, strict
	@$(BIN)/mypy

contracts: $(VENV)/.installed ## who may import whom
	@$(BIN)/lint-imports

docs: $(VENV)/.installed ## draw the lifecycle diagrams from the tables
	@$(BIN)/python docs/internals/draw.py

site: $(VENV)/.installed ## build the documentation site into site/
	@$(BIN)/mkdocs build --quiet
	@echo "site/index.html"

soak: env ## tests that run for minutes
	@$(BIN)/pytest -m soak --timeout 1800 $(ARGS)

bench: env ## every benchmark, one after the other
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script $(ARGS); done

clean: ## remove .venv and what tools left; runs/ stays
	rm -rf $(VENV) *.egg-info build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find $(PACKAGES) tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
