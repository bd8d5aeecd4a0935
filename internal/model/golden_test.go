package model

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/kernels/cpu"
)

// The goldens are logits of transformers on the same weights, made by
// scripts/make-tiny-model.py --testdata. Errors are relative to the largest
// logit of the row.
const (
	// The golden has Bulkhead's roundings (K and V to f16, inputs of all
	// quantised matrices to int8): only the order of sums differs. Issue A asks for 1e-4.
	tolerance = 1e-4
	// transformers as it is: how far the roundings may move a logit. Measured:
	// 2.8e-3 of the row's largest with f32 weights, where only K and V are
	// rounded; with quantised ones 4.4e-2: these are narrow and shallow, little
	// averages out, and few of their blocks are outliers.
	toleranceF32       = 5e-3
	toleranceQuantised = 6e-2
)

type golden struct {
	Tokens    []int32     `json:"tokens"`
	Rows      []int       `json:"rows"`
	Logits    [][]float32 `json:"logits"`
	LogitsF32 [][]float32 `json:"logits_f32"`
}

func readGolden(t testing.TB, name string) golden {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(data, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Rows) < 8 || len(g.Logits) != len(g.Rows) || len(g.LogitsF32) != len(g.Rows) {
		t.Fatalf("%s: golden of %d rows", name, len(g.Rows))
	}
	return g
}

// relative is the largest difference over the largest magnitude of want.
func relative(got, want []float32) float64 {
	var diff, size float64
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if !(d <= diff) { // NaN gets in
			diff = d
		}
		size = max(size, math.Abs(float64(want[i])))
	}
	return diff / size
}

func TestGoldens(t *testing.T) {
	files, err := filepath.Glob("testdata/*.gguf")
	if err != nil || len(files) < 11 {
		t.Fatalf("%d models in testdata, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".gguf")
		t.Run(name, func(t *testing.T) {
			g := readGolden(t, name)
			raw := toleranceF32
			if strings.Contains(name, "q8_0") || strings.Contains(name, "q4_1") || name == "tiny-chat" {
				raw = toleranceQuantised
			}
			g.check(t, "all rounded", openWith(t, name, cpu.Config{Threads: 1}, false), g.Logits, tolerance)
			g.check(t, "as loaded", openTest(t, name, cpu.Config{Threads: 1}), g.LogitsF32, raw)
		})
	}
}

// check feeds the golden's tokens to m, one by one, and compares the rows kept.
func (g golden) check(t *testing.T, what string, m *Model, want [][]float32, limit float64) {
	t.Helper()
	if m.Spec().Vocab != len(want[0]) {
		t.Fatalf("vocabulary of %d, golden of %d", m.Spec().Vocab, len(want[0]))
	}
	pages := newPages(t, m, 4)
	rows := run(t, newRunner(t, m, len(g.Tokens), 1), pages, claim(pages, 1, 2, 0, 3), g.Tokens, 1)
	var worst float64
	for i, row := range g.Rows {
		e := relative(rows[row], want[i])
		if !(e <= limit) {
			t.Errorf("%s, row %d: %.1e off, limit %.0e", what, row, e, limit)
		}
		worst = max(worst, e)
	}
	t.Logf("%s: largest error %.1e", what, worst)
}
