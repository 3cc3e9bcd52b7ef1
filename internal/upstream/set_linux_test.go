package upstream

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// hanging is a server that answers nothing until the test is over.
func hanging(t *testing.T, name string) (*site, Spec, chan struct{}) {
	let := make(chan struct{})
	s, spec, _ := newSite(t, func(s *site) {
		s.before = func(_ http.ResponseWriter, r *http.Request, _, _ string) bool {
			select {
			case <-let:
			case <-r.Context().Done():
			}
			return false
		}
	})
	spec.Name = name
	return s, spec, let
}

func TestSet(t *testing.T) {
	t.Run("the slow and the dead keep up no other, and who is late joins once", func(t *testing.T) {
		_, good, _ := newSite(t, nil)
		good.Name = "good"
		_, slow, let := hanging(t, "slow")
		dead, _ := child(t, "dies at once", "")
		dead.Name = "dead"
		s, err := StartAll(t.Context(), 2*time.Second, slow, good, dead)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		joined := make(chan Member, 2)
		there := s.Late(func(m Member) { joined <- m })
		if len(there) != 1 || there[0].Name != "good" || s.Late(func(Member) { t.Error("told twice") }) != nil {
			t.Errorf("%+v", there)
		}
		m := s.Members()
		if m[0].Name != "slow" || m[0].Upstream != nil || m[0].Err != nil || m[1].Upstream == nil || m[2].Err == nil || !strings.Contains(m[2].Err.Error(), "upstream dead ended (exit code 7)") {
			t.Errorf("%+v", m)
		}
		works(t, m[1].Upstream, `{}`)
		close(let)
		if m := <-joined; m.Name != "slow" || m.Upstream == nil {
			t.Errorf("%+v", m)
		}
		works(t, s.Members()[0].Upstream, `{}`)
		s.Close()
		if len(joined) != 0 {
			t.Error("joined twice")
		}
		fails(t, m[1].Upstream, t.Context(), "echo", Closed)
	})
	t.Run("one that is required", func(t *testing.T) {
		dead, _ := child(t, "dies at once", "")
		dead.Required = true
		plain, _ := child(t, "plain", "")
		if _, err := StartAll(t.Context(), time.Minute, plain, dead); err == nil || !strings.Contains(err.Error(), "no license") {
			t.Errorf("%v", err)
		}
		left(t, plain.Marker)
		_, slow, _ := hanging(t, "slow")
		slow.Required = true
		if _, err := StartAll(t.Context(), 50*time.Millisecond, slow); err == nil || err.Error() != "upstream slow did not list its tools within 50ms, and is required" {
			t.Errorf("%v", err)
		}
	})
	t.Run("given up before it began", func(t *testing.T) {
		_, slow, _ := hanging(t, "slow")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := StartAll(ctx, time.Minute, slow); err != context.DeadlineExceeded {
			t.Errorf("%v", err)
		}
	})
	t.Run("none", func(t *testing.T) {
		s, err := StartAll(t.Context(), 0)
		if err != nil || len(s.Members()) != 0 {
			t.Error(s, err)
		}
		s.Close()
		s.Close()
	})
	t.Run("many at once", func(t *testing.T) {
		var specs []Spec
		for i := range 5 {
			_, spec, _ := newSite(t, nil)
			spec.Name = fmt.Sprint("s", i)
			specs = append(specs, spec)
		}
		s, err := StartAll(t.Context(), 0, specs...)
		if err != nil {
			t.Fatal(err)
		}
		for i, m := range s.Members() {
			if m.Name != fmt.Sprint("s", i) || m.Upstream == nil {
				t.Errorf("%+v", m)
			}
		}
		s.Close()
	})
}
