package kv

import (
	"errors"
	"strings"
	"testing"
)

func TestWindow(t *testing.T) {
	if w, err := Window(8192, 8192, false); w != 8192 || err != nil {
		t.Errorf("equal: %d, %v", w, err)
	}
	// The numbers of the incident.
	_, err := Window(1_048_576, 681_280, false)
	var we *WindowError
	if !errors.As(err, &we) {
		t.Fatalf("a window over the capacity must be refused, got %v", err)
	}
	for _, want := range []string{"1048576", "681280", "--clamp-window"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error must name %s: %v", want, err)
		}
	}
	if w, err := Window(1_048_576, 681_280, true); w != 681_280 || err != nil {
		t.Errorf("clamped: %d, %v", w, err)
	}
	if _, err := Window(0, 10, true); err == nil {
		t.Error("no window must be refused")
	}
}
