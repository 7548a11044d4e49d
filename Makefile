# `make run` and `make test` do everything from a fresh clone; the other words are for developers.

VENV ?= .venv
# Any Python 3.11 to 3.14 that really starts (a version manager's shim may exist and not).
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$p && break; done)
# More for the tool at hand: make test ARGS="-k sandbox"
ARGS ?=
# Processes of the everyday tests, one thread each; a file's tests stay together, and the longest files come early.
TEST_WORKERS ?= 2
# Folders of tests beside packages of their own; the core's tests run without them.
PACKAGES := browser hostile interop reproduce sandbox serve viewer
# The limit holds for `model.threads`, too: threads that wait for one another beside another busy process cost ten times.
ONE_THREAD := OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1

READY := $(VENV)/.ready
BIN := $(VENV)/bin

# Stages run as `python -m ...` in processes of their own: they must find this environment's Python.
export PATH := $(abspath $(BIN)):$(PATH)
# Images set it; every stage would compile all that it imports, which takes three times as long as to import it.
unexport PYTHONDONTWRITEBYTECODE
# Embedded defaults: nothing phones home, nothing waits for a hub. HF_HUB_OFFLINE=0 lets a hub's model be fetched.
export DO_NOT_TRACK ?= 1
export DVC_NO_ANALYTICS ?= 1
export HF_HUB_OFFLINE ?= 1
export MLFLOW_DISABLE_TELEMETRY ?= true
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PREFECT_SERVER_ANALYTICS_ENABLED ?= false
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS ?= 300
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
VLLM_VENV ?= .venv-vllm
INTEROP_VENVS := .venv-interop .venv-verifiers

PROFILE ?= small
# Variants of a reproduction at a time; empty: by the processors.
WORKERS ?=

# How long `make fuzz` looks, in seconds of processor time.
SECONDS ?= 600

.PHONY: help environment demo run iterations reproduce test test-packages test-all test-vllm test-ray lint same-bytes format docs base-model ui browser
# Where the site of the docs is written.
SITE ?= build/docs

.PHONY: test-infra test-images environment-infra docs-site test-docs environment-docs test-services environment-services postgres fuzz sbom environment-fuzz test-interop test-flows test-smollm2 smollm2 warm-start environment-smollm2 doctor environment-vllm environment-ray environment-interop clean clean-environment

help: ## list the words
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 20

demo: environment ## two minutes: a small slice of the whole, the agent before and after; no file of the project changes
	@$(BIN)/python examples/first_look.py

run: environment ## train, evaluate and register an agent; unchanged stages are skipped
	@$(BIN)/python -m flows.run $(ARGS)

iterations: environment ## collect and train again with the current policy, `iterations` of params.yaml times in all
	@$(BIN)/python -m flows.iterate $(ARGS)

# Profiles on the pretrained model need its folder.
reproduce: environment $(if $(filter smollm2%,$(PROFILE)),smollm2) ## the paper's tables in small, variant by variant (PROFILE=small, hours, or full; WORKERS=2 at a time; ROWS="sweet other-c")
	@cd reproduce/$(PROFILE) && python -m sweetrl.reproduce all $(WORKERS) $(ROWS)

EVERYDAY = $(ONE_THREAD) $(BIN)/python -m pytest -m "not slow" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder

test: environment ## the everyday tests of the core
	@$(EVERYDAY) $(PACKAGES:%=--ignore=tests/%) $(ARGS)

test-packages: environment ## those of the packages that know nothing of training: sandbox, browser, viewer, serving, interop, reproduction
	@$(EVERYDAY) $(PACKAGES:%=tests/%) $(ARGS)

# Of the examples only the own domain: the guides, which are run whole, have the own method and the own reward.
test-flows: environment ## what takes minutes: the whole pipeline, the examples, an MLflow server, stages killed half-way
	@$(ONE_THREAD) $(BIN)/python -m pytest -m "slow and not vllm" -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  tests/end_to_end/test_docs_commands.py tests/end_to_end/test_clean_clone.py tests/end_to_end/test_train.py \
	  tests/end_to_end/test_first_hour.py tests/end_to_end/test_retrain.py \
	  tests/end_to_end/test_examples.py::test_an_own_domain_is_trained_evaluated_and_registered \
	  tests/end_to_end/test_examples.py::test_a_change_of_its_source_collects_again tests/tracking \
	  tests/stages tests/rollout tests/flows tests/tasks tests/api tests/methods tests/reproduce tests/test_docs.py \
	  tests/frontend/test_synthetic.py tests/base_agent/test_shipped_bases.py \
	  tests/lm/test_trees.py tests/lm/test_gpu_benchmark.py tests/sweet/test_compiled.py tests/spread/test_share.py \
	  tests/backend/test_tasks.py $(ARGS)

