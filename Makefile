# All targets run on a bare Debian with Go, as root. They install or build what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# kubectl finds its plugin in bin.
export PATH := $(CURDIR)/bin:$(PATH)

# CLUSTER=current uses the cluster of the current kubeconfig instead of the local one.
export CLUSTER
# KUBERNETES=v1.34.4 selects the version of Kubernetes: of a new local cluster, and of the API server in make unit.
# chainsaw-tests/tools has the versions. Run make down before you change the version.
export KUBERNETES
# API_SERVERS=3 starts a new local cluster with three API servers behind a balancer, and two replicas of Kyverno.
export API_SERVERS
# The registry and the tag of the project's images. The local cluster gets the images
# directly. For another cluster, push them to the registry first.
REGISTRY ?= ghcr.io/statefulsingleton
VERSION ?= $(shell awk '/^appVersion:/ {print $$2}' charts/statefulsingleton/Chart.yaml)
RELEASE ?= statefulsingleton
export APP_IMAGE := $(REGISTRY)/app:$(VERSION)

# Programs for tests, from a Go module of their own.
test_programs := $(addprefix bin/,cluster demo soak bench bench-scale mutations images example-images licenses)
cluster := bin/cluster
promtool := bin/promtool
golangci := bin/golangci-lint
in_cluster = $(cluster) exec --
tools = $$($(cluster) tools)

##@ Try it

.PHONY: demo
demo: install bin/demo ## Show a handoff on a real Kubernetes
	$(in_cluster) bin/demo

.PHONY: down
down: $(cluster) ## Remove the local cluster and all its processes
	$(cluster) down

##@ Test

.PHONY: test
test: verify lint unit e2e ## Run all tests

.PHONY: lint
lint: $(golangci) ## Check the code with .golangci.yml
	$(golangci) config verify
	$(golangci) run
	cd chainsaw-tests && $(CURDIR)/$(golangci) run

# In a copy, to leave uncommitted changes alone.
.PHONY: verify
verify: ## Fail if make generate would change a file; changes nothing
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	tar -c --exclude=./.git --exclude=./bin --exclude=./dist . | tar -x -C "$$copy"; \
	$(MAKE) -C "$$copy" generate; \
	diff -ruN -x .git -x bin -x dist . "$$copy" || \
		{ echo "The files above are not what make generate writes: run it, and commit what it changes." >&2; exit 1; }

.PHONY: search
search: ## Search all states of small models for two running pods; DEEP=1 searches larger models
	go test -count=1 -v -timeout 2h -run '^TestSearch' ./controller/handoff ./controller/membership ./controller/tenure $(if $(DEEP),-deep) | grep -v '^=== '

.PHONY: unit
unit: deps $(promtool) search ## Run the tests beside the code, with Kyverno's engine and a real API server
	tools=$(tools); export PATH="$$tools:$(CURDIR)/bin:$$PATH" KUBEBUILDER_ASSETS="$$tools"; \
	go test -count=1 -timeout 20m -skip '^TestSearch' ./...; go -C chainsaw-tests test -count=1 ./...

# Flags of chainsaw-tests/cmd/mutations, for example MUTATIONS="-area handoff".
MUTATIONS ?=
.PHONY: mutations
mutations: $(cluster) $(promtool) bin/mutations ## Apply each mutation, and check that a test fails
	tools=$(tools) && PATH="$$tools:$(CURDIR)/bin:$$PATH" KUBEBUILDER_ASSETS="$$tools" bin/mutations $(MUTATIONS)

.PHONY: vulnerabilities
vulnerabilities: ## List known vulnerabilities in released programs; queries vuln.go.dev
	go run golang.org/x/vuln/cmd/govulncheck@v1.6.0 ./controller/cmd/...

# With several API servers, the tests of failures of one of them run too.
fault_tags = cluster$(if $(filter-out 1,$(API_SERVERS)),$(comma)apiservers)
comma := ,

.PHONY: own-cluster
own-cluster:
	@[ "$$CLUSTER" != current ] || { echo "this breaks the cluster that it runs on: unset CLUSTER, and it runs on the local one" >&2; exit 1; }

.PHONY: faults
faults: own-cluster install example-images ## Test failures of nodes, kubelets, API servers, Kyverno and controller on the local cluster
	$(in_cluster) go -C chainsaw-tests test -count=1 -timeout $(if $(API_SERVERS),75m,45m) -tags $(fault_tags) ./faults

.PHONY: gitops-fixtures
gitops-fixtures: own-cluster install ## Record docs/gitops/testdata, with which Argo CD's health check is tested, on the local cluster
	$(in_cluster) go -C chainsaw-tests test -count=1 -tags cluster -run '^TestGitOps' ./faults -record

