// Package version says which drawbridge this is. It is a leaf.
package version

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Version of the module.
const Version = "0.1.0"

// Line is what `drawbridge version` prints, without its newline: version, the
// revision it was built from where that is known, Go and the platform.
func Line() string {
	revision := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = " " + s.Value[:12]
			}
		}
	}
	return fmt.Sprintf("drawbridge %s%s %s %s/%s", Version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
