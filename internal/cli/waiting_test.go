package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/drawbridge-mcp/drawbridge/internal/approve"
	"github.com/drawbridge-mcp/drawbridge/internal/control"
	"github.com/drawbridge-mcp/drawbridge/internal/state"
	"github.com/drawbridge-mcp/drawbridge/internal/store/sqlite"
)

// waitingRun is a program of the scripts: a live run that waits with questions.
//
//	waiting RUN ID:TOOL:ARGUMENTS...
//
// It keeps them in the database, notes each answer as a line in the file RUN.answers, makes the file
// RUN.ready when it listens, and ends at an interrupt. "later" among the questions
// stands for: the next ones are asked when the file RUN.more is there.
func waitingRun() {
	if err := waitWith(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func waitWith(id string, questions []string) error {
	path, err := state.Default(os.Getenv)
	if err != nil {
		return err
	}
	dir, err := state.Open(path)
	if err != nil {
		return err
	}
	r, err := dir.Begin(state.Meta{ID: id, Agent: "scripted", Scope: []string{}, Started: time.Now()})
	if err != nil {
		return err
	}
	defer r.End(time.Now())
	db, err := sqlite.Open(context.Background(), dir.Database())
	if err != nil {
		return err
	}
	defer db.Close()
	d := &heldDesk{run: id, questions: questions, store: db.Questions()}
	for _, q := range d.Pending() {
		if err := d.store.Add(context.Background(), q); err != nil {
			return err
		}
	}
	s, err := control.Listen(r.Path(), d, control.Options{Refused: func(detail string) { note(id+".refused", detail) }})
	if err != nil {
		return err
	}
	defer s.Close()
	note(id+".ready", "")
	end := make(chan os.Signal, 1)
	signal.Notify(end, os.Interrupt)
	<-end
	return nil
}

func note(file, text string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintln(f, text)
		err = f.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type heldDesk struct {
	run       string
	questions []string
	store     approve.Store
	mu        sync.Mutex
	settled   map[string]string
}

func (d *heldDesk) Pending() []approve.Question {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []approve.Question
	for i, text := range d.questions {
		if text == "later" {
			if _, err := os.Stat(d.run + ".more"); err != nil {
				break
			}
			continue
		}
		f := strings.SplitN(text, ":", 3)
		if d.settled[f[0]] == "" {
			all = append(all, approve.Question{ID: f[0], Run: d.run, Tool: f[1], Arguments: f[2], State: approve.Pending,
				Asked: time.Date(2026, 12, 1, 3, 0, i, 0, time.UTC)})
		}
	}
	return all
}

func (d *heldDesk) Answer(ctx context.Context, id string, a approve.Answer) error {
	if id == "LOCKED22" {
		return errors.New("the database is locked")
	}
	d.mu.Lock()
	how := d.settled[id]
	d.mu.Unlock()
	if how != "" {
		return fmt.Errorf("%w: %s", approve.ErrSettled, how)
	}
	for _, q := range d.Pending() {
		if q.ID == id {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.settled == nil {
				d.settled = map[string]string{}
			}
			d.settled[id] = "answered by " + a.By
			q.State, q.By, q.Note, q.Answered = approve.Denied, a.By, a.Note, time.Now()
			if a.Yes {
				q.State = approve.Approved
			}
			_ = d.store.Settle(ctx, q, approve.Pending) // a later one is not kept
			note(d.run+".answers", fmt.Sprintf("%s %v %v %q %s", id, a.Yes, a.Remember, a.Note, a.By))
			return nil
		}
	}
	return approve.ErrUnknown
}
