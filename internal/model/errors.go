package model

import (
	"errors"
	"fmt"
)

// Why a file is refused. A SpecError or TensorError wraps exactly one.
var (
	ErrMissing     = errors.New("missing")
	ErrLimit       = errors.New("outside its limits")
	ErrUnsupported = errors.New("not supported")
	ErrShape       = errors.New("wrong shape")
	ErrUnknown     = errors.New("not known to this architecture")
)

// Why a step, or one sequence's part of it, is refused.
var (
	ErrStepSize = errors.New("model: step larger than the runner")
	ErrLayout   = errors.New("model: pages of another layout")
	ErrClosed   = errors.New("model: closed")
	ErrNoTokens = errors.New("model: sequence without tokens")
	ErrTokenID  = errors.New("model: token id outside the vocabulary")
	ErrWindow   = errors.New("model: position outside the window")
	ErrTable    = errors.New("model: block table does not cover the tokens")
)

// SpecError is a refused metadata key.
type SpecError struct {
	Key   string
	Limit string // what was wanted
	Value string // what was found
	Err   error  // ErrMissing, ErrLimit, ErrUnsupported, or the gguf package's error
}

func (e *SpecError) Error() string {
	s := fmt.Sprintf("model: metadata %s: %v", e.Key, e.Err)
	if e.Value != "" {
		s += ": found " + e.Value
	}
	if e.Limit != "" {
		s += ", want " + e.Limit
	}
	return s
}

// Unwrap gives the reason.
func (e *SpecError) Unwrap() error { return e.Err }

// TensorError is a refused tensor. Shapes are in the file's order: the length of a row first.
type TensorError struct {
	Name  string
	Want  []int
	Found []int
	Err   error // ErrMissing, ErrUnknown, ErrShape, ErrLimit, or the loading error
}

func (e *TensorError) Error() string {
	s := fmt.Sprintf("model: tensor %.64q: %v", e.Name, e.Err)
	if e.Found != nil {
		s += fmt.Sprintf(": found %v", e.Found)
	}
	if e.Want != nil {
		s += fmt.Sprintf(", want %v", e.Want)
	}
	return s
}

// Unwrap gives the reason.
func (e *TensorError) Unwrap() error { return e.Err }
