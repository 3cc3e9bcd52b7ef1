// Package version says which drawbridge this is. It is a leaf, and imports next
// to nothing: see cmd/drawbridge/internal/early.
package version

import "runtime"

// Version of the module.
const Version = "0.1.0"

// Line is what `drawbridge version` prints, without its newline: version, Go and
// the platform.
func Line() string {
	return "drawbridge " + Version + " " + runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH
}
