package cluster_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"bulkhead/internal/sample"
	"bulkhead/internal/tenant"
	"bulkhead/internal/tokenizer"
	"bulkhead/router"
)

// recorder is a compromised bus: it keeps every byte of every message.
type recorder struct {
	conn *nats.Conn
	mu   sync.Mutex
	all  bytes.Buffer   // guarded by mu
	n    map[string]int // guarded by mu: messages by the first word of the subject
}

func record(t *testing.T, conn *nats.Conn) *recorder {
	t.Helper()
	r := &recorder{conn: conn, n: map[string]int{}}
	sub, err := conn.Subscribe(">", func(m *nats.Msg) {
		r.mu.Lock()
		defer r.mu.Unlock()
		kind, _, _ := strings.Cut(m.Subject, ".")
		r.n[kind]++
		fmt.Fprintf(&r.all, "\n%s %s %v ", m.Subject, m.Reply, m.Header)
		r.all.Write(m.Data)
	})
	must(t, err)
	must(t, sub.SetPendingLimits(-1, -1))
	must(t, conn.Flush())
	return r
}

// count is how many messages there were of a kind.
func (r *recorder) count(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[kind]
}

// find returns which of the forms of each secret are in what was recorded.
func (r *recorder) find(secrets map[string][]byte) (found []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, secret := range secrets {
		for form, needle := range forms(secret) {
			if bytes.Contains(r.all.Bytes(), needle) {
				found = append(found, name+" ("+form+")")
			}
		}
	}
	slices.Sort(found)
	return found
}

// forms are the ways in which bytes may be written. In base64 they may begin at any of three places
// of a group; what is certain is cut out of the middle.
func forms(b []byte) map[string][]byte {
	out := map[string][]byte{"raw": b, "hex": []byte(hex.EncodeToString(b)), "HEX": []byte(strings.ToUpper(hex.EncodeToString(b)))}
	for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
		for shift := range 3 {
			text := enc.EncodeToString(append(make([]byte, shift), b...))
			first := (shift*8 + 5) / 6 // characters that hold bits of what stands before
			out[fmt.Sprintf("%s at %d", name, shift)] = []byte(text[first : len(text)-2])
		}
	}
	return out
}

// idForms are token ids as msgpack and as arrays write them.
func idForms(name string, ids []int32, to map[string][]byte) {
	var pack, packWide, le, be []byte
	for _, id := range ids {
		switch {
		case id < 1<<7:
			pack = append(pack, byte(id))
		case id < 1<<8:
			pack = append(pack, 0xcc, byte(id))
		default:
			pack = binary.BigEndian.AppendUint16(append(pack, 0xcd), uint16(id))
		}
		packWide = binary.BigEndian.AppendUint32(append(packWide, 0xd2), uint32(id))
		le = binary.LittleEndian.AppendUint32(le, uint32(id))
		be = binary.BigEndian.AppendUint32(be, uint32(id))
	}
	to[name+" ids, msgpack"], to[name+" ids, wide msgpack"], to[name+" ids, little endian"], to[name+" ids, big endian"] = pack, packWide, le, be
	to[name+" ids, JSON"] = []byte(strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]"))
}

