package rogue

import (
	"sync"

	"bulkhead/transfer"
)

// tap is a bus whose sends can be tampered with.
type tap struct {
	transfer.Bus

	mu sync.Mutex
	// Below: guarded by mu.
	out    map[string]func(data []byte, send func([]byte) error) error // by subject: in place of a publish
	answer func(subject string, data []byte, send func([]byte) error) error
}

func newTap(b transfer.Bus) *tap {
	return &tap{Bus: b, out: map[string]func([]byte, func([]byte) error) error{}}
}

// on gives what is published on a subject to f, until it is called with nil.
func (t *tap) on(subject string, f func(data []byte, send func([]byte) error) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f == nil {
		delete(t.out, subject)
		return
	}
	t.out[subject] = f
}

// onAnswer gives every answer to f.
func (t *tap) onAnswer(f func(subject string, data []byte, send func([]byte) error) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answer = f
}

// Publish implements transfer.Bus.
func (t *tap) Publish(subject string, data []byte) error {
	t.mu.Lock()
	f := t.out[subject]
	t.mu.Unlock()
	if f != nil {
		return f(data, func(b []byte) error { return t.Bus.Publish(subject, b) })
	}
	return t.Bus.Publish(subject, data)
}

// Subscribe implements transfer.Bus.
func (t *tap) Subscribe(subject string, handler func(transfer.Msg)) (func(), error) {
	return t.Bus.Subscribe(subject, func(m transfer.Msg) {
		if send := m.Respond; send != nil {
			m.Respond = func(b []byte) error {
				t.mu.Lock()
				f := t.answer
				t.mu.Unlock()
				if f == nil {
					return send(b)
				}
				return f(m.Subject, b, send)
			}
		}
		handler(m)
	})
}
