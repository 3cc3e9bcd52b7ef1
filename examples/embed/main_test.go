//go:build linux

package main

import (
	"fmt"
	"os"
	"testing"

	"github.com/drawbridge-mcp/drawbridge"
)

func TestMain(m *testing.M) {
	drawbridge.Helper()
	os.Exit(m.Run())
}

func Example_run() {
	if err := run(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// read_temperature(): ok
	// set_target({"celsius":21,"user":"mallory"}): ok
	// set_target({"celsius":40}): refused
	// open_valve(): refused
	// agent: it is warm now
	// target 21.0, set for ada; 2 calls ran, 2 were refused
}
