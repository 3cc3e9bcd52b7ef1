//go:build !linux

package e2e

import "testing"

// Main runs m; there are no network namespaces on this system.
func Main(m *testing.M) int { return m.Run() }

// Isolated skips t: a real CLI must not reach a network.
func Isolated(t testing.TB) {
	t.Helper()
	t.Skip("network namespaces need Linux, and a real CLI must not reach a network")
}
