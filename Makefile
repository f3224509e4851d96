# Every target sets up what it needs: a fresh clone on a machine with Python 3.11+ and make is enough.
# Dependencies are installed from wheels alone, so no compiler is needed. PYTHON=... picks another interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --only-binary=:all:
BENCH ?= all
# The tests start hundreds of processes: what Python has compiled is kept for the next, also where the environment says no.
export PYTHONDONTWRITEBYTECODE :=
# What mypy finds follows from NumPy's types, too, which change with each release: the gate moves when we move it.
TYPES := 2.4
# A process per core, whole files at a time in their order.
PYTEST := pytest -q -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder --hypothesis-profile=ci
# A test that waits for ever fails, and says where each thread stood; one that waits where Python cannot interrupt it ends its process.
PATIENCE := --timeout 300 --timeout-method signal -o faulthandler_timeout=400 -o faulthandler_exit_on_timeout=true --max-worker-restart 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint docs bench clean

help:
	@echo "make demo       eight schools: sample, print the summary, write out/"
	@echo "make test       lint, types, import floors and the default tests"
	@echo "make test-slow  the tests marked slow"
	@echo "make lint       ruff and mypy only"
	@echo "make docs       build docs/_build/html"
	@echo "make bench      benchmarks against the peers installed in $(VENV) (BENCH=eager|density|nuts|warmup|all)"
	@echo "make clean      remove $(VENV), caches and outputs"

# A stamp is written last, so an interrupted set-up is done again.
$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "probtorch needs Python 3.11 or later; '$(PYTHON)' was not found." >&2; \
	  echo "Install it, or name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "probtorch needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot make virtual environments: its venv or ensurepip module is missing." >&2; \
	  echo "On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.examples: $(VENV)/.created pyproject.toml
	@echo "installing probtorch and what the examples need (once)"
	@$(PIP) -e '.[examples]'
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml
	@echo "installing probtorch and the development tools (once)"
	@$(PIP) -e '.[dev,examples]'
	@touch $@

$(VENV)/.docs: $(VENV)/.created pyproject.toml
	@echo "installing probtorch and the documentation tools (once)"
	@$(PIP) -e '.[docs,examples]'
	@touch $@

demo: $(VENV)/.examples
	$(BIN)/python models/eight_schools/model.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if $(BIN)/python -c 'import numpy; raise SystemExit(not numpy.__version__.startswith("$(TYPES)."))'; \
	then echo "$(BIN)/mypy"; $(BIN)/mypy; \
	else echo "types are not checked: that is done with NumPy $(TYPES), of which newer ones have other types"; fi

test: lint
	$(BIN)/python -m $(PYTEST) $(PATIENCE)

test-slow: $(VENV)/.dev
	$(BIN)/python -m $(PYTEST) -m slow

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

bench: $(VENV)/.examples
	$(BIN)/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) build dist out docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
