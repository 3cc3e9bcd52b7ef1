package call

import (
	"crypto/sha256"
	"encoding/hex"
)

// Digest is how records, policies and questions name exact bytes: "sha256:" and
// 64 hex digits.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	const name = "sha256:"
	return string(hex.AppendEncode(append(make([]byte, 0, len(name)+2*len(sum)), name...), sum[:]))
}
