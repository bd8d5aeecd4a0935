package tokenizer

import (
	"errors"
	"fmt"
)

// What callers branch on. All errors of New are one of these or a *MetadataError.
var (
	// ErrUnsupportedModel: tokenizer.ggml.model is a kind that this package cannot run,
	// such as the SentencePiece model "llama".
	ErrUnsupportedModel = errors.New("tokenizer: unsupported tokenizer model")
	// ErrUnsupportedPre: tokenizer.ggml.pre names a pre-tokenizer that is not known here.
	// Guessing another one would give ids that look right and are not.
	ErrUnsupportedPre = errors.New("tokenizer: unsupported pre-tokenizer")
	// ErrMetadata: a key is missing, of another type, or contradicts another one.
	ErrMetadata = errors.New("tokenizer: bad metadata")
	// ErrLimit: the metadata is larger than any real model's; see the limits in load.go.
	ErrLimit = errors.New("tokenizer: limit exceeded")
	// ErrTemplate: the file's chat template cannot be compiled, or does what a chat
	// template has no need to do (vet.go).
	ErrTemplate = errors.New("tokenizer: bad chat template")

	// ErrNoTemplate: a chat was asked for and the file has no chat template.
	ErrNoTemplate = errors.New("tokenizer: the model file has no chat template")
	// ErrNoMessages: a chat without messages.
	ErrNoMessages = errors.New("tokenizer: a chat needs a message")
	// ErrRole: a message's role is not one of system, developer, user, assistant, tool.
	ErrRole = errors.New("tokenizer: unknown message role")
	// ErrRender: the template failed on these messages. A *RenderError has the reason
	// where the template itself gave one.
	ErrRender = errors.New("tokenizer: the chat template cannot render these messages")
	// ErrRenderLimit: rendering took longer or produced more than allowed.
	ErrRenderLimit = errors.New("tokenizer: chat template limit exceeded")
)

// MetadataError names the key that New refused, and why. It matches ErrMetadata or
// ErrLimit, whichever Err is.
type MetadataError struct {
	Key    string
	Reason string // numbers and indices only, never token text
	Err    error
}

func (e *MetadataError) Error() string { return fmt.Sprintf("%v: %s: %s", e.Err, e.Key, e.Reason) }

func (e *MetadataError) Unwrap() error { return e.Err }

func badKey(key, format string, args ...any) error {
	return &MetadataError{Key: key, Reason: fmt.Sprintf(format, args...), Err: ErrMetadata}
}

func overLimit(key, what string, got, limit int) error {
	return &MetadataError{Key: key, Reason: fmt.Sprintf("%s is %d, limit %d", what, got, limit), Err: ErrLimit}
}

// RenderError is a refusal by the template's own author (raise_exception). Reason is
// that author's sentence where it stands literally in the template, empty where it was
// put together while rendering and could hold a piece of the prompt.
type RenderError struct{ Reason string }

func (e *RenderError) Error() string {
	if e.Reason == "" {
		return ErrRender.Error()
	}
	return ErrRender.Error() + ": " + e.Reason
}

func (e *RenderError) Unwrap() error { return ErrRender }
