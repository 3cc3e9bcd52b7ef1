package control

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
)

// version of the protocol. A peer of another one is refused in words.
const version = 1

const (
	opPending = "pending"
	opAnswer  = "answer"
)

type request struct {
	Version  int    `json:"version"`
	Nonce    string `json:"nonce"`
	Op       string `json:"op"`
	ID       string `json:"id,omitzero"`
	Yes      bool   `json:"yes,omitzero"`
	Note     string `json:"note,omitzero"`
	Remember bool   `json:"remember,omitzero"`
}

// answer is each line of the server's.
type answer struct {
	Version   int                `json:"version"`
	Nonce     string             `json:"nonce,omitzero"` // of the first line
	Questions []approve.Question `json:"questions,omitzero"`
	Error     *failure           `json:"error,omitzero"`
}

type failure struct {
	Kind string `json:"kind"`
	Text string `json:"text"`
}

// Kinds of failure.
const (
	kindUnknown = "unknown" // approve.ErrUnknown
	kindSettled = "settled" // approve.ErrSettled
	kindRefused = "refused" // ErrRefused
	kindFailed  = "failed"  // any other
)

// parseRequest reads one line strictly: no key twice or unknown or in another
// case, no field that the operation does not have.
func parseRequest(line []byte) (request, error) {
	var r request
	if err := json.Unmarshal(line, &r, json.RejectUnknownMembers(true)); err != nil {
		return request{}, fmt.Errorf("the request can't be read: %w", err)
	}
	switch {
	case r.Version != version:
		return request{}, fmt.Errorf("the request is of version %d, and the run's drawbridge knows version %d", r.Version, version)
	case r.Op == opPending && (r.ID != "" || r.Yes || r.Note != "" || r.Remember):
		return request{}, errors.New("the request lists questions and answers one")
	case r.Op == opAnswer && r.ID == "":
		return request{}, errors.New("the request names no question")
	case r.Remember && !r.Yes:
		return request{}, errors.New("the request wants a no remembered")
	case r.Op != opPending && r.Op != opAnswer:
		return request{}, errors.New("the request wants something unknown")
	}
	return r, nil
}

// failed is err as it is sent.
func failed(err error) answer {
	kind := kindFailed
	switch {
	case errors.Is(err, approve.ErrUnknown):
		kind = kindUnknown
	case errors.Is(err, approve.ErrSettled):
		kind = kindSettled
	case errors.Is(err, ErrRefused):
		kind = kindRefused
	}
	text := err.Error()
	return answer{Version: version, Error: &failure{kind, strings.ToValidUTF8(text[:min(len(text), maxText)], "?")}}
}

// err is the failure as the client's caller gets it.
func (f *failure) err() error {
	e := &remote{text: f.Text[:min(len(f.Text), maxText)]}
	switch f.Kind {
	case kindUnknown:
		e.is = approve.ErrUnknown
	case kindSettled:
		e.is = approve.ErrSettled
	case kindRefused:
		e.is = ErrRefused
	}
	if e.text == "" {
		e.text = "the run's drawbridge gives no reason"
	}
	return e
}

// remote is an error of the other side.
type remote struct {
	text string
	is   error // nil for one that has no name here
}

func (e *remote) Error() string { return e.text }
func (e *remote) Unwrap() error { return e.is }

func encode(a answer) []byte {
	b, err := json.Marshal(a)
	if err == nil && len(b) >= maxAnswer {
		err = fmt.Errorf("the questions have %d bytes, more than %d", len(b), maxAnswer)
	}
	if err != nil {
		b, _ = json.Marshal(failed(err)) // two strings of valid UTF-8 always marshal
	}
	return append(b, '\n')
}

// readAnswer reads one line of the server's.
func readAnswer(r *bufio.Reader) (answer, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxAnswer:
			return answer{}, fmt.Errorf("its answer has more than %d bytes", maxAnswer)
		case err == nil:
			return parseAnswer(line)
		case errors.Is(err, io.EOF):
			return answer{}, fmt.Errorf("it ended the connection: %w", io.ErrUnexpectedEOF)
		case !errors.Is(err, bufio.ErrBufferFull):
			return answer{}, err
		}
	}
}

func parseAnswer(line []byte) (answer, error) {
	// Another version may differ in anything but in how it says its version.
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return answer{}, fmt.Errorf("its answer can't be read: %w", err)
	}
	if v.Version != version {
		return answer{}, fmt.Errorf("it speaks version %d, and this program version %d: use the drawbridge that started the run", v.Version, version)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, fmt.Errorf("its answer can't be read: %w", err)
	}
	if a.Error != nil {
		return answer{}, a.Error.err()
	}
	return a, nil
}
