# All targets run on a bare Debian with Go, as root. They install or build what is missing.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# kubectl finds its plugin in bin.
export PATH := $(CURDIR)/bin:$(PATH)

# All Go commands have the same flags, also those of chainsaw-tests/cmd/cluster/tools.go and chainsaw-tests/cmd/images, so that each
# package is compiled once for programs, tests and linters. The compiler needs half the processor time without debug information and,
# where GOGC is set, with less garbage collection.
export GOFLAGS := -trimpath -buildvcs=false -gcflags=all=-dwarf=false
export CGO_ENABLED := 0

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
export WRITER_IMAGE := $(REGISTRY)/writer:$(VERSION)

# Programs for tests, from a Go module of their own.
test_programs := $(addprefix bin/,cluster demo soak bench bench-scale images example-images licenses)
cluster := bin/cluster
promtool := bin/promtool
golangci := bin/golangci-lint
gremlins := bin/gremlins
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

# Fault tests break the cluster, so they don't run on that of the current kubeconfig. They and the cases that need the cluster alone
# mostly wait, so what computes runs beside them.
stages := chainsaw-tests/scripts/stages.sh
own_faults := $(if $(filter current,$(CLUSTER)),,faults)
background := chainsaw-tests/scripts/background.sh

.PHONY: test
test: ## Run all tests, and keep the time of each stage in dist/stages.tsv
	@$(stages) demo '$(own_faults) verify lint search' 'cases-alone unit' cases-together pages readme

.PHONY: e2e
e2e: ## Run the end-to-end tests: demo, faults, cases, pages, README
	@$(stages) demo $(own_faults) cases pages readme

.PHONY: lint
lint: $(golangci) ## Check the code with .golangci.yml, and the API with .golangci-kal.yml
	$(golangci) config verify
	$(background) $(golangci) run
	$(background) $(golangci) run --config .golangci-kal.yml ./controller/api/...
	cd chainsaw-tests && $(CURDIR)/$(background) $(CURDIR)/$(golangci) run

# In a copy, to leave uncommitted changes alone.
.PHONY: verify
verify: ## Fail if make generate would change a file; changes nothing
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	tar -c --exclude=./.git --exclude=./bin --exclude=./dist . | tar -x -C "$$copy"; \
	$(background) $(MAKE) -C "$$copy" generate; \
	diff -ruN -x .git -x bin -x dist . "$$copy" || \
		{ echo "The files above are not what make generate writes: run it, and commit what it changes." >&2; exit 1; }

# Go keeps the result until the packages change, because a search depends on nothing else.
.PHONY: search
search: ## Search all states of small models for two running pods; DEEP=1 searches larger models
	$(background) go test -v -timeout 2h -run '^TestSearch' ./controller/singleton/handoff ./controller/cluster/membership ./controller/lock/tenure $(if $(DEEP),-deep) | grep -v '^=== '
	$(background) go test -v -run '^TestSearch' ./controller/gate | grep -v '^=== '

# The packages that make unit runs with the race detector. By default only those that need no module of Kubernetes, because the
# detector needs every package compiled again. cmd/gate cannot be among them: its tests run the gate as a program of its own.
RACED ?= gate gate/queue
raced = $(addprefix ./controller/,$(RACED))
# Its tests check deadlines of processes, which would be missed with the processor time that is left over.
timed := ./controller/cmd/gate
.PHONY: unit
unit: deps $(promtool) ## Run the tests beside the code, with Kyverno's engine, a real API server and the race detector
	tools=$(tools); export PATH="$$tools:$(CURDIR)/bin:$$PATH" KUBEBUILDER_ASSETS="$$tools" KUBEBUILDER_CONTROLPLANE_START_TIMEOUT=2m TIMEFORMAT="%0lR, and %0U s of CPU time"; \
	time CGO_ENABLED=1 $(background) go test -race -count=1 -timeout 20m -skip '^TestSearch' $(raced); \
	time $(background) go test -count=1 -timeout 20m -skip '^TestSearch' ./policies $$(go list ./... | grep -vxF "$$(go list $(raced) $(timed))"); \
	time go test -count=1 -timeout 20m $(timed); \
	time $(background) go -C chainsaw-tests test -count=1 ./...

