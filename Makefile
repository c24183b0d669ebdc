# A newcomer needs two commands: `make demo` and `make test`. Both set the machine up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test check docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("heterps needs Python 3.11 or newer, %s is %s: make PYTHON=python3.11 setup" % (sys.executable, sys.version.split()[0]) if sys.version_info < (3, 11) else 0)'
	@echo 'Installing into $(VENV): a few minutes the first time.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: setup
	@$(BIN)/python examples/demo.py

test: check
	$(BIN)/python -m pytest -n 3

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python docs/build_reference.py

clean:
	find src -name '*.nb[ci]' -delete
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