# SEED determines the faults and their order. 0 selects a random seed. With FROM, a git revision, one of the faults replaces
# this release by the release of that revision for a while: FROM=v0.1.0.
SEED ?= 0
HANDOFFS ?= 200
FROM ?=
other := dist/other
.PHONY: soak
soak: own-cluster install bin/soak $(if $(FROM),other-release) ## Run HANDOFFS (200) handoffs under random faults, by SEED, and check that no two pods ran at once
	$(in_cluster) bin/soak -seed $(SEED) -handoffs $(HANDOFFS) $(if $(FROM),-other $(other) -version $(VERSION))

.PHONY: soak-clusters
soak-clusters: own-cluster install bin/soak ## Replace pods of StatefulClusters HANDOFFS (200) times under random faults, and check names and volumes
	$(in_cluster) bin/soak -clusters -seed $(SEED) -handoffs $(HANDOFFS)

.PHONY: upgrades
upgrades: own-cluster install plugin other-release ## Test an upgrade from the release FROM and a downgrade to it, amid handoffs, on the local cluster
	$(in_cluster) go -C chainsaw-tests test -count=1 -timeout 20m -tags cluster,release -run '^TestOtherRelease$$' ./faults -other $(CURDIR)/$(other) -version $(VERSION)
	$(MAKE) soak SEED=3 HANDOFFS=40

.PHONY: other-release
other-release: up
	@[ -n "$(FROM)" ] || { echo "set FROM to the git revision of another release, for example FROM=v0.1.0" >&2; exit 1; }
	rm -rf $(other) && mkdir -p $(other) && git archive $(FROM) | tar -x -C $(other)
	$(MAKE) -C $(other) images plugin VERSION=other
	for image in manager cluster-manager gate; do $(cluster) load $(other)/dist/images/$$image.tar; done

# Flags of chainsaw-tests/cmd/bench, for example BENCH="-n 5 -systems wrapper,recreate", and of its other parts, for
# example BENCH_LOCKS="-n 5 -systems lease".
BENCH ?=
BENCH_LOCKS ?=
BENCH_CLUSTERS ?=
.PHONY: bench
bench: own-cluster install bin/bench ## Measure handoffs beside Kubernetes' own strategies, locks, and StatefulClusters beside StatefulSets; takes hours
	$(in_cluster) bin/bench -summary docs/benchmarks/gap.json $(BENCH)
	$(in_cluster) bin/bench locks -summary docs/benchmarks/locks.json $(BENCH_LOCKS)
	$(in_cluster) bin/bench clusters -summary docs/benchmarks/clusters.json $(BENCH_CLUSTERS)
	$(MAKE) bench-report

.PHONY: bench-report
bench-report: bin/bench bin/bench-scale ## Write the pages of the last make bench and make bench-scale
	bin/bench -report -summary docs/benchmarks/gap.json -readme README.md
	bin/bench-scale -report
	bin/bench locks -report -summary docs/benchmarks/locks.json
	bin/bench clusters -report -summary docs/benchmarks/clusters.json

# Flags of chainsaw-tests/cmd/bench-scale.
SCALE ?=
.PHONY: bench-scale
bench-scale: own-cluster install bin/bench-scale ## Measure the costs of a thousand singletons; about two hours
	$(in_cluster) bin/bench-scale $(SCALE)
	$(MAKE) bench-report

.PHONY: e2e
e2e: demo plugin example-images ## Run the end-to-end tests on the local cluster: demo, cases, faults, soak, pages, README
ifneq ($(CLUSTER),current)
	go -C chainsaw-tests test -count=1 -tags $(fault_tags) -run '^TestLifeOf' ./cmd/cluster
endif
	$(in_cluster) go test -count=1 -tags cluster -run '^Test(Shared|Members)?OnCluster$$' ./policies
	@mkdir -p dist
	$(in_cluster) chainsaw test chainsaw-tests/cases --config chainsaw-tests/.chainsaw.yaml --no-color \
		--set image=$(REGISTRY)/app:$(VERSION) --set writer=$(REGISTRY)/writer:$(VERSION) --report-format JUNIT-TEST --report-path dist --report-name chainsaw | tee dist/chainsaw.log \
		|| { awk -f chainsaw-tests/scripts/errors.awk dist/chainsaw.log; exit 1; }
ifneq ($(CLUSTER),current)
	$(MAKE) faults
	$(MAKE) soak SEED=1 HANDOFFS=20
endif
	$(MAKE) pages
	$(in_cluster) chainsaw-tests/scripts/readme.sh

.PHONY: pages
pages: install plugin example-images ## Run the commands of the pages in docs
	$(in_cluster) chainsaw-tests/scripts/pages.sh $$(find docs -name '*.md' | sort)

##@ Build

.PHONY: images
images: bin/images ## Build the images into dist/images, without Docker
	bin/images -registry $(REGISTRY) -version $(VERSION)

