package redact

// JSON is Bytes for a JSON value, which it leaves one: a number that is or holds
// a secret becomes the Mask as a string, an escape is not cut in two, and what
// holds the value together stays. Where b is no JSON the result is masked all
// the same.
func (s *Secrets) JSON(b []byte) ([]byte, int) {
	spans := s.find(b, nil)
	if len(spans) == 0 {
		return b, 0
	}
	out := make([]byte, 0, len(b)+len(spans)*len(Mask))
	n := len(spans)
	for i, next := 0, 0; i < len(b); {
		for next < n && spans[next].end <= i {
			next++
		}
		if next == n {
			out = append(out, b[i:]...)
			break
		}
		switch c := b[i]; {
		case c == '"':
			end := endOfString(b, i)
			out = maskInside(out, b, i, end, spans[next:])
			i = end
		case isPunctuation(c):
			out = append(out, c)
			i++
		default:
			end := i + 1
			for end < len(b) && b[end] != '"' && !isPunctuation(b[end]) {
				end++
			}
			if spans[next].start < end {
				out = append(out, maskString...)
			} else {
				out = append(out, b[i:end]...)
			}
			i = end
		}
	}
	return out, n
}

func isPunctuation(c byte) bool {
	switch c {
	case '{', '}', '[', ']', ',', ':', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

// endOfString is where the string ends that begins at b[i], of bytes that may be no JSON.
func endOfString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// maskInside appends the string b[start:end] with what spans cover of its inside
// masked. A span that begins or ends within an escape takes in all of it.
func maskInside(out, b []byte, start, end int, spans []span) []byte {
	out = append(out, '"')
	masked := false
	next := 0
	for i := start + 1; i < end; {
		if i == end-1 && b[i] == '"' {
			return append(out, '"')
		}
		n := 1
		if b[i] == '\\' {
			n = 2
			if i+1 < end && b[i+1] == 'u' {
				n = 6
			}
			n = min(n, end-i)
		}
		for next < len(spans) && spans[next].end <= i {
			next++
		}
		if next < len(spans) && spans[next].start < i+n {
			if !masked {
				out = append(out, Mask...)
			}
			masked = true
		} else {
			out, masked = append(out, b[i:i+n]...), false
		}
		i += n
	}
	return out
}
