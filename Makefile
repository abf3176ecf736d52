# Two commands: `make demo` and `make test`. Both use one virtual environment in .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET := 1

.PHONY: demo test lint clean notebook

demo: .venv/train
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

# Two at a time, a file in one go: much of the suite waits for processes to start.
test: lint
	$(BIN)/pytest -n 2 --dist loadfile

# Stores in the notebook what it prints now; a test compares.
notebook: .venv/dev
	$(BIN)/jupyter execute --inplace --NotebookClient.record_timing=False examples/planning.ipynb

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The marker files are newer than what they were made from; a changed pyproject.toml installs again.
.venv/core: pyproject.toml constraints.txt
	@echo "Making the environment in .venv (some seconds) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -c constraints.txt -e .
	@touch $@

.venv/train: .venv/core
	@echo "Adding torch and plotly to .venv (a minute) ..."
	$(BIN)/pip install -c constraints.txt -e '.[train,report]'
	@touch $@

.venv/dev: .venv/train
	@echo "Adding the tools for tests to .venv (a minute) ..."
	$(BIN)/pip install -c constraints.txt -e '.[dev,train]'
	@touch $@

clean:
	rm -rf .venv demo build src/*.egg-info
