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
	// The golden has Bulkhead's roundings (K and V to f16, inputs of quantised
	// matrices to int8): only the order of sums differs. Issue A asks for 1e-4.
	tolerance = 1e-4
	// transformers as it is: how far the roundings may move a logit. Measured:
	// 2.8e-3 of the row's largest with f32 weights, where only K and V are
	// rounded, and 4.9e-2 with quantised ones, whose inputs are, too.
	toleranceF32       = 5e-3
	toleranceQuantised = 8e-2
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
			m := openTest(t, name, cpu.Config{Threads: 1})
			if m.Spec().Vocab != len(g.Logits[0]) {
				t.Fatalf("vocabulary of %d, golden of %d", m.Spec().Vocab, len(g.Logits[0]))
			}
			pages := newPages(t, m, 4)
			table := claim(pages, 1, 2, 0, 3)
			rows := run(t, newRunner(t, m, len(g.Tokens), 1), pages, table, g.Tokens, 1)
			quantised := strings.Contains(name, "q8_0") || strings.Contains(name, "q4_1") || name == "tiny-chat"
			toleranceRaw := toleranceF32
			if quantised {
				toleranceRaw = toleranceQuantised
			}
			var worst, worstRaw float64
			for i, row := range g.Rows {
				e, raw := relative(rows[row], g.Logits[i]), relative(rows[row], g.LogitsF32[i])
				if !(e <= tolerance) || !(raw <= toleranceRaw) {
					t.Errorf("row %d: %.1e off, limit %.0e; without roundings %.1e, limit %.0e", row, e, tolerance, raw, toleranceRaw)
				}
				worst, worstRaw = max(worst, e), max(worstRaw, raw)
			}
			t.Logf("largest error %.1e; without roundings %.1e", worst, worstRaw)
		})
	}
}
