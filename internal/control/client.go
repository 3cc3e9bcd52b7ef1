package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
)

// clientLimit is how long one request may take. A server may have a queue to
// judge first, gives each peer 5 s and its desk as much.
const clientLimit = 30 * time.Second

// Pending lists the questions of the run in folder that nobody has answered
// yet, in the order they were asked. Where the run can't ask, or is over,
// ErrNobody is in the chain of the error, and ErrRefused where this process
// belongs to a run.
func Pending(ctx context.Context, folder string) ([]approve.Question, error) {
	a, err := exchange(ctx, folder, request{Op: opPending})
	if err != nil {
		return nil, err
	}
	return a.Questions, nil
}

// Answer answers a question of the run in folder. a.By is not sent: the run
// finds out by itself who answers. An error says that nothing changed, or, where
// the connection was lost, that it can't be told; approve.ErrUnknown and
// approve.ErrSettled are in its chain as they are in the desk's, and the errors
// of Pending too.
func Answer(ctx context.Context, folder, id string, a approve.Answer) error {
	_, err := exchange(ctx, folder, request{Op: opAnswer, ID: id, Yes: a.Yes, Note: a.Note, Remember: a.Remember})
	return err
}

func exchange(ctx context.Context, folder string, r request) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, clientLimit, fmt.Errorf("no answer in %s", clientLimit))
	defer cancel()
	run := filepath.Base(folder)
	conn, err := dial(ctx, folder)
	if err != nil {
		return answer{}, fault.Wrap(err, fault.Usage, "", "run %s", run)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	a, err := talk(conn, r)
	if err == nil {
		return a, nil
	}
	hint := ""
	if errors.Is(err, ErrRefused) {
		hint = "answer from a shell that no run has started"
	}
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return answer{}, fault.Wrap(err, fault.Agent, hint, "run %s", run)
}

// talk has the connection of one request.
func talk(conn net.Conn, r request) (answer, error) {
	in := bufio.NewReader(conn)
	hello, err := readAnswer(in)
	if err != nil {
		return answer{}, plain(err)
	}
	r.Version, r.Nonce = version, hello.Nonce
	b, err := json.Marshal(r)
	if err != nil {
		return answer{}, fmt.Errorf("the answer can't be sent: %w", err)
	}
	if len(b) >= maxRequest {
		return answer{}, fmt.Errorf("the answer has %d bytes, more than %d", len(b), maxRequest)
	}
	_, err = conn.Write(append(b, '\n'))
	var a answer
	if err == nil {
		a, err = readAnswer(in)
	}
	if _, said := errors.AsType[*remote](err); err != nil && !said && r.Op == opAnswer {
		err = fmt.Errorf("it can't be told whether the answer was taken: %w", plain(err))
	}
	return a, err
}

// plain is err without the address of the socket, which nobody would know.
func plain(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Err
	}
	return err
}
