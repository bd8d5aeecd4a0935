// Package negative runs negative test vectors: inputs that a decoder must refuse,
// one text file each, in the manner of C2SP's CCTV/age testkit.
//
//	expect: header version
//	what: frame
//	says: version is 2
//	comment: a version of tomorrow
//	form: hex
//
//	424b4846020100
//
// expect is the class of the error, out of a closed list; what names the
// decoder; says, if there, must be part of the error's text; form is hex (spaces
// and line breaks do not count), text (the bytes after the empty line, as they
// are) or zlib (hex of a zlib stream, for inputs over a limit). A vector fails its
// test when it decodes, when its error has another class or none, and when it
// names a class or a decoder that is not there.
//
// The files are for readers and for other implementations. They are made by the
// table of their package, which is held against them at every run; -rewrite
// writes them anew. For tests only.
package negative

import (
	"bytes"
	"compress/zlib"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Vector is one input to be refused.
type Vector struct {
	Name    string // of its file, without ".txt"
	What    string // decoder
	Expect  string // class of the error
	Says    string // part of the error's text; may be ""
	Comment string
	Data    []byte
}

// Decoder is a decoder, brought to one form.
type Decoder struct {
	Decode func([]byte) error
	Honest []byte // accepted: what the vectors of this decoder vary
}

// Set is what the vectors of one folder are held against.
type Set struct {
	Dir      string
	Decoders map[string]Decoder
	Classes  []string           // all there are
	Classify func(error) string // "" for an error of no class
	Made     []Vector           // by the package's own table
}

// Limits of a file: a set is for reading.
const (
	fileMax  = 32 << 10 // bytes of a file
	dataMax  = 16 << 20 // bytes of a vector
	errorMax = 1 << 10  // bytes of an error's text: hostile input must not flood a log
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,99}$`)

// Check runs the vectors in the folder and returns everything that is wrong.
func (s Set) Check() (errs []error) {
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
	}
	for what, d := range s.Decoders {
		if err := d.Decode(d.Honest); err != nil {
			bad(what, "the honest sample is refused, so its vectors show nothing: %v", err)
		}
	}
	files, err := s.read()
	if err != nil {
		return append(errs, err)
	}
	made := map[string]Vector{}
	for _, v := range s.Made {
		if _, dup := made[v.Name]; dup {
			bad(v.Name, "made twice")
		}
		made[v.Name] = v
		if f, ok := files[v.Name]; !ok {
			bad(v.Name, "has no file; -rewrite makes it")
		} else if !equal(f, v) {
			bad(v.Name, "its file is not what the table makes; -rewrite makes it anew")
		}
	}
	usedClass, usedWhat := map[string]bool{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		v := files[name]
		if _, ok := made[name]; !ok {
			bad(name, "is a file that no table makes")
		}
		if err := s.try(v); err != nil {
			bad(name, "%w", err)
		}
		usedClass[v.Expect], usedWhat[v.What] = true, true
	}
	for _, c := range s.Classes {
		if !usedClass[c] {
			bad(c, "a class without a vector")
		}
	}
	for what := range s.Decoders {
		if !usedWhat[what] {
			bad(what, "a decoder without a vector")
		}
	}
	return errs
}

// try decodes one vector.
func (s Set) try(v Vector) error {
	d, ok := s.Decoders[v.What]
	if !ok {
		return fmt.Errorf("unknown decoder %q", v.What)
	}
	if !slices.Contains(s.Classes, v.Expect) {
		return fmt.Errorf("unknown class %q", v.Expect)
	}
	err := d.Decode(bytes.Clone(v.Data))
	if err == nil {
		return errors.New("decodes without an error")
	}
	switch class := s.Classify(err); {
	case class == "" || !slices.Contains(s.Classes, class):
		return fmt.Errorf("error of no class: %w", err)
	case class != v.Expect:
		return fmt.Errorf("class %q, want %q: %w", class, v.Expect, err)
	case !strings.Contains(err.Error(), v.Says):
		return fmt.Errorf("error %q does not say %q", err, v.Says)
	case len(err.Error()) > errorMax:
		return fmt.Errorf("error of %d bytes, at most %d", len(err.Error()), errorMax)
	}
	return nil
}

// Write makes the folder anew from the table.
func (s Set) Write() error {
	old, err := filepath.Glob(filepath.Join(s.Dir, "*.txt"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return err
	}
	for _, v := range s.Made {
		raw, err := v.format()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.Dir, v.Name+".txt"), raw, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (s Set) read() (map[string]Vector, error) {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, err
	}
	out := map[string]Vector{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".txt")
		if !ok {
			return nil, fmt.Errorf("%s: no vector belongs under this name", e.Name())
		}
		raw, err := os.ReadFile(filepath.Join(s.Dir, e.Name()))
		if err != nil {
			return nil, err
		}
		v, err := parse(name, raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		out[name] = v
	}
	return out, nil
}

func equal(a, b Vector) bool {
	same := bytes.Equal(a.Data, b.Data)
	a.Data, b.Data = nil, nil
	return same && fmt.Sprint(a) == fmt.Sprint(b)
}

// format writes a vector in the form that shows it best.
func (v Vector) format() ([]byte, error) {
	var b bytes.Buffer
	for _, h := range [][2]string{{"expect", v.Expect}, {"what", v.What}, {"says", v.Says}, {"comment", v.Comment}} {
		if h[1] == "" && h[0] == "says" {
			continue
		}
		if h[1] == "" || strings.ContainsAny(h[1], "\r\n") || strings.TrimSpace(h[1]) != h[1] {
			return nil, fmt.Errorf("%s: %s is %q", v.Name, h[0], h[1])
		}
		fmt.Fprintf(&b, "%s: %s\n", h[0], h[1])
	}
	switch {
	case len(v.Data) > 8<<10 || len(v.Data) > 2<<10 && !readable(v.Data):
		var z bytes.Buffer
		w := zlib.NewWriter(&z)
		if _, err := w.Write(v.Data); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
		b.WriteString("form: zlib\n\n")
		writeHex(&b, z.Bytes())
	case len(v.Data) > 0 && readable(v.Data):
		b.WriteString("form: text\n\n")
		b.Write(v.Data)
	default:
		b.WriteString("form: hex\n\n")
		writeHex(&b, v.Data)
	}
	if b.Len() > fileMax {
		return nil, fmt.Errorf("%s: file of %d bytes, at most %d", v.Name, b.Len(), fileMax)
	}
	return b.Bytes(), nil
}

func writeHex(b *bytes.Buffer, data []byte) {
	for line := range slices.Chunk(data, 32) {
		fmt.Fprintf(b, "%x\n", line)
	}
}

// readable: text that survives editors and mail.
func readable(data []byte) bool {
	if !utf8.Valid(data) {
		return false
	}
	for _, r := range string(data) {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return false
		}
	}
	return true
}

// parse reads a file strictly: every header known and given once.
func parse(name string, raw []byte) (Vector, error) {
	if !nameForm.MatchString(name) {
		return Vector{}, errors.New("a name outside [a-z0-9._-]")
	}
	if len(raw) > fileMax {
		return Vector{}, fmt.Errorf("%d bytes, at most %d", len(raw), fileMax)
	}
	head, body, ok := bytes.Cut(raw, []byte("\n\n"))
	if !ok {
		return Vector{}, errors.New("no empty line after the headers")
	}
	v := Vector{Name: name}
	form := ""
	at := map[string]*string{"expect": &v.Expect, "what": &v.What, "says": &v.Says, "comment": &v.Comment, "form": &form}
	for line := range strings.SplitSeq(string(head), "\n") {
		key, value, ok := strings.Cut(line, ": ")
		to := at[key]
		if !ok || to == nil || value == "" {
			return Vector{}, fmt.Errorf("unknown, repeated or empty header %q", line)
		}
		*to = value
		delete(at, key)
	}
	for key := range at {
		if key != "says" {
			return Vector{}, fmt.Errorf("no %s", key)
		}
	}
	switch form {
	case "text":
		v.Data = body
		return v, nil
	case "hex", "zlib":
	default:
		return Vector{}, fmt.Errorf("unknown form %q", form)
	}
	data, err := hex.DecodeString(strings.Join(strings.Fields(string(body)), ""))
	if err != nil || form == "hex" {
		v.Data = data
		return v, err
	}
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return Vector{}, err
	}
	if v.Data, err = io.ReadAll(io.LimitReader(z, dataMax+1)); err == nil && len(v.Data) > dataMax {
		err = fmt.Errorf("more than %d bytes", dataMax)
	}
	return v, err
}
