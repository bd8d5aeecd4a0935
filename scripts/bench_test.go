package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// report has one of the comparisons write the section name of a document from records, and returns the document.
func report(t *testing.T, script, name, records string) string {
	t.Helper()
	dir := t.TempDir()
	data, doc := filepath.Join(dir, "records.json"), filepath.Join(dir, "doc.md")
	before := "above\n<!-- " + name + ": generated, do not edit -->\nold\n<!-- " + name + ": end -->\nbelow\n"
	for path, content := range map[string]string{data: records, doc: before} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("python3", "-B", "bench/"+script, "--report", "--json", data, "--write", doc)
	switch script {
	case "engine.py":
		cmd.Args = append(cmd.Args, "--models", dir)
	default:
		cmd.Args = append(cmd.Args, "--work", dir)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if !strings.HasPrefix(text, "above\n") || !strings.HasSuffix(text, "\nbelow\n") || strings.Contains(text, "old") {
		t.Errorf("more or less than the section was replaced:\n%s", text)
	}
	return text
}

const machine = `"cpu": {"name": "Some CPU", "cores": 2, "flags": ["avx2"], "family": "6", "model": "1", "l2": "1", "l3": "1"}, "threads": 2, "date": "2026-12-01"`

// Medians are over the rounds, and the ratio is Bulkhead's to llama.cpp's, not the other way round.
func TestEngineReport(t *testing.T) {
	var records []string
	for _, r := range []string{
		`"engine": "bulkhead", "kind": "load", "load_s": 1, "rss_bytes": 1048576`,
		`"engine": "llama.cpp", "kind": "load", "load_s": 2, "rss_bytes": 2097152`,
		`"engine": "bulkhead", "kind": "case", "prompt": 512, "batch": 1, "prompt_tok_s": 900, "gen_tok_s": 10, "rss_bytes": 9437184`,
		`"engine": "bulkhead", "kind": "case", "prompt": 512, "batch": 1, "prompt_tok_s": 300, "gen_tok_s": 30, "rss_bytes": 3145728`,
		`"engine": "bulkhead", "kind": "case", "prompt": 512, "batch": 1, "prompt_tok_s": 400, "gen_tok_s": 20, "rss_bytes": 3145728`,
		`"engine": "llama.cpp", "kind": "case", "prompt": 512, "batch": 1, "prompt_tok_s": 100, "gen_tok_s": 40, "rss_bytes": 1048576`,
		`"engine": "bulkhead", "kind": "memory", "rss_bytes": 3145728`,
		`"engine": "llama.cpp", "kind": "memory", "rss_bytes": 1048576`,
		`"engine": "memory", "kind": "stream", "prompt": 512, "batch": 1, "gb_s": 28.25`,
	} {
		records = append(records, `{"model": "1B q8_0", `+r+`}`)
	}
	got := report(t, "engine.py", "engine", `{"about": {`+machine+`, "llama_cpp_python": "0", "llama_cpp": "AVX2", "bulkhead": "v"}, "records": [`+strings.Join(records, ",")+`]}`)
	for _, want := range []string{
		"| 1B q8_0 | 512 | 400 | 100 | **4.00x** | 28.2 | 3 |",
		"| 1B q8_0 | 512 | 20.0 | 40.0 | **0.50x** | 28.2 | 3 |",
		"| 1B q8_0 | 1.00 | 2.00 | **0.50x** | 3 | 1 | **3.00x** |",
		"Some CPU",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
}

func TestServeReport(t *testing.T) {
	times := `"ttft_ms": {"p50": 100, "p90": 150, "p99": 200, "max": 250, "n": 9}, "itl_ms": {"p50": 10, "p90": 11, "p99": 12, "max": 13, "n": 9}, "e2e_ms": {"p50": 900, "p90": 950, "p99": 990, "max": 999, "n": 9}`
	var records []string
	for _, r := range []string{
		`"system": "Bulkhead up", "scenario": "full", "requests_per_s": 5, "goodput_per_s": 4, "gen_tok_s": 320`,
		`"system": "llama.cpp", "scenario": "full", "requests_per_s": 3, "goodput_per_s": 1, "gen_tok_s": 192`,
		`"system": "vLLM", "scenario": "full", "requests_per_s": 2, "goodput_per_s": 2, "gen_tok_s": 128`,
		`"system": "Bulkhead split", "scenario": "full", "requests_per_s": 4, "goodput_per_s": 3, "gen_tok_s": 256`,
	} {
		records = append(records, `{`+r+`, "failed": 0, "refused": 0, `+times+`}`)
	}
	got := report(t, "serve.py", "serve", `{"about": {`+machine+`, "prompt": 128, "gen": 64, "long": 2000, "clients": 16, "duration": 12, "slo_ttft": 2, "slo_itl": 0.1,
		"notes": {"Bulkhead up": "a", "Bulkhead split": "b", "llama.cpp": "c", "vLLM": "d"}, "llama": "1", "vllm": "2"}, "records": [`+strings.Join(records, ",")+`]}`)
	for _, want := range []string{
		"| Bulkhead up | 5.00 | **4.00** | 320 | 100 | 200 | 10.0 | 12.0 | 900 | 990 | 0 | 0 |",
		"Against the better peer, vLLM: Bulkhead up **2.00x**, Bulkhead split **1.50x**.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no line %q in\n%s", want, got)
		}
	}
}
