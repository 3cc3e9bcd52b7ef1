package audit

import "testing"

func umask(int) int { return 0 }

func mkfifo(t *testing.T, _ string) {
	t.Helper()
	t.Skip("windows has no named pipes in directories")
}