.PHONY: plugin
plugin: ## Build kubectl stfs and its completion into bin
	go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o bin/kubectl-stfs ./controller/cmd/kubectl-stfs
	install controller/cmd/kubectl-stfs/kubectl_complete-stfs bin

# The generators run in their folder, so other paths must be absolute.
generator := go -C chainsaw-tests/tools/generate tool
chart := $(CURDIR)/charts/statefulsingleton
.PHONY: generate
generate: deps ## Write the generated files: deep copies, the CRD, docs/api.md, and the chart's schema and README
	tools=$(tools) && "$$tools/controller-gen" object paths=./controller/api/... crd output:crd:dir=charts/statefulsingleton/files/crds
	$(generator) crd-ref-docs --source-path $(CURDIR)/controller/api --config api/config.yaml --templates-dir api --renderer markdown \
		--output-path $(CURDIR)/docs/api.md --log-level ERROR
	$(generator) helm-values-schema-json --values $(chart)/values.yaml --output $(chart)/values.schema.json --indent 2 --no-additional-properties
	$(generator) helm-tool inject --values $(chart)/values.yaml --output $(chart)/README.md --template markdown-plain \
		--header-search '^<!-- values -->' --footer-search '^<!-- /values -->'

##@ Release

# The files of a release.
release := dist/release
# A release is built with the version of Go that the tests use.
release-%: export GOTOOLCHAIN := go$(shell awk '/^go / {print $$2}' go.mod)
helm := go -C $(CURDIR)/chainsaw-tests/tools/helm tool helm

.PHONY: release-check
release-check: ## Fail unless TAG, the chart and CHANGELOG.md have the same version
	@awk -v version=$(VERSION) '/^(version|appVersion):/ && $$2 != version {print "charts/statefulsingleton/Chart.yaml: " $$1 " " $$2 ", want " version; bad = 1} END {exit bad}' \
		charts/statefulsingleton/Chart.yaml >&2
	@[ "$(TAG)" = "v$(VERSION)" ] || { echo "TAG is '$(TAG)', want v$(VERSION), by the chart's appVersion" >&2; exit 1; }
	@grep -qE '^## \[$(VERSION)\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$$' CHANGELOG.md || \
		{ echo "CHANGELOG.md: no line '## [$(VERSION)] - ' and the day of the release" >&2; exit 1; }

.PHONY: release-notes
release-notes: ## Print the section of the version in CHANGELOG.md
	@notes=$$(awk -v version='[$(VERSION)]' '/^## / {on = $$2 == version; next} /^\[.*\]: / {next} on' CHANGELOG.md); \
	[ -n "$$notes" ] || { echo "CHANGELOG.md says nothing of $(VERSION)" >&2; exit 1; }; \
	echo "$$notes"

# Beside each program, in a folder that ko adds to the program's image.
.PHONY: release-licenses
release-licenses: bin/licenses ## Collect the licences of the programs in the images and of their dependencies
	for program in controller/cmd/manager controller/cmd/cluster-manager controller/cmd/gate chainsaw-tests/images/app; do \
		mkdir -p $$program/kodata && cp LICENSE $$program/kodata && \
		bin/licenses ./$$program linux/amd64 linux/arm64 >$$program/kodata/THIRD-PARTY-LICENSES || exit 1; \
	done

.PHONY: release-images
release-images: release-licenses ## Build the images for amd64 and arm64 with their SBOMs, and push them to $(REGISTRY)
	@mkdir -p $(release)
	KO_DOCKER_REPO=$(REGISTRY) VERSION=$(VERSION) go run github.com/google/ko@v0.19.1 build --base-import-paths --tags $(VERSION) \
		--sbom-dir $(release)/sbom ./controller/cmd/manager ./controller/cmd/cluster-manager ./controller/cmd/gate | tee $(release)/images

crane := go run github.com/google/go-containerregistry/cmd/crane@v0.22.1
.PHONY: release-app
release-app: release-licenses bin/images ## Build the examples' application for amd64 and arm64, and push it to $(REGISTRY)
	@mkdir -p $(release)
	tar -C chainsaw-tests/images/app/kodata --mode=0644 --mtime=@0 --owner=0 --group=0 --numeric-owner -cf $(release)/app-licenses.tar LICENSE THIRD-PARTY-LICENSES
	for arch in amd64 arm64; do \
		bin/images -registry $(REGISTRY) -version $(VERSION) -arch $$arch -out $(release)/$$arch && \
		$(crane) push $(release)/$$arch/app.tar $(REGISTRY)/app:$(VERSION)-$$arch && \
		$(crane) append -b $(REGISTRY)/app:$(VERSION)-$$arch -f $(release)/app-licenses.tar -t $(REGISTRY)/app:$(VERSION)-$$arch || exit 1; \
	done
	$(crane) index append -t $(REGISTRY)/app:$(VERSION) -m $(REGISTRY)/app:$(VERSION)-amd64 -m $(REGISTRY)/app:$(VERSION)-arm64 | tee $(release)/app

