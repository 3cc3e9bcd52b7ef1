package upstream

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
)

// handshake finds out which era the server speaks: server/discover is answered
// in the modern one, and every other answer, or none in time, means initialize.
func (u *Upstream) handshake(ctx context.Context, l link) (*conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type attempted struct {
		c   *conn
		err error
	}
	try := func(f func(context.Context, link) (*conn, error)) chan attempted {
		done := make(chan attempted, 1)
		u.running.Go(func() {
			c, err := f(ctx, l)
			done <- attempted{c, err}
		})
		return done
	}
	var probe chan attempted // nil once it has failed
	if !u.legacy {
		probe = try(u.discover)
		wait := time.NewTimer(u.spec.ProbeWait)
		defer wait.Stop()
		select {
		case o := <-probe:
			if o.err == nil {
				return u.settled(ctx, o.c)
			}
			if ctx.Err() != nil || isLost(l) {
				return nil, o.err
			}
			probe = nil
		case <-wait.C:
		}
	}
	first := try(u.initialize)
	for {
		select {
		case o := <-probe:
			if o.err == nil {
				return u.settled(ctx, o.c)
			}
			probe = nil
		case o := <-first:
			if o.err == nil {
				return u.settled(ctx, o.c)
			}
			if probe == nil || isLost(l) {
				return nil, o.err
			}
			first = nil
			select {
			case p := <-probe:
				if p.err == nil {
					return u.settled(ctx, p.c)
				}
			case <-ctx.Done():
			}
			return nil, o.err
		}
	}
}

// settled ends the handshake.
func (u *Upstream) settled(ctx context.Context, c *conn) (*conn, error) {
	c.settle(c.version)
	if c.modern {
		return c, nil
	}
	const initialized = "notifications/initialized"
	return c, c.tell(ctx, initialized, []byte(`{"jsonrpc":"2.0","method":"`+initialized+`"}`))
}

// discover is the handshake of the modern era (2026-07-28, server/discover).
func (u *Upstream) discover(ctx context.Context, l link) (*conn, error) {
	id := u.nextID()
	a, err := l.ask(ctx, request{
		id: id, method: "server/discover", version: modern, quiet: true,
		body: u.envelope(id, "server/discover", nil, true, false),
	})
	if err != nil {
		return nil, err
	}
	if a.failure != nil {
		return nil, u.answeredError(a.failure)
	}
	c := &conn{link: l, version: modern, modern: true}
	known := false
	members, _ := call.Members(a.result)
	for _, m := range members {
		switch m.Name {
		case "supportedVersions":
			versions, _ := call.Elements(m.Value)
			known = slices.ContainsFunc(versions, func(v []byte) bool { return text(v) == modern })
		case "instructions":
			c.instructions = text(m.Value)
		}
	}
	if !known {
		return nil, u.spec.fail(Malformed, "speaks no version of the protocol that is known here")
	}
	return c, nil
}

// initialize is the handshake of the legacy era (2025-11-25, basic/lifecycle).
func (u *Upstream) initialize(ctx context.Context, l link) (*conn, error) {
	members := []byte(`"protocolVersion":"` + newestLegacy + `","capabilities":{},"clientInfo":`)
	id := u.nextID()
	a, err := l.ask(ctx, request{
		id: id, method: "initialize", quiet: true,
		body: u.envelope(id, "initialize", u.clientInfo(members), false, false),
	})
	if err != nil {
		return nil, err
	}
	if a.failure != nil {
		return nil, u.answeredError(a.failure)
	}
	result, ok := call.Members(a.result)
	if !ok {
		return nil, u.spec.fail(Malformed, "answered initialize with a result that is no object")
	}
	c := &conn{link: l}
	for _, m := range result {
		switch m.Name {
		case "protocolVersion":
			c.version = text(m.Value)
		case "instructions":
			c.instructions = text(m.Value)
		}
	}
	if !slices.Contains(legacyVersions, c.version) {
		return nil, u.spec.fail(Malformed, "speaks version %q of the protocol, which is not known here", u.spec.quote(c.version))
	}
	return c, nil
}

// A listing ends at these, so that a server can't keep a run from starting or
// fill its memory.
const (
	maxPages     = 1000
	maxTools     = 10_000
	maxListBytes = 64 << 20
)

// list reads all pages of tools/list.
func (u *Upstream) list(ctx context.Context, c *conn) ([]Definition, error) {
	var tools []Definition
	names := map[string]bool{}
	seen := map[string]bool{}
	var members []byte
	size := 0
	for page := 1; ; page++ {
		if page > maxPages {
			return nil, u.spec.fail(Malformed, "lists its tools on more than %d pages", maxPages)
		}
		id := u.nextID()
		a, err := c.ask(ctx, request{
			id: id, method: "tools/list", version: c.version,
			body: u.envelope(id, "tools/list", members, c.modern, false),
		})
		if err != nil {
			return nil, err
		}
		if a.failure != nil {
			if a.failure.code == -32601 && page == 1 {
				u.spec.Note("has no tools")
				return nil, nil
			}
			return nil, u.answeredError(a.failure)
		}
		var cursor, list []byte
		result, _ := call.Members(a.result)
		for _, m := range result {
			switch m.Name {
			case "tools":
				list = m.Value
			case "nextCursor":
				cursor = m.Value
			}
		}
		entries, ok := call.Elements(list)
		if !ok {
			return nil, u.spec.fail(Malformed, "answered tools/list without an array of tools")
		}
		if size += len(list); size > maxListBytes || len(tools)+len(entries) > maxTools {
			return nil, u.spec.fail(Malformed, "lists more than %d tools, or more than %d MiB of them", maxTools, maxListBytes>>20)
		}
		for _, e := range entries {
			d, why := u.define(bytes.Clone(e))
			if why == "" && names[d.Name] {
				why = "it is listed twice; the first one counts"
			}
			if why != "" {
				u.spec.Note("a tool is left out, " + u.spec.quote(d.Name) + ": " + why)
				continue
			}
			names[d.Name] = true
			tools = append(tools, d)
		}
		if cursor == nil || cursor[0] == 'n' {
			return tools, nil
		}
		if cursor[0] != '"' || seen[string(cursor)] {
			return nil, u.spec.fail(Malformed, "lists its tools without an end: page %d leads to a page that was there before", page)
		}
		seen[string(cursor)] = true
		members = append([]byte(`"cursor":`), cursor...)
	}
}
