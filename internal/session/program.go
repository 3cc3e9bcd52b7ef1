package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// Program is any program started as the agent, the way ssh-agent starts one:
// with the caller's environment and terminal, and with the bridge in three
// variables. Its level is open.
type Program struct {
	Path string   // absolute
	Args []string // with Args[0]
	// RequireReady makes a program that never listed its tools a failure.
	RequireReady bool
	Wall         time.Duration // of the program; 0 is no limit
}

// Variables a Program finds the bridge by.
const (
	EnvURL    = "DRAWBRIDGE_URL"
	EnvToken  = "DRAWBRIDGE_TOKEN"
	EnvConfig = "DRAWBRIDGE_MCP_CONFIG"
)

func (s *Session) prepareProgram(url string) error {
	if err := helper(); err != nil {
		return err
	}
	private, err := s.privateDir()
	if err != nil {
		return err
	}
	dir := s.cfg.Folder
	if dir == "" {
		if dir, err = os.Getwd(); err != nil {
			return fault.Wrap(err, fault.Usage, "", "working directory")
		}
	}
	config := private + "/mcp.json"
	f, err := os.OpenFile(config, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fault.Wrap(err, fault.Usage, "is the disk full?", "MCP config")
	}
	defer f.Close()
	if _, err := f.Write(s.mcpConfig(url)); err != nil {
		return fault.Wrap(err, fault.Usage, "is the disk full?", "MCP config")
	}
	env := slices.DeleteFunc(slices.Clone(s.cfg.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == EnvURL || name == EnvToken || name == EnvConfig || name == proc.MarkerEnv
	})
	env = append(env, EnvURL+"="+url, EnvToken+"="+s.token, EnvConfig+"="+config)
	s.spec = &proc.Spec{
		Path: s.cfg.Program.Path, Args: s.cfg.Program.Args, Env: env, Dir: dir,
		Marker: s.binding.Run, Terminal: true,
	}
	return nil
}

// RunProgram starts the prepared program, waits until it and everything it
// started is dead, and closes the session. code is the program's own, 128+N
// after signal N; listed is whether it listed its tools. Ending ctx ends it.
func (s *Session) RunProgram(ctx context.Context) (code int, listed bool, err error) {
	over := errors.New("wall time")
	if w := s.cfg.Program.Wall; w > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, w, over)
		defer cancel()
	}
	// Who is being ended calls nothing more, however long that takes.
	defer context.AfterFunc(ctx, func() { _ = s.endpoint.Close() })()
	p, err := proc.Start(ctx, *s.spec)
	if err != nil {
		if ctx.Err() != nil {
			err = fault.New(fault.Interrupted, "", "interrupted before %s was started", s.spec.Path)
		} else {
			err = fault.Wrap(err, fault.Usage, startHint(err), "start %s", s.spec.Path)
		}
		err = s.finish(err)
		s.ended(Report{}, err)
		return int(fault.KindOf(err)), false, err
	}
	exit, err := p.Wait()
	if err != nil {
		err = fault.Wrap(err, fault.Agent, "", "supervision of %s", s.spec.Path)
	} else if context.Cause(ctx) == over && exit.Ended {
		err = fault.New(fault.Wall, "the policy sets the wall time", "%s took longer than %s", s.spec.Path, s.cfg.Program.Wall)
	}
	select {
	case <-s.ready:
		listed = true
	default:
		s.note("notice", "the program never listed the tools")
		if err == nil && s.cfg.Program.RequireReady {
			err = fault.New(fault.NotReady, "", "%s never listed its tools from the bridge", s.spec.Path)
		}
	}
	if len(exit.Leftovers) > 0 {
		s.note("notice", "unfinished background work was ended: "+strings.Join(exit.Leftovers, ", "))
	}
	if exit.LostHelper {
		s.note("notice", lostHelper)
	}
	s.note("agent", fmt.Sprintf("the program ended: exit code %d", exit.Code))
	if err == nil {
		err = s.closeWith(&exit.Code)
	} else {
		err = s.finish(err)
	}
	s.ended(Report{}, err)
	return exit.Code, listed, err
}
