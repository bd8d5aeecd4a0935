# make            format check, vet, staticcheck, unit tests (no network once the modules are there)
# make up         get the model if none is there, build, run the whole cluster in one process
# make test       everything that needs no Docker, on the real model
# make cluster    the cluster as containers (docker compose)
# make e2e        the compose end-to-end run
# make build      static bin/bulkhead
GO       ?= go
MODEL    ?= models/smollm2-135m-instruct.gguf
VERSION  ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
GOFLAGS_ := -trimpath -ldflags "-s -w -X main.version=$(VERSION)"
T        ?= .
PKG      ?= ./...

export CGO_ENABLED ?= 0

.PHONY: check fmt vet lint unit test race fuzz up cluster cluster-down e2e build cross model clean goldens clients

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

# The tests that need the real model fail without it, rather than skip.
test: check-quick model
	BULKHEAD_REQUIRE_MODEL=1 $(GO) test -run '$(T)' -timeout 20m $(PKG)

check-quick: fmt vet lint

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
	BULKHEAD_REQUIRE_MODEL=1 $(GO) test -tags e2e -count=1 -timeout 25m -v ./deploy/...

clean:
	rm -rf bin
