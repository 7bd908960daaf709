# The same commands on a laptop and in CI. Needs Python 3.11 or later, make and git; nothing else.

PYTHON  ?= python3
INTERPRETERS ?= python3.12 python3.13
VENV    ?= .venv
# Two more than there are cores: tests wait a third of their time.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 2 : 6)))
TESTS   ?= tests
ARGS    ?=

PY     := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
PIP    := $(PY) -m pip --disable-pip-version-check install
INSTALL := tools/installing.sh $(VENV)
COMPILE := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-header --no-emit-index-url --no-emit-find-links --no-emit-package cachetier-client \
    $(if $(UPGRADE),--upgrade)
SOURCES := cachetier client tests benchmarks examples tools

export PYTHONUNBUFFERED = 1
# Each of hundreds of processes would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check quick interpreters test late soak faults fuzz prometheus chromium slurm xfs helm acceptance demo near peers bench carry scale paired frameworks s3clients stores site changelog release-check docs house messages costs mutants golden serve dev wheels lock sbom audit digests targets clean

help:  ## List the targets
	@echo 'cachetier: make <target>'
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: $(STAMPS)/distributions $(STAMPS)/torch  ## Create .venv and install everything, pinned (quick when done)

check: setup  ## Lint, format, types, import layers, dependencies, spelling, plain words
	@echo '==> merges'; ! git grep --line-number --extended-regexp '^(<<<<<<<|>>>>>>>) ' -- . ':!tests/crash/golden'
	@echo '==> ruff'; $(VENV)/bin/ruff check $(SOURCES) && $(VENV)/bin/ruff format --check $(SOURCES)
	@echo '==> mypy'; $(VENV)/bin/mypy $(SOURCES)
	@echo '==> import-linter'; $(VENV)/bin/lint-imports --no-cache
	@echo '==> deptry'; $(VENV)/bin/deptry . && cd client && $(abspath $(VENV))/bin/deptry .
	@echo '==> codespell'; $(VENV)/bin/codespell $(SOURCES) changes deploy docs Makefile mkdocs.yml *.md
	@echo '==> plain words'; $(PY) -m tools.house.words

test: setup prometheus chromium $(STAMPS)/frameworks  ## Run the whole test suite (TESTS=path, ARGS='-k word', WORKERS=n)
	@$(PY) -m pytest -n $(WORKERS) $(ARGS) $(TESTS)

quick: setup  ## Run the tests for the loop of a person at work: unit, client, conformance
	@$(PY) -m pytest -n $(WORKERS) $(ARGS) tests/unit tests/client tests/conformance

