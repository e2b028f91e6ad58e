# What every developer, and CI, runs. Each target installs what it needs into $(VENV) first.

PYTHON ?= python3
VENV ?= .venv
MODEL ?= smollm2
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help serve native test sanitize check format bench docs clean

NATIVE_CODE := $(wildcard $(addprefix native/,$(foreach end,h cpp,src/*.$(end) src/*/*.$(end) \
	tests/*.$(end) tests/*/*.$(end) bench/*.$(end)))) $(wildcard benchmarks/*/*.h benchmarks/*/*.cpp)

help:  ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(VENV)/.base  ## Serve MODEL (smollm2) on 127.0.0.1:8000; ARGS go to `headrace serve`
	@native/install $(BIN)/python
	@exec $(BIN)/headrace serve $(MODEL) $(ARGS)

native: $(VENV)/.base  ## Build the native kernels into $(VENV)
	@native/install $(BIN)/python strict

test: $(VENV)/.dev  ## Run all tests; ARGS go to pytest
	@native/install $(BIN)/python $(and $(shell command -v $(CXX)),strict)
	@native/test
	@$(BIN)/python -m pytest $(ARGS)

sanitize:  ## Run the C++ tests under AddressSanitizer, UBSan and ThreadSanitizer
	@native/test address,undefined
	@native/test thread

check: $(VENV)/.dev  ## Formatting, lint, types and import floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(NATIVE_CODE)

format: $(VENV)/.dev  ## Format the code and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE_CODE)

bench: $(VENV)/.dev  ## Measure serving; ARGS go to benchmarks/serving.py
	@$(BIN)/python benchmarks/serving.py $(ARGS)

docs: $(VENV)/.dev  ## Check every link in the docs and run every example in them
	@$(BIN)/python -m pytest tests/docs $(ARGS)

clean:  ## Remove the virtual environment and every cache
	rm -rf $(VENV) native/build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A stamp is newer than pyproject.toml once what that names is installed.
$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Headrace into $(VENV), once"
	@$(PIP) --editable .
	@touch $@

# torch comes first and alone, so that nothing else can choose another build of it.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Headrace and what its tests need into $(VENV), once"
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[dev,reference]'
	@touch $@ $(VENV)/.base

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Headrace needs Python 3.11 or newer, this is " \
		+ sys.version.split()[0] + "; name another with PYTHON=") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