.PHONY: release-chart
release-chart: ## Package the chart, and push it to oci://$(REGISTRY)/charts
	@mkdir -p $(release)
	$(helm) package $(chart) --version $(VERSION) --app-version $(VERSION) --destination $(CURDIR)/$(release)
	$(helm) push $(CURDIR)/$(release)/statefulsingleton-$(VERSION).tgz oci://$(REGISTRY)/charts 2>&1 | tee $(release)/push.log
	sed -n 's|^Digest: |$(REGISTRY)/charts/statefulsingleton@|p' $(release)/push.log | grep . >$(release)/chart

# kubectl would run Helm's hooks at once, so the uninstall Job is a separate file. The definition is one too, because it stays after an uninstallation.
render := $(helm) template statefulsingleton $(chart) --namespace statefulsingleton
.PHONY: release-manifest
release-manifest: ## Render the chart for kubectl: the definition, the installation, and the Job that uninstalls
	@mkdir -p $(release)
	$(render) --show-only templates/crd.yaml >$(release)/statefulsingleton-crds.yaml
	{ printf 'apiVersion: v1\nkind: Namespace\nmetadata:\n  name: statefulsingleton\n'; \
	$(render) --no-hooks --set crds.install=false --api-versions apps.statefulsingleton.com/v1/StatefulSingleton,apps.statefulsingleton.com/v1/StatefulSetLock; } >$(release)/statefulsingleton.yaml
	$(render) --show-only templates/uninstall.yaml >$(release)/statefulsingleton-uninstall.yaml

.PHONY: release-plugin
release-plugin: bin/licenses ## Build kubectl stfs for each platform of .krew.yaml: archives, checksums, and Krew's manifest
	chainsaw-tests/scripts/release-plugin.sh $(VERSION) $(release)

.PHONY: release-sign
release-sign: ## Sign the pushed images and the chart, with the identity of the signed-in user
	go run github.com/sigstore/cosign/v3/cmd/cosign@v3.1.2 sign --yes $$(cat $(release)/images $(release)/app $(release)/chart)

##@ Run it in the cluster

.PHONY: up
up: deps ## Start the local cluster: two nodes and Kyverno
	$(cluster) up

.PHONY: install
install: up images ## Install the chart from this checkout
ifneq ($(CLUSTER),current)
	for image in dist/images/*.tar; do $(cluster) load "$$image"; done
	@# Helm refuses to upgrade a release whose last operation was interrupted, until the record of that operation is deleted.
	$(in_cluster) kubectl delete secret --namespace statefulsingleton --ignore-not-found \
		-l 'owner=helm,name=$(RELEASE),status in (pending-install,pending-upgrade,pending-rollback)'
endif
	$(in_cluster) helm upgrade --install $(RELEASE) charts/statefulsingleton \
		--namespace statefulsingleton --create-namespace --wait --timeout 3m \
		--set image.manager.repository=$(REGISTRY)/manager --set image.manager.tag=$(VERSION) \
		--set image.gate.repository=$(REGISTRY)/gate --set image.gate.tag=$(VERSION) \
		--set statefulClusters.enabled=true \
		--set image.clusterManager.repository=$(REGISTRY)/cluster-manager --set image.clusterManager.tag=$(VERSION) \
		--set-string podAnnotations.built=$$(cat dist/images/manager.tar dist/images/cluster-manager.tar | sha256sum | cut -c1-16)

.PHONY: example-images
example-images: up bin/example-images ## Build the public images that the examples use from Debian packages, and load them into the local cluster
ifneq ($(CLUSTER),current)
	archives=$$(bin/example-images) && for archive in $$archives; do $(cluster) load "$$archive"; done
endif

.PHONY: deps
deps: $(cluster) ## Install the Debian packages that the tools and the local cluster lack
	missing=$$($(cluster) packages); if [ -n "$$missing" ]; then \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; fi

.PHONY: $(test_programs)
$(test_programs): bin/%:
	go -C chainsaw-tests build -buildvcs=false -o $(CURDIR)/$@ ./cmd/$*

.PHONY: $(golangci)
$(golangci):
	CGO_ENABLED=0 go -C chainsaw-tests/tools/lint build -o $(CURDIR)/$@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# Without service discovery, which is most of promtool and not needed to test rules.
.PHONY: $(promtool)
$(promtool):
	CGO_ENABLED=0 go -C chainsaw-tests/tools/promtool build -tags remove_all_sd -o $(CURDIR)/$@ github.com/prometheus/prometheus/cmd/promtool

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
