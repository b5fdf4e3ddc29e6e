# Everything runs in .venv, which is made on first use. Needed: Python 3.11 or newer, git, make.
PYTHON ?= python3

VENV := .venv
PY := $(VENV)/bin/python
CDNASIM := $(VENV)/bin/cdnasim
STAMP := $(VENV)/.installed
DEMO := xcd_grid_order

.DEFAULT_GOAL := help
.PHONY: help demo test bench validate clean

help:
	@echo "make demo      run the scenario $(DEMO) and print where its report is"
	@echo "make test      lint, format check, type check and all tests"
	@echo "make bench     measure the speed of the simulator"
	@echo "make validate  compare predictions with measurements"
	@echo "make clean     remove .venv, out/ and caches"
	@echo "Another Python: make PYTHON=python3.12 ..."

demo: $(STAMP)
	@$(CDNASIM) run $(DEMO) --out out/$(DEMO)
	@echo "Report:" && ls "$(CURDIR)"/out/$(DEMO)/*.html

test: $(STAMP)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@$(PY) -m pytest

bench: $(STAMP)
	@$(PY) benchmarks/speed.py

validate: $(STAMP)
	@$(CDNASIM) validate

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	@echo "Installing into $(VENV) (about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@

clean:
	@rm -rf $(VENV) out build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name .git -prune -o -type d -name __pycache__ -exec rm -rf {} +
