package router

import (
	"context"
	"net"
	"sync"
)

// exchanges are the generation requests in work, for draining.
type exchanges struct {
	mu    sync.Mutex
	all   map[*exchange]bool // guarded by mu
	empty chan struct{}      // closed when all is empty while somebody waits
}

func (e *exchanges) add(x *exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.all == nil {
		e.all = make(map[*exchange]bool)
	}
	e.all[x] = true
	x.r.metrics.running.Set(float64(len(e.all)))
}

func (e *exchanges) remove(x *exchange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.all, x)
	x.r.metrics.running.Set(float64(len(e.all)))
	if len(e.all) == 0 && e.empty != nil {
		close(e.empty)
		e.empty = nil
	}
}

func (e *exchanges) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}

// wait returns when no exchange is left. When ctx ends it ends them, and returns how many.
func (e *exchanges) wait(ctx context.Context) (cut int) {
	e.mu.Lock()
	if len(e.all) == 0 {
		e.mu.Unlock()
		return 0
	}
	if e.empty == nil {
		e.empty = make(chan struct{})
	}
	empty := e.empty
	e.mu.Unlock()
	select {
	case <-empty:
		return 0
	case <-ctx.Done():
	}
	e.mu.Lock()
	for x := range e.all {
		cut++
		x.cancel(errDrainOver)
	}
	e.mu.Unlock()
	<-empty
	return cut
}

// limitListener bounds the connections that are open at once; more wait in the
// kernel's queue.
func limitListener(l net.Listener, most int) net.Listener {
	return &limited{Listener: l, slots: make(chan struct{}, most), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &limitedConn{Conn: c, release: func() { <-l.slots }}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	once    sync.Once
	release func()
}

func (c *limitedConn) Close() error {
	c.once.Do(c.release)
	return c.Conn.Close()
}
