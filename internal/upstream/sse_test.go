package upstream

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestEventsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var in bytes.Buffer
		var want []string
		for range rapid.IntRange(0, 6).Draw(t, "events") {
			end := rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "end")
			data := rapid.SliceOfN(rapid.StringMatching(`[a-z:é ]{0,9}`), 1, 4).Draw(t, "data")
			for _, d := range data {
				in.WriteString(rapid.SampledFrom([]string{":x", "event: e", "unknown: y", "id"}).Draw(t, "other") + end)
				in.WriteString("data: " + d + end)
			}
			in.WriteString(end)
			want = append(want, strings.Join(data, "\n"))
		}
		ev := newEvents(&pieces{in.Bytes(), rapid.IntRange(1, 9).Draw(t, "piece")}, 1<<10)
		for i := 0; ; i++ {
			data, err := ev.next()
			if err == io.EOF && i == len(want) {
				return
			}
			if err != nil || i == len(want) || string(data) != want[i] {
				t.Fatalf("%d: %q %v, want %q of %q", i, data, err, want, in.String())
			}
		}
	})
}

type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.n)], p.b)
	p.b = p.b[n:]
	return n, nil
}

// However a stream is made, it is read in bounded memory and to its end.
func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: x\n\n", "\xef\xbb\xbfdata:x\r\n\r\n", ": c\rdata\rdata:\r\r", "id: 1\nretry: 99999999999999999999\ndata: {}\n\n", "data: " + strings.Repeat("x", 200) + "\n\n", "\n\n\n", "data"} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		ev := newEvents(&pieces{b, min(max(n, 1), 64)}, 64)
		for {
			data, err := ev.next()
			if err == io.EOF || err == errTooLong {
				return
			}
			if err != nil || len(data) > 64+maxField {
				t.Fatalf("%q %v", data, err)
			}
		}
	})
}