# Packages that decide, say what is held, or judge a proof. Gremlins runs the tests of the package for each mutation, and has no
# flag that leaves out the searches and walks, which take minutes.
MUTATED ?= singleton/handoff cluster/membership lock/tenure injected proof gate
.PHONY: mutations
mutations: $(gremlins) ## Change the code of the packages MUTATED in one place at a time, and list changes that no test notices
	@mkdir -p dist
	export GOFLAGS="$$(go env GOFLAGS) -skip=^Test(Search|Walk)"; for package in $(MUTATED); do \
		nice $(gremlins) unleash --timeout-coefficient 20 --output dist/mutations-$$(basename $$package).json ./controller/$$package || exit 1; \
	done

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
	$(in_cluster) go -C chainsaw-tests test -v -count=1 -timeout $(if $(API_SERVERS),75m,45m) -tags $(fault_tags) ./faults | grep -v '^=== '

.PHONY: gitops-fixtures
gitops-fixtures: own-cluster install ## Record docs/gitops/testdata, with which Argo CD's health check is tested, on the local cluster
	$(in_cluster) go -C chainsaw-tests test -count=1 -tags cluster -run '^Test(GitOps|KyvernoDown)' ./faults -record

# SEED determines the faults and their order. 0 selects a random seed.
SEED ?= 0
HANDOFFS ?= 200
.PHONY: soak
soak: own-cluster install bin/soak ## Run HANDOFFS (200) handoffs under random faults, by SEED, and check that no two pods ran at once
	$(in_cluster) bin/soak -seed $(SEED) -handoffs $(HANDOFFS)

.PHONY: soak-clusters
soak-clusters: own-cluster install bin/soak ## Replace pods of StatefulClusters HANDOFFS (200) times under random faults, and check names and volumes
	$(in_cluster) bin/soak -clusters -seed $(SEED) -handoffs $(HANDOFFS)

# Flags of all parts of chainsaw-tests/cmd/bench, for example BENCH="-n 5".
BENCH ?=
.PHONY: bench
bench: own-cluster install bin/bench ## Measure handoffs beside Kubernetes' own workloads, locks, failed requests, and StatefulClusters beside StatefulSets; takes hours
	for part in gap locks clusters connections; do $(in_cluster) bin/bench $$part -out docs/benchmarks/$$part.json $(BENCH) || exit 1; done
	$(MAKE) bench-report

.PHONY: bench-report
bench-report: bin/bench bin/bench-scale ## Write the tables and pictures of the last make bench and make bench-scale
	bin/bench report
	bin/bench-scale -report

# Flags of chainsaw-tests/cmd/bench-scale.
SCALE ?=
.PHONY: bench-scale
bench-scale: own-cluster install bin/bench-scale ## Measure the costs of a thousand singletons; about two hours
	kwok=$$($(cluster) tools kwok); PATH="$$kwok:$$PATH" $(in_cluster) bin/bench-scale $(SCALE)
	$(MAKE) bench-report

# Go keeps the result until the program, its tools or the test change.
.PHONY: life
life: deps ## Test the local cluster itself, with a second one
ifneq ($(CLUSTER),current)
	go -C chainsaw-tests test -tags $(fault_tags) -run '^TestLifeOf' ./cmd/cluster
endif

.PHONY: cases
cases: cases-alone ## Run the end-to-end cases, and test the policies, on the local cluster
	$(MAKE) cases-together

chainsaw = chainsaw=$$($(cluster) tools chainsaw); PATH="$$chainsaw:$$PATH" $(in_cluster) chainsaw-tests/scripts/cases.sh

.PHONY: cases-alone
cases-alone: install plugin example-images ## Run the cases that need the cluster alone
	$(chainsaw) $@ --selector 'alone,!disk' --parallel 1

.PHONY: cases-together
cases-together: install plugin example-images
	$(in_cluster) go test -count=1 -tags cluster -run '^Test(Shared)?OnCluster$$' ./policies
	$(chainsaw) $@ --selector '!alone,!disk'

