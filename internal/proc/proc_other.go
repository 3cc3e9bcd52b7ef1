//go:build !linux

package proc

import "context"

// Helper does nothing on this system.
func Helper() {}

// HelperReady returns ErrUnsupported on this system.
func HelperReady() error { return ErrUnsupported }

// Process is a started process and everything below it. There is none on this
// system.
type Process struct{}

// Start returns ErrUnsupported on this system.
func Start(context.Context, Spec) (*Process, error) { return nil, ErrUnsupported }

// PID is the process id of the process itself.
func (*Process) PID() int { return 0 }

// End ends the tree.
func (*Process) End() {}

// Exited is closed when the process itself is gone.
func (*Process) Exited() <-chan struct{} { return nil }

// Status is how the process itself ended.
func (*Process) Status() (code int, signal string) { return 0, "" }

// Wait waits for the end of the tree.
func (*Process) Wait() (Exit, error) { return Exit{}, ErrUnsupported }

// Sweep returns ErrUnsupported on this system.
func Sweep(string) ([]int, error) { return nil, ErrUnsupported }

// Alive finds nothing on this system.
func Alive(string) []int { return nil }

// OriginOf returns ErrUnsupported on this system.
func OriginOf(int) (Origin, error) { return Origin{}, ErrUnsupported }
