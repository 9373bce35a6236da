# `make help` lists the commands. Everything is installed into .venv and .platform, inside this folder.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/.kernels
# Relative paths only, so that a folder name with a space in it does no harm.
UV = $$(command -v uv || echo .platform/uv/bin/uv)
ARGS ?=
# Certificates that the system trusts are trusted here too, as behind a company's proxy.
export UV_SYSTEM_CERTS ?= true
export UV_NATIVE_TLS ?= true

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: install ## Stream the demo data, load it, prove it; leaves the UI open (ONCE=1: ends when done)
	@$(BIN)/platform-assets demo $(if $(ONCE),--once)

.PHONY: test
test: install ## Run the tests (ARGS="-k name" for some of them)
	@$(BIN)/python -m pytest -m "not soak and not cluster" -n 2 --dist loadgroup $(ARGS)

.PHONY: test-cluster
test-cluster: install ## Run the tests that need an object store, a Spark cluster, PostgreSQL, and loads and audits on each kind of part
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| echo "no PostgreSQL here, so its tests are skipped; on Debian: apt-get install postgresql" >&2
	@$(BIN)/python -m platform_assets_tests.support.part_runs $(ARGS)

.PHONY: soak
soak: install ## Kill, freeze and cut off at random, then prove (SEEDS=30 SECONDS=300 SCENARIO=storm|matrix|outages|day|histories|restarts MINUTES=10)
	@$(BIN)/python -m platform_assets_tests.soak $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

.PHONY: lint
lint: install ## Check format, style, types, who imports whom, and that the lock follows pyproject.toml
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .platform/import-linter
	@$(MAKE) --no-print-directory lock-check

.PHONY: semantics
semantics: install ## Run three loaders through the same crashes, and write what each lost and doubled
	@$(BIN)/python -m platform_assets_tests.support.semantics $(ARGS)

.PHONY: bench
bench: install ## Measure beside peers, in one run (QUICK=1: minutes), and write benchmarks/results
	@$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

.PHONY: docs
docs: install ## Build the documentation into build/docs; a broken link fails
	@# --quiet would keep warnings from failing it.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: docs-serve
docs-serve: install ## Serve the documentation on loopback, built again whenever a page changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

.PHONY: screenshots
screenshots: install ## Take the pictures of the README and the docs again (needs Chromium)
	@$(BIN)/python -m platform_assets_tests.support.screenshots

.PHONY: format
format: install ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: install
install: $(STAMP) $(KERNELS) ## Install all that the project needs into .venv, and compile the kernels that load

$(STAMP): requirements.lock uv-requirements.txt pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set PYTHON=…" >&2; exit 1; }
	@if ! command -v uv >/dev/null && ! test -x .platform/uv/bin/uv; then \
		echo "installing uv into .platform/uv"; \
		$(PYTHON) -m venv .platform/uv && .platform/uv/bin/pip install --quiet --require-hashes -r uv-requirements.txt; \
	fi
	@test -x $(BIN)/python || "$(UV)" venv --quiet --python "$(PYTHON)" $(VENV)
	@echo "installing the locked packages into $(VENV) (about 500 MB the first time)"
	@VIRTUAL_ENV="$$PWD/$(VENV)" "$(UV)" pip sync --require-hashes --compile-bytecode requirements.lock
	@VIRTUAL_ENV="$$PWD/$(VENV)" "$(UV)" pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

# Else the first load would wait for it, in each of Spark's workers.
$(KERNELS): $(STAMP) $(wildcard platform_assets/kernels/*.py)
	@echo "compiling the kernels (about half a minute the first time)"
	@$(BIN)/python -m platform_assets.kernels
	@touch $(KERNELS)

COMPILE = "$(UV)" pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
	--custom-compile-command "make lock" --no-emit-index-url pyproject.toml

.PHONY: lock
lock: ## Write requirements.lock, keeping versions that still fit (UPGRADE=1: take newer ones)
	@$(COMPILE) $(if $(UPGRADE),--upgrade) --output-file requirements.lock

.PHONY: lock-check
lock-check: # Fails if requirements.lock does not follow pyproject.toml
	@mkdir -p .platform && cp requirements.lock .platform/requirements.check
	@$(COMPILE) --output-file .platform/requirements.check
	@diff -u requirements.lock .platform/requirements.check || { echo "run: make lock" >&2; exit 1; }

.PHONY: clean
clean: ## Remove what was installed here; tables and topics under .platform stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