test-all: environment ## every test, the slow ones too
	@$(BIN)/python -m pytest $(ARGS)

test-vllm: environment environment-vllm ## the tests against a real vLLM on the CPU, in an environment of its own
	@SWEETRL_VLLM=$(abspath $(VLLM_VENV)/bin/python) $(BIN)/python -m pytest tests/integration $(ARGS)

test-ray: environment-ray ## the stages' shares on a local Ray cluster of two nodes
	@$(BIN)/python -m pytest tests/spread/test_ray.py $(ARGS)

test-services: environment-services ## retrainings with a team's servers, which it starts: PostgreSQL, S3, MLflow, Prefect, a worker
	@SWEETRL_SERVICES=1 $(ONE_THREAD) .venv-services/bin/python -m pytest tests/services $(ARGS)

# The project's environment with drivers for PostgreSQL and two S3 servers in front of it.
environment-services: environment .venv-services/.ready postgres

test-interop: environment-interop ## the adapters with the real OpenEnv, TRL, inspect_ai, verifiers and trackers
	@for venv in $(INTEROP_VENVS); do \
	  $(ONE_THREAD) $$venv/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile tests/interop tests/sweet/test_reporting.py $(ARGS) || exit 1; \
	done

# verifiers and OpenEnv want different versions of mcp, so each has an environment: the project's, with other packages in
# front of it. A lock holds only what is not in requirements.lock, or is there in another version.
environment-interop: $(INTEROP_VENVS:%=%/.ready)

.venv-%/.ready: requirements-%.lock $(READY)
	@test -x .venv-$*/bin/python || $(BIN)/python -m venv .venv-$*
	@purelib='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	echo "import site; site.addsitedir('$$($(BIN)/python -c "$$purelib")')" > "$$(.venv-$*/bin/python -c "$$purelib")/project.pth"
	@.venv-$*/bin/python -m pip install --quiet --no-compile --no-deps -r requirements-$*.lock
	@touch $@

fuzz: environment-fuzz ## vary the inputs of all parsers for SECONDS of processor time; what breaks one is kept
	@$(ONE_THREAD) $(BIN)/python tests/fuzz/fuzzing.py --seconds $(SECONDS) $(ARGS)

environment-fuzz: $(VENV)/.ready-fuzz

$(VENV)/.ready-fuzz: requirements-fuzz.lock $(READY)
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps -r requirements-fuzz.lock
	@touch $@

sbom: environment .venv-sbom/.ready ## list every package of the environment with its licence: sbom.cdx.json (CycloneDX)
	@.venv-sbom/bin/cyclonedx-py environment --output-reproducible --of JSON -o sbom.cdx.json $(BIN)/python
	@echo "sbom.cdx.json: $$($(BIN)/python -c 'import json; print(len(json.load(open("sbom.cdx.json"))["components"]))') packages"

# The extra `ray` in the project's environment: what it needs beyond requirements.lock, of which nothing changes.
environment-ray: $(VENV)/.ready-ray

$(VENV)/.ready-ray: requirements-ray.lock $(READY)
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps -r requirements-ray.lock
	@touch $@

# vLLM wants other versions of much that the project uses, so nothing is shared. What it asks for and does not need here
# (pictures, sound) has no build without a GPU, so its own list of needs is not followed: the lock is.
environment-vllm: $(VLLM_VENV)/.ready

$(VLLM_VENV)/.ready: requirements-vllm.lock
	@echo "setting up $(VLLM_VENV), $$(grep -c == requirements-vllm.lock) packages, 3 GiB"
	@test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/python -m pip install --quiet --no-compile --no-deps -r requirements-vllm.lock
	@$(VLLM_VENV)/bin/python -m pip install --quiet --no-compile --no-deps --no-build-isolation -e .
	@touch $@

test-infra: environment environment-infra ## the images' scripts, and the manifests against Kubernetes' schemas
	@.venv-infra/bin/python -m pytest -m "not slow" tests/infra $(ARGS)

test-images: environment ## make the servers' image, where buildah and debootstrap can
	@$(BIN)/python -m pytest -m slow tests/infra $(ARGS)

environment-infra: .venv-infra/.ready