.PHONY: volumes
volumes: own-cluster install plugin ## Test disks that attach to one node at a time, with a CSI driver that is built and installed for it
	chainsaw=$$($(cluster) tools chainsaw); PATH="$$chainsaw:$$PATH" $(in_cluster) chainsaw-tests/scripts/disks.sh bash -ec ' \
		chainsaw-tests/scripts/cases.sh $@ --selector disk; \
		go -C chainsaw-tests test -v -count=1 -timeout 15m -tags cluster,disk -run "^TestNodeKilledWithDisk$$" ./faults'

.PHONY: pages
pages: install plugin example-images ## Run the commands of the pages in docs
	$(in_cluster) chainsaw-tests/scripts/pages.sh $$(find docs -name '*.md' | sort)

.PHONY: readme
readme: install ## Run the commands of the README, and install the manifests of a release; uninstalls the chart
	$(in_cluster) chainsaw-tests/scripts/readme.sh

##@ Build

.PHONY: images
images: bin/images ## Build the images into dist/images, without Docker
	bin/images -registry $(REGISTRY) -version $(VERSION)

.PHONY: plugin
plugin: ## Build kubectl stfs and its completion into bin
	GOGC=400 go build -ldflags "-s -w -X main.version=$(VERSION)" -o bin/kubectl-stfs ./controller/cmd/kubectl-stfs
	install controller/cmd/kubectl-stfs/kubectl_complete-stfs bin

# The generators run in their folder, so other paths must be absolute.
generator := go -C chainsaw-tests/tools/generate tool
chart := $(CURDIR)/charts/statefulsingleton
.PHONY: generate
generate: deps ## Write the generated files: deep copies, the CRD, docs/api.md, and the chart's schema and README
	tools=$$($(cluster) tools controller-gen); "$$tools/controller-gen" object paths=./controller/api/... crd output:crd:dir=charts/statefulsingleton/files/crds
	$(generator) crd-ref-docs --source-path $(CURDIR)/controller/api --config api/config.yaml --templates-dir api --renderer markdown \
		--output-path $(CURDIR)/docs/api.md --log-level ERROR
	$(generator) helm-values-schema-json --values $(chart)/values.yaml --output $(chart)/values.schema.json --indent 2 --no-additional-properties
	$(generator) helm-tool inject --values $(chart)/values.yaml --output $(chart)/README.md --template ./values.tpl \
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

# kubectl would run Helm's hooks at once, so the uninstall Job is a separate file. The definitions are one too, because they stay after an uninstallation,
# and so are StatefulClusters, which are optional, as in the chart.
render := $(helm) template statefulsingleton $(chart) --namespace statefulsingleton
.PHONY: release-manifest
release-manifest: ## Render the chart for kubectl and kustomize: the definitions, the installation, StatefulClusters, and the Job that uninstalls
	@mkdir -p $(release)
	$(render) --set statefulClusters.enabled=true --show-only templates/crd.yaml >$(release)/statefulsingleton-crds.yaml
	{ printf 'apiVersion: v1\nkind: Namespace\nmetadata:\n  name: statefulsingleton\n'; \
	$(render) --no-hooks --set crds.install=false --api-versions apps.statefulsingleton.com/v1/StatefulSingleton,apps.statefulsingleton.com/v1/StatefulSetLock; } >$(release)/statefulsingleton.yaml
	$(render) --set statefulClusters.enabled=true --show-only templates/clusters.yaml --show-only templates/guards-clusters.yaml >$(release)/statefulsingleton-clusters.yaml
	$(render) --show-only templates/uninstall.yaml >$(release)/statefulsingleton-uninstall.yaml
	cp charts/kustomize/*.yaml $(release)

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
	GOGC=400 go -C chainsaw-tests build -o $(CURDIR)/$@ ./cmd/$*

.PHONY: $(golangci)
$(golangci):
	GOGC=400 $(background) go -C chainsaw-tests/tools/lint build -o $(CURDIR)/$@ sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter

.PHONY: $(gremlins)
$(gremlins):
	GOGC=400 go -C chainsaw-tests/tools/gremlins build -o $(CURDIR)/$@ github.com/go-gremlins/gremlins/cmd/gremlins

# Without service discovery, which is most of promtool and not needed to test rules.
.PHONY: $(promtool)
$(promtool):
	GOGC=400 $(background) go -C chainsaw-tests/tools/promtool build -tags remove_all_sd -o $(CURDIR)/$@ github.com/prometheus/prometheus/cmd/promtool

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
