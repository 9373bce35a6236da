# `make help` lists the commands. Everything is installed into .venv and .platform, inside this folder.
.DEFAULT_GOAL := help
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# The demo alone needs no more than its own lock. Where the rest is there already, it stays.
ENVIRONMENT := $(if $(or $(filter-out demo,$(MAKECMDGOALS)),$(wildcard $(STAMP))),$(STAMP),$(DEMO_STAMP))
KERNELS := $(VENV)/.kernels
# Relative paths only, so that a folder name with a space in it does no harm.
UV = $$(command -v uv || echo .platform/uv/bin/uv)
ARGS ?=
# Certificates that the system trusts are trusted here too, as behind a company's proxy.
export UV_SYSTEM_CERTS ?= true
export UV_NATIVE_TLS ?= true
# Where it is set, each process that starts would compile the project's modules again, and pytest each test's assertions.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(ENVIRONMENT) $(KERNELS) ## Stream the demo data, load it, prove it; leaves the UI open (ONCE=1: ends when done)
	@$(BIN)/platform-assets demo $(if $(ONCE),--once)

.PHONY: example
example: install ## Run a use case of examples/ and compare its tables with the source file (NAME=commit_log; ONCE=1: ends when done)
	@$(BIN)/python -m examples $(or $(NAME),--help) $(if $(ONCE),--once)

# The tests of one file run in one process; the conftest orders the files.
PROCESSES ?= 3
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder

.PHONY: test
test: install ## Run the tests (ARGS="-k name" for some of them; PROCESSES=3)
	@$(PYTEST) -m "not soak and not cluster and not long" $(ARGS)

.PHONY: test-all
test-all: install ## Run the tests of make test with all jobs in Spark, and those marked long
	@PLATFORM_TEST_JOBS=spark PLATFORM_TEST_EXAMPLES=200 $(PYTEST) -m "not soak and not cluster" $(ARGS)

.PHONY: coverage
coverage: install ## Run make test-all under coverage, and report the branch coverage of each module
	@PLATFORM_TEST_JOBS=spark PLATFORM_TEST_EXAMPLES=200 $(PYTEST) -m "not soak and not cluster" --cov --cov-report= $(ARGS)
	@$(BIN)/coverage report

.PHONY: test-cluster
test-cluster: install ## Run the tests that need an object store, a Spark cluster, PostgreSQL, and loads and audits on each kind of part
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 \
		|| echo "no PostgreSQL here, so its tests are skipped; on Debian: apt-get install postgresql" >&2
	@$(BIN)/python -m platform_assets_tests.support.part_runs $(ARGS)

