# Every target does its own set-up. `make` lists them.

.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT := $(shell git rev-parse HEAD 2>/dev/null)
TOOL := go tool -modfile=tools/go.mod

# How long one package's tests may take, and how many packages are tested at
# once: suites start real processes, more at once would only slow each other.
TEST_TIMEOUT ?= 30m
TEST_PARALLEL ?= 2
PACKAGES ?= ./...

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | while IFS=$$'\t' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

.PHONY: build
build: ## build bin/offpeak, one static binary
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)' -o bin/offpeak ./cmd/offpeak

.PHONY: wasm
wasm: ## build the example job, bin/digits, for WebAssembly
	@mkdir -p bin/digits
	GOOS=wasip1 GOARCH=wasm go build -trimpath -ldflags '-s -w' -o bin/digits/digits.wasm ./examples/digits
	cp examples/digits/digits.csv.gz bin/digits/

.PHONY: demo
demo: build wasm ## see a training job survive the death of its node
	go run ./internal/demo --bin bin/offpeak --job bin/digits

.PHONY: test
test: setup ## run all tests, with the race detector
	go vet $(PACKAGES)
	@tools/test -timeout $(TEST_TIMEOUT) -p $(TEST_PARALLEL) $(PACKAGES)

.PHONY: setup
setup: ## install what the tests need, where that is allowed
	@tools/setup

.PHONY: lint
lint: ## run the linters (the first run builds them: about 3 minutes)
	@unformatted="$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go'))"; \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	$(TOOL) golangci-lint run $(PACKAGES)

.PHONY: bench
bench: build ## measure what docs/performance.md claims (about 40 minutes)
	go test -run '^$$' -bench FirstLine -benchtime 60x -timeout 10m ./bench
	go test -run '^$$' -bench Noop -benchtime 8x -timeout 10m ./bench
	go test -run '^$$' -bench Claims -benchtime 5x -timeout 10m ./bench
	go test -run '^$$' -bench 'Idle|Heartbeats|Queue|Streams' -benchtime 1x -timeout 30m ./bench
	go test -run '^$$' -bench 'Cycle|HalfLoad' -benchtime 1x -timeout 10m ./bench
	go test -run '^$$' -bench 'Connected|Lost' -benchtime 1x -timeout 20m ./bench
	go test -run '^$$' -bench 'Cheapest|AskChange' -benchtime 1x -timeout 20m ./bench
	go test -run '^$$' -bench 'Placement|Hold|Burst' -benchtime 1x -timeout 20m ./bench
	go test -run '^$$' -bench 'Pass' -benchtime 1000x -timeout 20m ./bench
	go test -run '^$$' -bench SubmitArray -benchtime 5x -timeout 10m ./hub
	go test -run '^$$' -bench Explain -benchtime 20x -timeout 10m ./hub
	go test -run '^$$' -bench Nearest -benchtime 20x -timeout 10m ./placement

.PHONY: generate
generate: ## rewrite golden files and generated documents
	go test -count 1 -run '^(TestStatesDocument|TestEnds|TestDocs)$$' . ./docs ./cmd/offpeak/cli -update

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
