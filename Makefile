# Needs python3 (3.11 or newer) with pip, and make. Everything else comes into .venv at first use.

.DEFAULT_GOAL := help
.PHONY: help test lint types demo admin conformance proof mutants snapshot test-matrix bench bench-peers clean rebuild

VENV := .venv
PY := $(VENV)/bin/python
PEERS := .peers
ARGS ?=
export TENANTFAIR_PEERS_PYTHON ?= $(CURDIR)/$(PEERS)/bin/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_REQUIRE_VIRTUALENV := 0
export PIP_USER := 0
unexport PYTHONHOME PYTHONPATH

# The newest Python that really runs (a version manager's stand-in may exist and fail), better one that can make a
# virtual environment by itself. Set PYTHON to choose another.
define FIND_PYTHON
pyenv=$$(pyenv root 2>/dev/null); second=; \
for v in 3.14 3.13 3.12 3.11 3; do \
  for p in "$$(command -v python$$v)" "$$pyenv"/versions/$$v.*/bin/python$$v; do \
    [ -x "$$p" ] && "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
    "$$p" -c 'import venv, ensurepip' 2>/dev/null && echo "$$p" && exit; \
    second=$${second:-$$p}; \
  done; \
done; echo "$$second"
endef
PYTHON ?= $(shell $(FIND_PYTHON))

# A .venv of another folder, or one whose Python is gone, must not be trusted.
ifneq ($(CURDIR),$(shell $(PY) -c '' 2>/dev/null && cat $(VENV)/.stamp 2>/dev/null))
$(VENV)/.stamp: rebuild
endif

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: $(VENV)/.stamp ## Run the tests (ARGS="-k name" selects)
	@$(PY) -m pytest $(ARGS)

lint: $(VENV)/.lint ## Check style, format and import direction
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(VENV)/bin/lint-imports --no-logo

types: $(VENV)/.types ## Check the types with mypy
	@$(PY) -m mypy

demo: $(VENV)/.stamp ## Watch tenants share two workers
	@$(PY) -m example_project.demo $(ARGS)

admin: $(VENV)/.stamp ## Serve the example site with its admin
	@$(PY) -m example_project.site $(ARGS)

conformance: $(VENV)/.stamp ## Run the tests and list the proven conformance items
	@$(PY) -m tests.conformance $(ARGS)

proof: $(VENV)/.stamp ## Prove it: every part, or PART=name (QUICK=1: ten minutes)
	@$(PY) -m tests.proof $(if $(QUICK),--quick) $(if $(PART),--part $(PART)) $(ARGS)

mutants: $(VENV)/.stamp ## Break each rule once and see that a test notices
	@$(PY) -m tests.mutants $(ARGS)

snapshot: $(VENV)/.stamp ## Write the schema of a fresh install to tests/schema.sql
	@$(PY) -m tests.snapshot $(ARGS)

test-matrix: $(VENV)/.stamp ## Run the tests on every Python, Django and PostgreSQL at hand
	@$(PY) -m tests.matrix $(ARGS)

bench: $(VENV)/.stamp ## Measure speed beside the floor of this machine (QUICK=1: two minutes)
	@$(PY) -m tests.benchmarks $(if $(QUICK),--quick) $(ARGS)

bench-peers: $(VENV)/.stamp $(if $(TENANTFAIR_PEERS),$(PEERS)/.stamp) ## The same, and the peers that TENANTFAIR_PEERS names
	@$(PY) -m tests.benchmarks --peers $(if $(QUICK),--quick) $(ARGS)

clean: ## Remove what the other targets made
	@rm -rf .venv .venv.boot .peers .matrix .cache .postgres .proof build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV)/.stamp: pyproject.toml
	@set -e; python='$(PYTHON)'; \
	[ -n "$$python" ] || { echo 'tenantfair needs Python 3.11 or newer, and none was found.' >&2; exit 1; }; \
	echo "Making $(VENV) with $$("$$python" -V), one moment ..."; \
	rm -f $(VENV)/.stamp $(VENV)/.lint $(VENV)/.types; \
	if ! "$$python" -m venv --clear $(VENV) >/dev/null 2>&1; then \
	  pip="$$python"; "$$pip" -m pip --version >/dev/null 2>&1 || pip=python3; \
	  "$$pip" -m pip install -qq --upgrade --target .venv.boot virtualenv; \
	  PYTHONPATH=.venv.boot "$$pip" -m virtualenv --quiet --clear --python "$$python" $(VENV); \
	  rm -rf .venv.boot; \
	fi; \
	$(PY) -m pip install -qq --upgrade 'pip>=25.1'; \
	$(PY) -m pip install -qq --editable . --group test; \
	$(PY) -c 'import django; print("Ready: Django", django.__version__)'; \
	echo '$(CURDIR)' > $@

# Other products have dependencies of their own, so they get an environment of their own.
$(PEERS)/.stamp: tests/benchmarks/peers.txt $(VENV)/.stamp
	@$(PY) -m venv --clear $(PEERS)
	@$(PEERS)/bin/python -m pip install -qq -r tests/benchmarks/peers.txt
	@touch $@

$(VENV)/.lint: $(VENV)/.stamp
	@$(PY) -m pip install -qq --group lint
	@touch $@

$(VENV)/.types: $(VENV)/.stamp
	@$(PY) -m pip install -qq --group types
	@touch $@
