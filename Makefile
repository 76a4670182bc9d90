# The two commands a fresh machine needs: `make demo` and `make test`, which adds the tools of the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test soak lint format docs dist extras clean

demo: $(VENV)/.ready
	@echo "Training (three to ten minutes, by the speed of this machine), translating and scoring."
	$(BIN)/velogan demo

test: lint
	$(BIN)/python -m pytest -n 2

# What takes too long for every change: before a release.
soak: $(VENV)/.ready-dev
	$(BIN)/python -m pytest -n 2 -m soak

lint: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	! grep -nE '^(<<<<<<<|>>>>>>>) ' *.md */*.md
	$(BIN)/pyright

format: $(VENV)/.ready-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, in build/site.
docs: $(VENV)/.ready-dev
	$(BIN)/python -m sphinx -W -q -d build/doctrees docs build/site

# A source distribution, and from it a wheel.
dist: $(VENV)/.ready-dev
	$(BIN)/python -m build

# What the wheel needs and does in clean environments, with and without each extra: half an hour.
extras: $(VENV)/.ready-dev
	$(BIN)/python tests/extras.py --torch $(VENV)/lib/python*/site-packages

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'velogan needs Python 3.11 or newer: make PYTHON=/path/to/python3.11')"
	@echo "Installing velogan and PyTorch into $(VENV), once: some minutes (107 s on two cores with a fast network)."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
