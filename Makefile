# A newcomer needs two commands: `make demo` and `make test`. Both set the machine up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Every process of a job imports torch and numba: 2 s with their bytecode, 6 s where it is compiled each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test suite cluster-test soak check docs site links clean-kernels clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("heterps needs Python 3.11 or newer, %s is %s: make PYTHON=python3.11 setup" % (sys.executable, sys.version.split()[0]) if sys.version_info < (3, 11) else 0)'
	@echo 'Installing into $(VENV): a few minutes the first time.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@# Python compiles what is imported: a tenth of the 20,000 files that are installed.
	$(BIN)/python -c 'import heterps.launch'
	@touch $(STAMP)

demo: setup
	@$(BIN)/python examples/demo.py

# Types are checked beside the tests, which leave a part of a core idle.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 check suite

suite: setup
	$(BIN)/python -m pytest -n 4 --dist worksteal

# Jobs across hosts that are namespaces of this machine: Linux, as root; skipped with the reason elsewhere.
cluster-test: setup
	$(BIN)/python -m pytest -m 'slow or not slow' -rs -n 2 --dist worksteal tests/cluster

# Jobs on a simulated clock that meet drawn faults of every kind, others every time; some hours.
soak: setup
	$(BIN)/python -m pytest -q --hypothesis-profile=soak -n 2 tests/sim/test_soak.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	$(BIN)/python docs/build_reference.py

# The pages of docs/ and benchmarks/ as a site; a warning, such as a link that leads nowhere, is an error.
site: setup
	$(BIN)/python -m sphinx -W --keep-going -n -q -c docs . docs/_build/html

# Asks the other sites that pages link to whether the links still lead somewhere. No test does.
links: setup
	@$(BIN)/python docs/check_links.py

# Compiled kernels stay beside their sources. One that calls a kernel of another file does not notice its changes.
clean-kernels:
	find src -name '*.nb[ci]' -delete

clean: clean-kernels
	rm -rf docs/_build $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
