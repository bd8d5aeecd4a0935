//go:build e2e

package deploy_test

import (
	"errors"
	"strings"
	"testing"
)

// goal: the judge of the other tests sees what it is there for. method: streams and
// answers as a router with each fault would send them; only the first of each group is good.

const (
	judgedText    = `data: {"choices":[{"delta":{"content":"Par"}}]}` + "\n\n" + `data: {"choices":[{"delta":{"content":"is"}}]}` + "\n\n"
	judgedFinish  = `data: {"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	judgedUsage   = `data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}` + "\n\n"
	judgedDone    = "data: [DONE]\n\n"
	judgedLost    = `data: {"error":{"message":"lost","type":"server_error","param":null,"code":"worker_lost"}}` + "\n\n"
	judgedBroken  = `data: {"error":{"message":"bad","type":"server_error","param":null,"code":"integrity_error"}}` + "\n\n"
	judgedReceipt = "91525567c615be39b6d2f86f1a19b29fcf5452bfad37781bb2825f7eb6805cc5"
)

func TestJudge(t *testing.T) {
	q := question{Stream: true}
	want := answer{text: "Paris", finish: "stop", usage: &usage{3, 2, 5}}
	for _, tt := range []struct {
		name, body       string
		complete, proper bool
	}{
		{"whole", judgedText + judgedFinish + judgedUsage + judgedDone, true, true},
		{"with a comment", ": keepalive\n\n" + judgedText + judgedFinish + judgedUsage + judgedDone, true, true},
		{"cut off", judgedText, false, false},
		{"cut off before [DONE]", judgedText + judgedFinish + judgedUsage, false, false},
		{"no usage", judgedText + judgedFinish + judgedDone, false, false},
		{"no finish_reason", judgedText + judgedUsage + judgedDone, false, false},
		{"text of somebody else", strings.Replace(judgedText, "Par", "Lyo", 1) + judgedFinish + judgedUsage + judgedDone, false, false},
		{"too little text", judgedText[:strings.Index(judgedText, "\n")+2] + judgedFinish + judgedUsage + judgedDone, false, false},
		{"lost", judgedText + judgedLost, false, true},
		{"lost after text of somebody else", strings.Replace(judgedText, "Par", "Lyo", 1) + judgedLost, false, false},
		{"lost and [DONE]", judgedText + judgedLost + judgedDone, false, false},
		{"lost after the finish", judgedText + judgedFinish + judgedLost, false, false},
		{"integrity", judgedText + judgedBroken, false, false},
		{"not JSON", "data: {\n\n", false, false},
	} {
		a := answer{status: 200, receipt: judgedReceipt}
		a.broken = a.readStream(strings.NewReader(tt.body))
		if err := a.complete(q, want); (err == nil) != tt.complete {
			t.Errorf("%s: complete: %v", tt.name, err)
		}
		if err := a.proper(q, want); (err == nil) != tt.proper {
			t.Errorf("%s: proper: %v", tt.name, err)
		}
	}
}

func TestJudgeWhole(t *testing.T) {
	want := answer{text: "Paris", finish: "stop", usage: &usage{3, 2, 5}}
	good := answer{status: 200, text: "Paris", finish: "stop", usage: &usage{3, 2, 5}, receipt: judgedReceipt}
	code := "worker_lost"
	lost := answer{status: 502, fault: &fault{Message: "lost", Type: "server_error", Code: &code}}
	for _, tt := range []struct {
		name   string
		a      answer
		change func(*answer)
		proper bool
	}{
		{"whole", good, func(*answer) {}, true},
		{"hangs", good, func(a *answer) { a.broken = errors.New("deadline") }, false},
		{"no receipt", good, func(a *answer) { a.receipt = "" }, false},
		{"wrong usage", good, func(a *answer) { a.usage = &usage{3, 1, 4} }, false},
		{"500 without an error object", good, func(a *answer) { a.status = 500 }, false},
		{"lost", lost, func(*answer) {}, true},
		{"200 with an error", lost, func(a *answer) { a.status = 200 }, false},
		{"error without a message", lost, func(a *answer) { a.fault = &fault{Type: "server_error", Code: &code} }, false},
		{"error without a code", lost, func(a *answer) { a.fault = &fault{Message: "lost", Type: "server_error"} }, false},
	} {
		a := tt.a
		tt.change(&a)
		if err := a.proper(question{}, want); (err == nil) != tt.proper {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
