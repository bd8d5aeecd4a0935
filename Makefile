# make            format check, vet, staticcheck, unit tests (no network once the modules are there)
# make up         get the model if none is there, build, run the whole cluster in one process
# make test       everything that needs no Docker, on the real model
# make cluster    the cluster as containers (docker compose); make cluster-down ends it
# make e2e        the compose end-to-end run
# make clients    the openai packages of Python and npm against the cluster
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

.PHONY: check check-quick fmt vet vet-tags lint unit test race up cluster cluster-down e2e clients build cross model clean

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
# the others must hold alone, and the leak must be seen when none is left.
test: check-quick vet-tags cross model
	BULKHEAD_REQUIRE_MODEL=1 $(GO) test $(TESTARGS) -timeout 20m ./...
	$(GO) test $(TESTARGS) -tags mutants -run 'Walls|LeakNames' -timeout 10m ./internal/cluster
	$(GO) test $(TESTARGS) -tags mutants -run Mutants -timeout 10m ./internal/sim

check-quick: fmt vet lint

vet-tags:
	$(GO) vet -tags e2e ./deploy/...
	$(GO) vet -tags mutants ./internal/mutant ./internal/cluster ./internal/sim

race:
	CGO_ENABLED=1 $(GO) test -race -run '$(T)' $(PKG)

build: bin/bulkhead
.PHONY: bin/bulkhead
bin/bulkhead:
	$(GO) build $(GOFLAGS_) -o $@ .

cross:
	GOOS=linux GOARCH=arm64 $(GO) build $(GOFLAGS_) -o bin/bulkhead-linux-arm64 .
	GOOS=darwin GOARCH=arm64 $(GO) build $(GOFLAGS_) -o bin/bulkhead-darwin-arm64 .

up: model build
	./bin/bulkhead up --model $(MODEL)

cluster: model build
	./deploy/cluster up

cluster-down:
	./deploy/cluster down

e2e: model build
	$(GO) test -tags e2e -count=1 -timeout 15m -v ./deploy/...

clients: model build
	./scripts/clients/run

clean:
	rm -rf bin
