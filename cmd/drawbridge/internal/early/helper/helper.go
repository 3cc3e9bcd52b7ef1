// Package helper turns off into the process helper before the larger libraries
// are initialised, as package early does it: one is started for every run and
// every command of an agent.
package helper

import "github.com/drawbridge-mcp/drawbridge/internal/proc"

func init() { proc.Helper() }