.PHONY: soak
soak: install ## Kill, freeze and cut off at random, then prove (SEEDS=30 SECONDS=300 SCENARIO=storm|matrix|outages|day|histories|restarts|decoders|recovery|decisions|races|states|publishing|pipeline|streaming|database|canary|fuzz-wire|… MINUTES=10 ROUNDS=100)
	@$(BIN)/python -m platform_assets_tests.soak $(if $(SCENARIO),--scenario $(SCENARIO)) $(if $(SEED),--seed $(SEED)) \
		$(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

.PHONY: mutants
mutants: install ## Change the product in COUNT places that SEED chooses, one at a time, and see whether tests fail (ARGS="--tests test-all")
	@$(BIN)/python -m platform_assets_tests.support.mutants --seed $(or $(SEED),1) --count $(or $(COUNT),20) $(ARGS)

.PHONY: wheel
wheel: install ## Build the wheel, for projects of your own without a checkout, in dist/
	@$(BIN)/python -c "from setuptools.build_meta import build_wheel; print('dist/' + build_wheel('dist'))" | tail -n 1

.PHONY: lint
lint: install ## Check format, style, types, imports, plain English, spelling, commit subjects, and that the locks follow pyproject.toml
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir .platform/import-linter
	@$(BIN)/python -m platform_assets_tests.support.plain_english
	@$(BIN)/codespell
	@$(BIN)/python -m platform_assets_tests.support.commit_subjects
	@$(MAKE) --no-print-directory lock-check

.PHONY: semantics
semantics: install ## Run producers, copies and loaders through the same faults, and write what each lost and doubled
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
	$(call install-locked,requirements.lock,--compile-bytecode)

# Bytecode of what the demo never imports would be a tenth of it.
$(DEMO_STAMP): requirements-demo.lock uv-requirements.txt pyproject.toml Makefile
	$(call install-locked,requirements-demo.lock)

# install-locked LOCK OPTIONS: have .venv hold what the lock names and the checkout, and nothing else.
define install-locked
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set PYTHON=…" >&2; exit 1; }
	@if ! command -v uv >/dev/null && ! test -x .platform/uv/bin/uv; then \
		echo "installing uv into .platform/uv"; \
		$(PYTHON) -m venv .platform/uv && .platform/uv/bin/pip install --quiet --require-hashes -r uv-requirements.txt; \
	fi
	@test -x $(BIN)/python || "$(UV)" venv --quiet --python "$(PYTHON)" $(VENV)
	@rm -f $(STAMP) $(DEMO_STAMP)
	@echo "installing the packages of $(1) into $(VENV)"
	@VIRTUAL_ENV="$$PWD/$(VENV)" "$(UV)" pip sync --require-hashes $(2) $(1)
	@VIRTUAL_ENV="$$PWD/$(VENV)" "$(UV)" pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@
endef

# Else the first load would wait for it, in each of Spark's workers.
$(KERNELS): $(ENVIRONMENT) $(wildcard platform_assets/kernels/*.py)
	@echo "compiling the kernels (about half a minute the first time)"
	@$(BIN)/python -m platform_assets.kernels
	@touch $(KERNELS)

COMPILE = "$(UV)" pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command "make lock" --no-emit-index-url pyproject.toml
# compile-locks FOLDER OPTIONS: the product's lock and the demo's are subsets of the development's, with the same versions. All that
# they ask for was just asked for, so they are made of uv's cache.
define compile-locks
	@$(COMPILE) --all-extras $(2) --output-file $(1)requirements.lock
	@$(COMPILE) --offline --no-annotate --extra postgres --extra kubernetes -c $(1)requirements.lock --output-file $(1)requirements-product.lock
	@$(COMPILE) --offline --no-annotate --extra demo -c $(1)requirements.lock --output-file $(1)requirements-demo.lock
endef

.PHONY: lock
lock: ## Write the locks, keeping versions that still fit (UPGRADE=1: take newer ones)
	$(call compile-locks,,$(if $(UPGRADE),--upgrade))

.PHONY: lock-check
lock-check: # Fails if the locks do not follow pyproject.toml
	@mkdir -p .platform/locks && cp requirements*.lock .platform/locks/
	$(call compile-locks,.platform/locks/)
	@for lock in requirements*.lock; do \
		diff -u "$$lock" ".platform/locks/$$lock" || { echo "run: make lock" >&2; exit 1; }; \
	done

.PHONY: audit
audit: install ## Compare the locks with the advisories in infra/advisories.toml
	@$(BIN)/python -m platform_assets_tests.support.audit

.PHONY: sbom
sbom: install ## Write what the product consists of, with hashes, to build/sbom.cdx.json (CycloneDX)
	@$(BIN)/python -m platform_assets_tests.support.sbom

.PHONY: product-check
product-check: $(STAMP) # Fails if a module of the product cannot be imported with what the product's own lock installs
	@"$(UV)" venv --quiet --clear --python "$(PYTHON)" .platform/product
	@VIRTUAL_ENV="$$PWD/.platform/product" "$(UV)" pip sync --quiet --require-hashes requirements-product.lock
	@PYTHONPATH=. .platform/product/bin/python platform_assets_tests/support/every_module.py
	@rm -rf .platform/product

.PHONY: lowest
lowest: $(STAMP) ## Run the tests without services with the lowest versions that pyproject.toml allows
	@"$(UV)" pip compile --quiet --resolution lowest-direct --all-extras --generate-hashes --python $(BIN)/python \
		pyproject.toml --output-file .platform/lowest.txt
	@"$(UV)" venv --quiet --clear --python $(BIN)/python .platform/lowest
	@VIRTUAL_ENV="$$PWD/.platform/lowest" "$(UV)" pip sync --quiet --require-hashes .platform/lowest.txt
	@VIRTUAL_ENV="$$PWD/.platform/lowest" "$(UV)" pip install --quiet --no-deps --no-build-isolation --editable .
	@.platform/lowest/bin/python -m pytest -q -m "not (broker or spark or alone or browser or long or soak or cluster)" $(ARGS)

.PHONY: clean
clean: ## Remove what was installed here; tables and topics under .platform stay
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
