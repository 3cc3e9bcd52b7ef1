# make test is everything; it installs what it needs and says what it skipped.
SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := test

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME    ?= 20s
export CGO_ENABLED = 0

.PHONY: test lint unit cross e2e install bench fuzz build

test: lint cross unit e2e
	@echo "make test: lint, cross, unit and e2e passed; skips are listed above as --- SKIP with their reason"

build:
	go build -trimpath -ldflags "-s -w" -o bin/drawbridge ./cmd/drawbridge

lint:
	@out=$$(gofmt -l .); if [ -n "$$out" ]; then echo "not gofmt'ed:"; echo "$$out"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...

# Other systems build, and refuse in words what they can't enforce.
cross:
	GOOS=linux GOARCH=arm64 go build -o /dev/null ./cmd/drawbridge
	GOOS=darwin GOARCH=arm64 go vet ./...
	GOOS=windows GOARCH=amd64 go vet ./...

# The race detector needs cgo, for the tests alone.
unit:
	CGO_ENABLED=1 go test -race -timeout 15m $$(go list ./... | grep -v /e2e) $(ARGS)

install:
	./e2e/install.sh

# Real agent CLIs and clients, driven by a scripted model on loopback.
e2e: install build
	go test -v -count=1 -timeout 30m ./e2e/... $(ARGS) 2>&1 | grep -v '^=== ' | tee e2e/last.log
	@! grep -q '^--- FAIL\|^FAIL' e2e/last.log
	@echo "skipped: $$(grep -c -- '--- SKIP' e2e/last.log || true)"

# Every number of docs/PERFORMANCE.md. Misses are told and fail nothing; a run
# that the machine was too busy for fails.
bench: build
	go run -trimpath ./bench/targets $(ARGS)

fuzz:
	@for pkg in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "$$pkg $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done
