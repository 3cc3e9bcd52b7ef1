package drawbridge

import (
	"errors"
	"fmt"

	"github.com/drawbridge-mcp/drawbridge/internal/call"
	"github.com/drawbridge-mcp/drawbridge/internal/fault"
	"github.com/drawbridge-mcp/drawbridge/internal/proc"
)

// Error is what Start and Run fail with: Message says what is wrong and where,
// Hint (may be "") what to do, Kind which sort of error it is.
type Error = fault.Error

// Kind sorts errors. Its number is the exit code of the command.
type Kind = fault.Kind

// The kinds of [Error].
const (
	AgentFailed      = fault.Agent       // 1: the agent failed, or said so
	Usage            = fault.Usage       // 2: configuration or surroundings
	NotReady         = fault.NotReady    // 3: the agent never listed its tools
	OverBudget       = fault.Budget      // 4: it cost more than its budget
	RecordIncomplete = fault.Record      // 5: a line of the audit record is missing
	WallTime         = fault.Wall        // 124: the run took too long
	SandboxFailed    = fault.Sandbox     // 126: the level asked for can't be had
	Interrupted      = fault.Interrupted // 130: the context ended
)

// KindOf is the kind of err, 0 for nil, and AgentFailed for an error that is not
// an [*Error].
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	return fault.KindOf(err)
}

// ErrNotAvailable: the tool is not in the run's scope. Whether it exists
// elsewhere is not told.
var ErrNotAvailable = errors.New("tool not available")

// ErrNoHelper: [Helper] is not the first line of main in this program.
var ErrNoHelper = proc.ErrNoHelper

// ErrUnsupported: this system has no way to end a whole process tree for sure,
// so Run and execute_command are refused. Start works everywhere.
var ErrUnsupported = proc.ErrUnsupported

func publicError(err error) error {
	if na, ok := errors.AsType[*call.NotAvailable](err); ok {
		return fmt.Errorf("%w: %w", ErrNotAvailable, na)
	}
	return err
}