interpreters:  ## Run those tests on the other Pythons of the classifiers (INTERPRETERS="python3.12 python3.13")
	@for python in $(INTERPRETERS); do \
	    $(MAKE) --no-print-directory quick VENV=$(VENV)/$${python##*/} PYTHON=$$python || exit 1; done

late: setup prometheus chromium  ## Run the tests with threads that come late, to find outcomes that depend on speed (SEED=1, TESTS=path)
	@CACHETIER_LATE=$(or $(SEED),1) PYTHONPATH=tests/late $(PY) -m pytest -n $(WORKERS) $(ARGS) $(TESTS)

soak: setup prometheus chromium  ## Run the tests that repeat at length, or (MINUTES=90) nodes under load and faults, judged from outside
	@$(if $(MINUTES),$(PY) -m tests.soak --minutes $(MINUTES) $(ARGS),FAULT_SLICE=all $(PY) -m pytest -n $(WORKERS) $(ARGS) -m soak tests)

faults: setup xfs  ## Run every fault, an hour, and write tests/faults/REPORT.md (PART=kill: one part)
	@$(PY) -m tests.faults --workers $(WORKERS) $(if $(PART),--part $(PART))

fuzz: setup  ## Fuzz both doors and every parser with new seeds (HOURS=1)
	@$(PY) -m tests.fuzz --hours $(or $(HOURS),1) $(ARGS)

prometheus: $(STAMPS)/venv  ## Have prometheus for the tests of metrics: Debian's, unpacked into .venv
	@tools/get_debian.sh $(VENV)/prometheus prometheus prometheus

chromium: $(STAMPS)/venv  ## Have a browser for the tests of the console: Debian's, unpacked into .venv
	@tools/get_debian.sh $(VENV)/chromium chromium-headless-shell chromium-headless-shell+

slurm: setup  ## Run the scripts for Slurm in a real one of one node: Debian's, unpacked into .venv; needs root
	@tools/get_debian.sh $(VENV)/slurm slurmctld-wlm slurmctld+ slurmd+ slurm-client+
	@$(PY) -m pytest $(ARGS) tests/integration/test_slurm_cluster.py

xfs: $(STAMPS)/venv  ## Have mkfs.xfs for the power cuts on XFS: Debian's, unpacked into .venv
	@tools/get_debian.sh $(VENV)/xfs mkfs.xfs xfsprogs libinih1 liburcu8

helm: setup $(STAMPS)/helm  ## Render the chart with real Helm, lint it, validate it, keep what came out (ARGS=--check: compare)
	@$(VENV)/helm/bin/python -m tools.helm --digest $$($(PY) -c 'from tools.helm.chart import digest; print(digest())') $(ARGS)

acceptance: setup  ## Run the container tests too: needs Docker and compose, and fails without
	@CACHETIER_ACCEPTANCE=1 $(PY) -m pytest tests/acceptance $(ARGS)

demo: setup  ## Train, kill, resume, lose the node, restore: everything on this machine (LOSE=1: lose a node whose step only its neighbours have)
	@$(PY) -m $(if $(LOSE),examples.peers.losing,examples.demo) $(ARGS)

near: setup  ## Lose a storage server, the node and the link to S3; restore from the near tier
	@$(PY) -m examples.near_tier $(ARGS)

peers: setup  ## Restore one step on four nodes, each alone and then as peers; who read what from where
	@$(PY) -m examples.peers $(ARGS)

bench: setup $(STAMPS)/bench  ## Measure and write benchmarks/results.json (ONLY=group; FULL=1: all worlds of link, goes on where it was broken off)
	@CACHETIER_BENCH_FULL=$(FULL) $(PY) -m benchmarks $(if $(ONLY),--only $(ONLY)) $(ARGS)

paired: setup $(STAMPS)/bench  ## Measure this tree beside a commit, in turns (BASE=commit)
	@$(PY) -m benchmarks.paired --base $(BASE) $(ARGS)

frameworks: setup  ## Test each framework in an environment of its own (ONLY=ray); writes docs/frameworks-results.json
	@$(PY) -m tools.frameworks $(if $(ONLY),--only $(ONLY)) $(ARGS)

s3clients: setup  ## Test each client of S3 through the door, likewise (ONLY=awscli); writes docs/s3clients-results.json
	@$(PY) -m tools.frameworks --of s3clients $(if $(ONLY),--only $(ONLY)) $(ARGS)

stores: setup  ## Run conformance, faults and order against other S3 servers (ONLY=rclone, ARGS='--part order'); writes docs/stores-results.json
	@$(PY) -m tests.stores $(if $(ONLY),--only $(ONLY)) $(ARGS)

site: setup $(STAMPS)/release  ## Build the pages as a site in build/site; a dead link ends it
	@$(PY) -m tools.site $(VENV)/release/bin/zensical

changelog: setup $(STAMPS)/release  ## Show the changelog of the fragments in changes/ (RELEASE=1: write it, and remove them)
	@$(VENV)/release/bin/towncrier build $(if $(RELEASE),--yes,--draft) --version $$($(PY) -m tools.versions)

release-check: setup wheels sbom site $(STAMPS)/release $(STAMPS)/helm  ## Build a release into dist/, twice and the same, install it, run it; chart, site and all
	@$(MAKE) --no-print-directory helm ARGS=--check
	@$(PY) -m tools.release

docs: setup  ## Write the pages and dashboards that are made from the code
	@$(PY) -m tools

house: setup  ## Count lines, small modules and shared names, and what runs on a byte's way (ARGS=--list)
	@$(PY) -m tools.house.sizes $(ARGS)
	@$(PY) -m tools.house.byte_path $(ARGS)
	@$(PY) -m tools.house.limits
	@$(PY) -m tools.house.costs

messages: setup  ## List every text that the service and the client show to people, by kind (ARGS=hint: one kind)
	@$(PY) -m tools.house.messages $(ARGS)

golden: setup  ## Play 200 lives and a matrix of faults, and compare what they ask of bucket, disk and SQLite with what is kept (ARGS=--write keeps it)
	@$(PY) -m tests.oracle.golden $(ARGS)

costs: setup  ## Count syncs, statements, requests, messages and moved bytes of calls (ARGS=--write keeps them)
	@$(PY) -m tools.house.costs $(ARGS)

mutants: setup  ## Repeat the mutants of the core, each with the test that killed it (ONLY=path, ARGS=--sample=20)
	@$(PY) -m tests.mutants --only '$(ONLY)' $(ARGS)

serve: setup  ## Run the service with the settings in the environment (ARGS=...)
	@$(VENV)/bin/cachetier serve $(ARGS)

dev: setup  ## Run the service and an S3 server in one process, for a laptop
	@$(VENV)/bin/cachetier dev $(ARGS)

wheels: setup  ## Download what the image needs into deploy/wheels, for an image build without network
	@$(PY) -m pip --disable-pip-version-check download --quiet --only-binary :all: --dest deploy/wheels \
	    --require-hashes --requirement requirements/build.txt --requirement requirements/service.txt
	@ls deploy/wheels

# For Linux on x86-64 with Python 3.12; the certificates for TLS are made by cryptography.
carry: setup  ## Download into .scale what `python3 -m benchmarks.scale.bare RESULTS` needs on another machine
	@rm -rf .scale
	@for what in '--require-hashes --requirement requirements/service.txt' \
	    '$(shell grep -oE '^(cryptography|cffi|pycparser)==[0-9.]+' requirements/dev.txt)'; do \
	    $(PY) -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: --python-version 3.12 \
	        --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --dest .scale/wheels $$what || exit; done
	@du -sm .scale/wheels

scale: setup  ## Drain and restore with 1, 2, 4 and 8 carriers here, plain and TLS; writes .scale/results
	@$(PY) -m benchmarks.scale .scale/results $(ARGS)

lock: $(STAMPS)/venv  ## Resolve requirements/*.txt again (UPGRADE=1: to the newest)
	@$(PIP) --quiet 'uv>=0.13'
	@$(COMPILE) --output-file requirements/dev.txt \
	    pyproject.toml client/pyproject.toml requirements/dev.in
	@$(COMPILE) --output-file requirements/service.txt --constraint requirements/dev.txt \
	    pyproject.toml client/pyproject.toml
	@$(COMPILE) --output-file requirements/build.txt --constraint requirements/dev.txt requirements/build.in
	@for list in audit helm release; do $(COMPILE) --output-file requirements/$$list.txt requirements/$$list.in || exit; done
	@echo "torch; sys_platform == 'none'" > $(STAMPS)/without-torch.txt
	@$(COMPILE) --output-file requirements/frameworks.txt --constraint requirements/dev.txt \
	    --override $(STAMPS)/without-torch.txt --no-emit-package torch requirements/frameworks.in
	@for list in $(filter-out %/megatron.in,$(wildcard requirements/frameworks/*.in requirements/s3clients/*.in requirements/stores/*.in)); do \
	    $(COMPILE) --no-deps --no-annotate --output-file "$${list%.in}.txt" "$$list" || exit; done
	@$(subst 3.11,3.12,$(COMPILE)) --no-deps --no-annotate \
	    --output-file requirements/frameworks/megatron.txt requirements/frameworks/megatron.in
	@! grep -nE '(https?|file)://|--(index|extra-index|find-links)' requirements/*.txt requirements/frameworks/*.txt requirements/s3clients/*.txt requirements/stores/*.txt
	@! grep -n '"resolved":' requirements/s3clients/*/*.json

sbom: $(STAMPS)/audit  ## Write build/sbom.json, a CycloneDX list of what the image installs, and validate it
	@mkdir -p build
	@PYTHONWARNINGS=ignore $(VENV)/audit/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	    --validate --output-format JSON --output-file build/sbom.json requirements/service.txt
	@echo 'build/sbom.json is written'

audit: $(STAMPS)/audit  ## Look up known vulnerabilities of all that is pinned; fails where it cannot ask
	@$(PY) -m tools.audit $(VENV)/audit/bin/pip-audit $(ARGS)

digests: $(STAMPS)/venv  ## Pin the images of deploy/ by digest, where registries can be asked (IMAGE=registry/cachetier:0.1.0)
	@$(PY) -m tools.digests $(if $(IMAGE),--image $(IMAGE))

targets: setup  ## Try every target in a fresh clone, and say how long each took (ONLY='demo site', ARGS=--long)
	@$(PY) -m tools.targets $(ARGS) $(ONLY)

clean:  ## Remove what the tools left behind, but not .venv
	rm -rf deploy/wheels/*.whl build dist client/dist .demo .near .peers .bench .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# --- setup, step by step; a stamp says that a step is done for the files it depends on ---------

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo 'cachetier needs Python 3.11 or later: make setup PYTHON=/path/to/python3.11' >&2; exit 1; }
	@test -x $(PY) || { echo 'make setup installs all that this repository needs into $(VENV), and nothing elsewhere: 1.8 GB (several more with'; \
	    echo 'a CUDA build of torch), two to five minutes. What the installers say goes to $(VENV)/setup.log.'; \
	    echo '==> creating $(VENV)'; $(PYTHON) -m venv $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: requirements/dev.txt $(STAMPS)/venv
	@$(INSTALL) 'the pinned requirements' --require-hashes --requirement requirements/dev.txt
	@touch $@

$(STAMPS)/distributions: pyproject.toml client/pyproject.toml $(STAMPS)/requirements
	@$(INSTALL) 'cachetier and cachetier-client, editable' --no-deps --no-build-isolation --editable client --editable .
	@touch $@

$(STAMPS)/torch: requirements/torch.txt $(STAMPS)/requirements
	@ONLY=pip $(INSTALL) 'torch (large; for the demo and the torch tests)' --requirement requirements/torch.txt
	@touch $@

# Their versions of what dev.txt has, too, are dev.txt's. Torch, which they need, is there.
$(STAMPS)/frameworks: requirements/frameworks.txt $(STAMPS)/torch
	@$(INSTALL) 'the trainers whose tests run here' --no-deps --require-hashes --requirement $<
	@touch $@

$(STAMPS)/bench: requirements/bench.txt $(STAMPS)/torch
	@echo '==> installing what the benches compare with'
	@for proxy in nginx haproxy; do tools/get_debian.sh build/stores/$$proxy $$proxy $$proxy+; done
	@if $(PIP) --quiet --no-deps --no-build-isolation --requirement requirements/bench.txt; then touch $@; \
	    else echo '    not possible here: the rows that need it will say so'; fi

# Environments of their own, as these tools bring some fifty packages that nothing else needs: what audits
# the requirements, what renders the chart, what builds a release and the site.
$(STAMPS)/audit $(STAMPS)/helm $(STAMPS)/release: $(STAMPS)/%: requirements/%.txt $(STAMPS)/venv
	@echo '==> installing what $* needs, into $(VENV)/$*'
	@test -x $(VENV)/$*/bin/python || $(PY) -m venv $(VENV)/$*
	@$(VENV)/$*/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes --requirement $<
	@touch $@
