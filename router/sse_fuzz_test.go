package router

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"bulkhead/internal/sample"
)

// FuzzEvents: whatever a model samples, a stream is well-formed: each event is
// one line of JSON, its text valid UTF-8, no text can make an event or a [DONE]
// of its own, and no stop string is seen. Tokens are bytes here.
func FuzzEvents(f *testing.F) {
	f.Add([]byte("hello"), "", uint8(1))
	f.Add([]byte("a\n\ndata: [DONE]\n\ndata: {\"error\":1}\n\n"), "", uint8(3))
	f.Add([]byte("\r\n: comment\r\rid: 1\revent: x"), "", uint8(1))
	f.Add([]byte("h\xc3\xa9 \xf0\x9f\x98\x80 \xed\xa0\x80 \xff\xc3"), "", uint8(2))
	f.Add([]byte("\u2028\u2029\u0085<script>&\x00\x1b"), "", uint8(5))
	f.Add([]byte("one stop two"), "stop", uint8(2))
	f.Add([]byte("aaab aab \xef\xbf"), "aab", uint8(1))
	tok := testTokenizer()
	f.Fuzz(func(t *testing.T, text []byte, stop string, chunk uint8) {
		if len(text) > 4096 || !utf8.ValidString(stop) {
			return
		}
		rec := httptest.NewRecorder()
		s := newSSE(rec, time.Minute)
		if err := s.begin(); err != nil {
			t.Fatal(err)
		}
		var stops []string
		if stop != "" {
			stops = []string{stop}
		}
		a := newAssembler(tok, stops, true)
		x := &exchange{r: &Router{tok: tok}, gen: &generation{model: "m", params: sample.Params{Logprobs: true}}}
		x.choices = []*choice{{receipt: &receiptFacts{}}}
		want, given := "", 0
		give := func(p piece) {
			want += p.text
			given++
			if err := s.event(chatShape{}.chunk(x, 0, chunkChoice{Delta: chatDelta{Content: &p.text}, Logprobs: newChatLogprobs(tok, p.logprobs, true)})); err != nil {
				t.Fatal(err)
			}
		}
		stopped := false
		for len(text) > 0 && !stopped {
			n := min(len(text), int(chunk)%7+1)
			var tokens []sample.Token
			for _, b := range text[:n] {
				tokens = append(tokens, sample.Token{ID: int32(b), Logprob: -1})
			}
			var p piece
			p, stopped = a.push(tokens)
			give(p)
			text = text[n:]
		}
		if !stopped {
			give(a.finish())
		}
		if err := s.done(); err != nil {
			t.Fatal(err)
		}
		got, raw := "", rec.Body.String()
		parts := strings.Split(raw, "\n\n")
		if len(parts) != given+2 || parts[given] != "data: [DONE]" || parts[given+1] != "" {
			t.Fatalf("%d events, want %d and an end: %q", len(parts), given, raw)
		}
		for _, part := range parts[:given] {
			line, ok := strings.CutPrefix(part, "data: ")
			if !ok || strings.ContainsAny(line, "\r\n") || !utf8.ValidString(line) {
				t.Fatalf("event %q", part)
			}
			var c chatChunk
			if err := json.Unmarshal([]byte(line), &c); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			got += *c.Choices[0].Delta.Content
		}
		if got != want || stop != "" && strings.Contains(got, stop) {
			t.Fatalf("client reads %q, was given %q, stop %q", got, want, stop)
		}
	})
}
