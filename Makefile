# make            format check, vet, staticcheck, unit tests (no network once the modules are there)
# make up         get the model if none is there, build, run the whole cluster in one process
# make test       everything that needs no Docker, on the real model
# make cluster    the cluster as containers (docker compose); make cluster-down ends it
# make e2e        the compose end-to-end run
# make sim        a million simulated schedules under every fault (SCHEDULES, SEED)
# make rogue      misbehaving peers among honest ones (REQUESTS)
# make chaos      kills, stops, cuts and a faulty bus on real processes (EACH, CLUSTERS); make storm: clients that hang up (CANCELS)
# make incident   the leak of 2026 at its true scale, 155 requests, and its positive control
# make mutants    docs/mutants.md anew: each check taken out alone, and every pair (LONG=-long tries more)
# make bench-isolation   what isolation costs, against a build without it
# make clients    the openai packages of Python and npm against the cluster
# make arm64      the plain Go kernels, sampling and models on an emulated arm64 (qemu-aarch64-static)
# make build      static bin/bulkhead
# make unit T=TestName PKG=./router   some unit tests only
GO       ?= go
MODEL    ?= models/smollm2-135m-instruct.gguf
VERSION  ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
GOFLAGS_ := -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
T        ?= .
TESTARGS ?=
PKG      ?= ./...

export CGO_ENABLED ?= 0

.PHONY: check check-quick fmt vet vet-tags lint unit test race up cluster cluster-down e2e sim rogue chaos storm clients incident bench-isolation build cross arm64 model clean

check: fmt vet lint unit

fmt:
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi

vet:
	$(GO) vet ./...

lint:
	$(GO) tool staticcheck ./...

unit:
	$(GO) test -run '$(T)' $(PKG)

model: $(MODEL)
$(MODEL):
	./scripts/get-model

# The tests that need the real model fail without it, rather than skip. The last
# run is of a build in which checks can be taken out, one by one: each of
# the others must hold alone, and the leak must be seen when none is left. A build that
# is not a release must say so.
test: check-quick vet-tags cross model
	BULKHEAD_REQUIRE_MODEL=1 $(GO) test $(TESTARGS) -timeout 20m ./...
	$(GO) test $(TESTARGS) -tags mutants -run 'Walls|LeakNames' -timeout 10m ./internal/cluster
	$(GO) test $(TESTARGS) -tags mutants -run Mutants -timeout 10m ./internal/sim
	$(GO) test $(TESTARGS) -tags mutants -run 'Mutants(Walls|Covered|Document)' -timeout 5m ./internal/attack
	$(GO) test $(TESTARGS) -tags mutants -run TestBuild .
	$(GO) test $(TESTARGS) -tags noisolation -run TestBuild .
	$(MAKE) sim SCHEDULES=100000

# Simulated clusters under every fault; anything wrong is a failure, with the seed that replays it.
SCHEDULES ?= 1000000
SEED      ?= 1
sim: build
	./bin/bulkhead sim -n $(SCHEDULES) --seed $(SEED) --cores 2 --json

check-quick: fmt vet lint

vet-tags:
	$(GO) vet -tags e2e ./deploy/...
	$(GO) vet -tags mutants . ./internal/mutant ./internal/attack ./internal/cluster ./internal/sim
	$(GO) vet -tags rogue ./internal/rogue
	$(GO) vet -tags chaos ./internal/chaos
	$(GO) vet -tags noisolation .

race:
	CGO_ENABLED=1 $(GO) test -race -run '$(T)' $(PKG)

build: bin/bulkhead
.PHONY: bin/bulkhead
bin/bulkhead:
	$(GO) build $(GOFLAGS_) -o $@ .

cross:
	GOOS=linux GOARCH=arm64 $(GO) build $(GOFLAGS_) -o bin/bulkhead-linux-arm64 .
	GOOS=darwin GOARCH=arm64 $(GO) build $(GOFLAGS_) -o bin/bulkhead-darwin-arm64 .

# The path of every CPU that is not amd64, run rather than only compiled; five minutes.
arm64:
	GOARCH=arm64 $(GO) test -exec qemu-aarch64-static -count=1 -timeout 20m \
		-run 'Conformance|Repack|Half|Pool|Goldens|Fingerprint|Scans|Sample|Cuts|Weight' ./kernels/cpu ./internal/sample ./internal/model

up: model build
	./bin/bulkhead up --model $(MODEL)

cluster: model build
	./deploy/cluster up

cluster-down:
	./deploy/cluster down

e2e: model build
	$(GO) test -tags e2e -count=1 -timeout 15m -v ./deploy/...

# Misbehaving peers, REQUESTS for each bug; with 100 it rewrites docs/misbehaving-peers.md.
REQUESTS ?= 100
rogue:
	BULKHEAD_ROGUE_REQUESTS=$(REQUESTS) BULKHEAD_ROGUE_TABLE=$(if $(filter 100,$(REQUESTS)),$(CURDIR)/docs/misbehaving-peers.md) \
		$(GO) test -count=1 -timeout 10m -v -tags rogue ./internal/rogue

clients: model build
	./scripts/clients/run

# Every fault of processes and network, each EACH times, on CLUSTERS clusters of the
# release binary at a time: docs/chaos.md. The ten minutes of CI are EACH=5 CANCELS=5000.
EACH     ?= 50
CLUSTERS ?= 6
CANCELS  ?= 100000
chaos: build
	CHAOS_EACH=$(EACH) CHAOS_CLUSTERS=$(CLUSTERS) CHAOS_JSON=$(CURDIR)/bin/chaos.json \
		$(GO) test $(TESTARGS) -tags chaos -count=1 -run 'TestChaos|TestJudge|TestPlan' -timeout 90m -v ./internal/chaos

# Clients that hang up at random moments, CANCELS of them.
storm: build
	STORM_CANCELS=$(CANCELS) STORM_JSON=$(CURDIR)/bin/storm.json \
		$(GO) test $(TESTARGS) -tags chaos -count=1 -run TestStorm -timeout 60m -v ./internal/chaos

incident:
	$(GO) test -count=1 -v -timeout 20m -run TestIncidentProcesses ./internal/cluster -args -incident-requests=155
	$(GO) test -count=1 -v -timeout 20m -tags mutants -run TestWallsIncident ./internal/cluster

.PHONY: mutants
mutants:
	$(GO) test -count=1 -v -tags mutants -run MutantsTable -timeout 60m ./internal/attack -table $(LONG)
	$(GO) test -count=1 -tags mutants -run MutantsDocument ./internal/attack

bench-isolation: model build
	$(GO) build $(GOFLAGS_) -tags noisolation -o bin/bulkhead-noisolation .
	./bin/bulkhead bench isolation --model $(MODEL) --without bin/bulkhead-noisolation

clean:
	rm -rf bin
