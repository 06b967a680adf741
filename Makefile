# Commands for people and for CI. Recipes call; what has a life of its own is in scripts/ or lab/.

.DEFAULT_GOAL := help
.PHONY: help demo test check conformance acceptance cluster cluster-down cluster-shell sim lab report fuzz soak gen docs release image fmt clean cost-check

# Where rustup puts cargo, which a shell started before the installation does not know.
export PATH := $(HOME)/.cargo/bin:$(PATH)
PYTHON := .cache/venv/bin/python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a new replica under kept-alive load: by kube-proxy's rules if root, and behind Sheave; minutes once built
	@scripts/setup demo
	@$(PYTHON) -m lab.demo

test: ## every test: unit, property, golden, models of threads, simulated seeds, end to end, the lab's
	@scripts/setup test
	@scripts/test

check: ## format, lints, documentation, dependencies, then `make test`: green means ready to commit
	@scripts/setup check
	@scripts/check

conformance: ## others' suites, clients and servers of TLS, HTTP/2, HTTP/3, WebSocket and gRPC; needs Go
	@scripts/setup conformance
	@scripts/conformance

acceptance: ## Sheave in a cluster, while pods, replicas and the API server come and go; root, a quiet machine, 25 minutes
	@scripts/acceptance

cluster: ## a real Kubernetes for tests: three nodes as namespaces (NODE=real: one with a real kubelet)
	@scripts/setup cluster
	@scripts/python -m tests.cluster up $(if $(filter real,$(NODE)),--real n3)

cluster-down: ## remove it, or what a killed one has left
	@scripts/python -m tests.cluster down

cluster-shell: ## a shell with its kubectl
	@scripts/python -m tests.cluster shell

sim: ## search for a failure (SEEDS=100000), or replay one traced (SEED=42)
	@scripts/setup test
	@scripts/sim

lab: ## list the experiments; EXP=name runs one, ARGS="--quick --cluster --only VARIANT,... --json FILE"
	@scripts/setup lab
	@$(PYTHON) -m lab $(if $(EXP),run $(EXP) $(ARGS),list)

report: ## one page of the newest run of article-000, with its pictures; ARGS=FOLDER for another run
	@scripts/setup lab
	@$(PYTHON) -m lab report $(ARGS)

cost-check: ## instructions per request against the committed figure
	@scripts/setup cost-check
	@scripts/python -m lab.cost_check $(ARGS)

fuzz: ## each fuzz target for SECONDS=60; TARGET=name for one
	@scripts/setup fuzz
	@scripts/fuzz $(or $(SECONDS),60) $(TARGET)

soak: ## an hour of load and faults; memory, descriptors, counts as before; MINUTES=60 SEED=1 SUMMARY=FILE CLUSTER=1
	@scripts/setup test
	@scripts/soak

gen: ## write generated files anew: CRDs, reference pages, plain manifests, the dashboard; needs Go and Node.js
	@scripts/setup gen
	@scripts/gen

docs: ## a site of docs/ in target/docs, its links checked
	@scripts/setup docs
	@scripts/docs

release: ## build Sheave as it is shipped, optimised by what a load shows; a quarter of an hour at first
	@scripts/release

image: ## pack the image of ARCH=amd64 or arm64, without a registry; a quarter of an hour at first
	@scripts/setup image
	@scripts/image $(or $(ARCH),amd64)

fmt: ## format the Rust code
	@cargo fmt --all

clean: ## remove what was built and fetched
	@cargo clean
	@rm -rf .cache dashboard/node_modules
