package transfer

import (
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/negative"
)

// Every subject that is built can be read, and what is read builds the same subject again.
func TestSubjectsRoundTrip(t *testing.T) {
	id := ID{0, 1, 2, 3, 0xff}
	kv := KVSubject{Decode: "d-0_X", Request: id, Attempt: 65535, Token: ID{15: 0xff}}
	if got, err := ParseKV(kv.String()); err != nil || got != kv {
		t.Errorf("%s: %+v, %v", kv, got, err)
	}
	out := OutSubject{Router: strings.Repeat("r", NodeNameMax), Request: id, Token: id}
	if got, err := ParseOut(out.String()); err != nil || got != out {
		t.Errorf("%s: %+v, %v", out, got, err)
	}
	if r, n, err := ParseAnnounce(AnnounceSubject(RoleDecode, "d0")); err != nil || r != RoleDecode || n != "d0" {
		t.Error(r, n, err)
	}
	if p, d, err := ParseCredit(CreditSubject("p0", "d0")); err != nil || p != "p0" || d != "d0" {
		t.Error(p, d, err)
	}
	longest := KVSubject{Decode: strings.Repeat("d", NodeNameMax), Attempt: 65535}
	if len(longest.String()) != subjectMax {
		t.Errorf("longest subject has %d bytes, subjectMax is %d", len(longest.String()), subjectMax)
	}
}

// What is nearly a subject is none.
func TestSubjectsRefused(t *testing.T) {
	const id = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	for _, s := range []string{
		"", "kv", "kv.d0", "kv.d0.>", "kv.*." + id + ".1." + id,
		"kv..aaaaaaaaaaaaaaaaaaaaaaaaaa.1." + id,
		"kv.d 0." + id + ".1." + id,
		"kv.d0." + id + ".1." + id + ".x",
		"kv.d0." + id + ".0." + id,
		"kv.d0." + id + ".01." + id,
		"kv.d0." + id + ".+1." + id,
		"kv.d0." + id + ".65536." + id,
		"kv.d0." + id + ".-1." + id,
		"kv.d0." + id[:25] + ".1." + id,
		"kv.d0." + id + "a.1." + id,
		"kv.d0." + id[:25] + "b.1." + id, // spare bits
		"kv.d0." + strings.ToUpper(id) + ".1." + id,
		"kv.d0." + id[:25] + "\n.1." + id,
		"KV.d0." + id + ".1." + id,
		"kv." + strings.Repeat("d", 33) + "." + id + ".1." + id,
		"kv.d0." + strings.Repeat("a", 1<<20),
	} {
		if got, err := ParseKV(s); !errors.Is(err, ErrSubject) {
			t.Errorf("%.80q read as %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"out.r." + id, "out.r." + id + "." + id + ".", "out.*." + id + "." + id, "kv.r." + id + "." + id, "out.r." + id + ".A" + id[1:]} {
		if got, err := ParseOut(s); !errors.Is(err, ErrSubject) {
			t.Errorf("%.80q read as %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"announce.x.d0", "announce.decode.", "announce.decode.*", "announce.decode.d0.d0", "announce..d0"} {
		if _, _, err := ParseAnnounce(s); !errors.Is(err, ErrSubject) {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"credit.p0", "credit.p0.*", "credit.>.d0", "credit.p0.d0.x"} {
		if _, _, err := ParseCredit(s); !errors.Is(err, ErrSubject) {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "a.b", "a b", "*", ">", "ä", "a\x00", strings.Repeat("a", 33)} {
		if err := CheckName(s); !errors.Is(err, ErrSubject) {
			t.Errorf("name %q: %v", s, err)
		}
	}
}

func FuzzSubjects(f *testing.F) {
	f.Add("kv.d0.aaaaaaaaaaaaaaaaaaaaaaaaaa.1.aaaaaaaaaaaaaaaaaaaaaaaaaa")
	f.Add("out.r0.aaaaaaaaaaaaaaaaaaaaaaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaa")
	f.Add("announce.decode.d0")
	f.Add("credit.p0.d0")
	negative.Seeds(f, "testdata/negative", func(what string, data []byte) {
		if strings.HasSuffix(what, " subject") {
			f.Add(string(data))
		}
	})
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := ParseKV(s); err == nil && k.String() != s {
			t.Errorf("%q builds %q", s, k)
		}
		if o, err := ParseOut(s); err == nil && o.String() != s {
			t.Errorf("%q builds %q", s, o)
		}
		if r, n, err := ParseAnnounce(s); err == nil && AnnounceSubject(r, n) != s {
			t.Errorf("%q builds %q", s, AnnounceSubject(r, n))
		}
		if p, d, err := ParseCredit(s); err == nil && CreditSubject(p, d) != s {
			t.Errorf("%q builds %q", s, CreditSubject(p, d))
		}
	})
}
