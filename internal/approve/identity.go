package approve

import (
	"crypto/rand"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// absent is the digest of arguments that were not sent. It is no hash, so that
// an answer about a call without arguments fits none with any.
const absent = "absent"

// Digest is how a question names the exact bytes of arguments: "sha256:" and 64
// hex digits, as in the audit record, and "absent" for nil, which no bytes have:
// absent, null and {} are three different calls.
func Digest(arguments []byte) string {
	if arguments == nil {
		return absent
	}
	return call.Digest(arguments)
}

// alphabet has no two characters that look or sound alike when an ID is read
// out and typed.
const alphabet = "23456789abcdefghjkmnpqrstuvwxyz"

// newID is 8 characters, about 40 bits.
func newID() string {
	id := make([]byte, 0, 8)
	var random [16]byte
	for {
		rand.Read(random[:])
		for _, c := range random {
			// 248 is the largest multiple of 31 in a byte: no character is likelier.
			if c < 248 {
				id = append(id, alphabet[int(c)%len(alphabet)])
			}
			if len(id) == cap(id) {
				return string(id)
			}
		}
	}
}