// TestBusReader: goal: whoever reads the whole bus learns no prompt, no output, no tenant and no
// key. Method: a client with every right of the account records a run of several requests of both
// endpoints; every secret of the run is looked for in every form. The control: the same secrets,
// published in clear afterwards, are all found.
func TestBusReader(t *testing.T) {
	const (
		north, south       = "tenant-of-the-north-1911", "tenant-of-the-south-1912"
		northKey, southKey = "sk-north-5f1c9e0a7b3d4826", "sk-south-8a2e6c4f0b9d1357"
		northText          = "The zebra crossed the quartz river at 7731 Marlow Street, she said."
		southText          = "Patient 4410 of ward nine was given the violet pills on a Tuesday night."
	)
	reg := tenant.NewRegistry()
	for name, key := range map[string]string{north: northKey, south: southKey} {
		_, err := reg.Add(name, key, tenant.Limits{})
		must(t, err)
	}
	s := newSite(t, siteConfig{router: func(c *router.Config) { c.Tenants = reg }})
	r := record(t, newForger(t, s.w.keys).everything(s.w.nats.ClientURL()))

	secrets := map[string][]byte{
		"tenant north": []byte(north), "tenant south": []byte(south), "key north": []byte(northKey), "key south": []byte(southKey),
		"prompt north": []byte(northText), "prompt south": []byte(southText),
		"member prompt": []byte("\xa6prompt\xdc"), "member reply_key": []byte("reply_key"), "member LogitBias": []byte("LogitBias"), "member Logprob": []byte("Logprob"),
	}
	for name, key := range map[string]string{"north": northKey, "south": southKey} {
		hash := sha256.Sum256([]byte(key))
		secrets["hash of key "+name] = hash[:]
	}
	for name, j := range s.joined {
		secrets["seed of "+name] = j.Node.Private().Seed()
	}
	tok, _ := edge()
	chatIDs, err := tok.RenderChat([]tokenizer.Message{{Role: "user", Content: northText}}, true)
	must(t, err)
	idForms("prompt north", chatIDs[:20], secrets)
	idForms("prompt south", tok.Encode(southText)[:20], secrets)

	long := body{"model": "tiny", "max_tokens": 40, "temperature": 0, "ignore_eos": true}
	for i, stream := range []bool{false, true} {
		a := s.mustAsk(northKey, chats, long.with(body{"messages": []body{{"role": "user", "content": northText}}, "stream": stream}))
		b := s.mustAsk(southKey, completions, long.with(body{"prompt": southText, "stream": stream, "logprobs": 2}))
		for name, got := range map[string]*response{"north": a, "south": b} {
			if got.status != 200 || len(got.choices) != 1 || len(got.choices[0].text) < 16 {
				t.Fatalf("%s: status %d, %+v", name, got.status, got.choices)
			}
			secrets[fmt.Sprintf("output %s %d", name, i)] = []byte(got.choices[0].text)[:16]
		}
	}
	prompt := tokens(150)
	if got := s.mustAsk(northKey, completions, exact(prompt, 20)); got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	idForms("prompt of ids", prompt[70:90], secrets)
	answer := whole(t, prompt, sample.Params{MaxNew: 20, Logprobs: true, TopLogprobs: 1, IgnoreEOS: true})
	var ids []int32
	for _, token := range answer {
		ids = append(ids, token.ID)
	}
	idForms("output", ids, secrets)
	for i, plain := range kvOf(t, prompt, sample.Params{MaxNew: 20}).frames {
		secrets[fmt.Sprintf("KV of frame %d", i)] = plain[len(plain)/2:][:32]
	}

	// The last message of the run has been heard when one that follows it has.
	must(t, r.conn.Flush())
	s.eventually("a record of everything", func() bool { return r.count("kv") >= 10 && r.count("$JS") > 0 })
	for _, kind := range []string{"job", "kv", "out", "announce", "_INBOX", "$JS"} {
		if r.count(kind) == 0 {
			t.Errorf("no message of %s was recorded: the reader does not see everything", kind)
		}
	}
	r.mu.Lock()
	t.Logf("recorded %d bytes, %v; %d secrets", r.all.Len(), r.n, len(secrets))
	r.mu.Unlock()
	for _, found := range r.find(secrets) {
		t.Errorf("on the bus in clear: %s", found)
	}

	// The control: what is in clear is found.
	before := r.count("out")
	for name, secret := range secrets {
		for _, form := range forms(secret) {
			must(t, s.joined["p1"].Conn.Publish("out.r1.control", append([]byte(name+": "), form...)))
		}
	}
	want := 0
	for _, secret := range secrets {
		want += len(forms(secret))
	}
	s.eventually("the control", func() bool { return r.count("out") >= before+want })
	if found := r.find(secrets); len(found) != want {
		t.Errorf("the reader finds %d of %d secrets that were published in clear", len(found), want)
	}
}