test-smollm2: environment environment-smollm2 ## the tests of GGUF files, and of the pretrained model that a Python package carries
	@.venv-smollm2/bin/python -m pytest tests/stages/test_gguf.py tests/stages/test_smollm2.py $(ARGS)

environment-smollm2: .venv-smollm2/.ready

# The dvc.lock to compare with; empty: the last commit's.
BEFORE ?=

same-bytes: environment ## run the main job again and say which results have other bytes than before
	@$(BIN)/python benchmarks/same_bytes.py $(BEFORE)

lint: environment ## style, formatting, architecture, types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

format: environment ## put the code into the house's form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: environment ## write docs/parameters.md again
	@$(BIN)/python -m sweetrl.config.settings

docs-site: environment environment-docs ## the docs as a site: build/docs/index.html, to be opened from the disk or served
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=docs/site .venv-docs/bin/mkdocs build --quiet --strict --site-dir $(abspath $(SITE))
	@echo "$(SITE)/index.html: $$(find $(SITE) -name '*.html' | wc -l) pages"

test-docs: docs-site ## build the site, and look at its links, its search and what it loads
	@$(ONE_THREAD) $(BIN)/python -m pytest tests/docs $(ARGS)

environment-docs: .venv-docs/.ready

# DVC never runs a frozen stage, so the stage is run by hand and its result recorded.
base-model: environment ## train the small base agent from scratch (it ships with the project)
	@$(BIN)/python -m sweetrl.stages.pretrain
	@$(BIN)/dvc commit --quiet --force pretrain

smollm2: environment environment-smollm2 ## a pretrained model without a hub, in models/smollm2 (270 MB; from a Python package of 93 MB)
	@cd reproduce/smollm2 && $(abspath $(BIN))/dvc repro --quiet dvc.yaml:smollm2

warm-start: environment ## let a pretrained model imitate scripted dialogues: warm_start.base becomes model.base
	@$(BIN)/python -m sweetrl.stages.warm_start

ui: environment ## browse the runs and models of the embedded store
	@echo "open http://127.0.0.1:5000/#/experiments/1?workflowType=machine_learning once it listens (the address changes with --port)"
	@$(BIN)/mlflow ui --backend-store-uri sqlite:///mlflow.db $(ARGS)

BROWSER := chromium-headless-shell chromium-sandbox fonts-liberation fonts-dejavu-core

browser: ## install the browser of Frontend Design (Debian; as root, else it says what to do)
	@if [ -x /usr/lib/chromium/chromium-headless-shell ] || [ -x /usr/lib/chromium/chromium ]; then echo "a browser is there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends $(BROWSER); \
	else echo "run as root: apt-get install $(BROWSER) (or install Chromium or Chrome another way)" >&2; exit 1; fi

postgres: ## install PostgreSQL's programs for make test-services (Debian; as root, else it says what to do)
	@if ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null; then echo "PostgreSQL is there"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql; \
	else echo "run as root: apt-get install postgresql (or install PostgreSQL another way)" >&2; exit 1; fi

doctor: environment ## check this machine
	@$(BIN)/sweetrl doctor

environment: $(READY)

# The lock pins everything, so nothing is resolved; only where a package wants more than the lock holds (a build of torch
# for GPUs: its CUDA libraries) pip looks once more. Modules are compiled when they are first imported.
$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 to 3.14 on the PATH; install one, or name it: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { \
	  echo "error: $(PYTHON) is no Python 3.11 to 3.14 ($$($(PYTHON) --version 2>&1)); name one: make PYTHON=python3.12" >&2; exit 1; }
	@start=$$(date +%s); \
	echo "setting up $(VENV) with $$($(PYTHON) --version), $$(grep -c == requirements.lock) packages; a few minutes the first time"; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || exit 1; \
	$(BIN)/python -m pip install --quiet --no-compile --no-deps -r requirements.lock || exit 1; \
	$(BIN)/python -m pip check >/dev/null || $(BIN)/python -m pip install --quiet --no-compile -r requirements.lock || exit 1; \
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . || exit 1; \
	touch $(READY); echo "environment ready after $$(( $$(date +%s) - start )) s"

clean: ## remove caches and unfinished work
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache build dist .scratch .cache
	find . -name __pycache__ -not -path './$(VENV)/*' -not -path './.venv-*/*' -prune -exec rm -rf {} +

clean-environment: ## remove the environment, and those beside it
	rm -rf $(VENV) $(VLLM_VENV) .venv-*
