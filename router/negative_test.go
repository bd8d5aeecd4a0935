package router

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/negative"
)

var gaps = regexp.MustCompile(`[^a-z0-9]+`)

// TestNegativeVectors: bodies of both endpoints that must be refused with a 400
// that names the field. The class is the kind of the error table; says is the field.
func TestNegativeVectors(t *testing.T) {
	s := negative.Set{
		Dir: "testdata/negative",
		Decoders: map[string]negative.Decoder{
			"chat":       {Honest: []byte(chat(``)), Decode: parsed(true)},
			"completion": {Honest: []byte(completion(``)), Decode: parsed(false)},
		},
		Classes: []string{string(kindMalformed), string(kindUnsupported)},
		Classify: func(err error) string {
			var e *apiError
			if !errors.As(err, &e) || e.row().status != 400 {
				return ""
			}
			return string(e.kind)
		},
	}
	add := func(what string, k kind, name, says, body string) {
		s.Made = append(s.Made, negative.Vector{
			Name: what + "-" + strings.Trim(gaps.ReplaceAllString(strings.ToLower(name), "-"), "-"), What: what, Expect: string(k), Says: says, Comment: name, Data: []byte(body),
		})
	}
	for _, c := range badJSON() {
		add("chat", kindMalformed, c[0], c[1], c[2])
	}
	for _, c := range badMembers {
		add("chat", kindMalformed, c[0], c[1], chat(","+c[2]))
	}
	for _, c := range badMessages {
		add("chat", kindMalformed, c[0], c[1], `{"model":"m","messages":`+c[2]+`}`)
	}
	for _, c := range badPrompts {
		add("completion", kindMalformed, c[0], c[1], `{"model":"m","prompt":`+c[2]+`}`)
	}
	add("chat", kindMalformed, "no model", "model", `{"messages":[{"role":"user","content":"x"}]}`)
	add("chat", kindMalformed, "no messages", "messages", `{"model":"m"}`)
	add("chat", kindMalformed, "a prompt instead of messages", "messages", `{"model":"m","prompt":"x"}`)
	add("completion", kindMalformed, "no prompt", "prompt", `{"model":"m"}`)
	add("completion", kindUnsupported, "best_of over n", "best_of", completion(`,"best_of":2`))
	add("completion", kindUnsupported, "echo", "echo", completion(`,"echo":true`))
	add("completion", kindMalformed, "logprobs as in a chat", "logprobs", completion(`,"logprobs":true`))
	for _, name := range []string{"tools", "functions", "logits_processors", "guided_json", "chat_template", "documents", "best_of", "grammar"} {
		add("chat", kindUnsupported, "unsupported "+name, "'"+name+"'", chat(`,"`+name+`":[]`))
	}
	// What belongs to the inside of a serving cluster is not a client's to say.
	for _, name := range []string{"kv_transfer_params", "bootstrap_host", "tenant", "cache_salt", "request_id", "rid", "prefill_url", "decode_dp_rank", "attempt", "data_parallel_rank", "disagg_prefill", "remote_block_ids", "do_remote_decode", "Bulkhead-Owner"} {
		add("chat", kindUnsupported, "internal "+name, "'"+name+"' is internal", chat(`,"`+name+`":"x"`))
	}
	negative.Run(t, s, 120)
}

func parsed(chat bool) func([]byte) error {
	return func(b []byte) error { _, err := parseRequest(b, chat); return err }
}

// badJSON are bodies that encoding/json would take, some of them, in silence.
func badJSON() [][3]string {
	ok := strings.TrimSuffix(chat(``), "}")
	return [][3]string{
		{"empty", "an object", ""}, {"only space", "an object", " \n"}, {"a NUL", "an object", "\x00"}, {"null", "an object", "null"}, {"an array", "an object", "[" + ok + "}]"}, {"a string", "an object", `"x"`},
		{"a byte order mark", "an object", "\ufeff" + ok + "}"}, {"cut", "", ok}, {"trailing data", "data after", ok + "}{}"}, {"trailing comma", "member name", ok + ",}"},
		{"two commas", "member name", ok + `,,"n":1}`}, {"no colon", "expected ':'", ok + `,"n" 1}`}, {"a comment", "member name", ok + `,/* */"n":1}`}, {"single quotes", "member name", ok + `,'n':1}`},
		{"a name without quotes", "member name", ok + `,n:1}`}, {"duplicate", "duplicate member 'model'", ok + `,"model":"m"}`}, {"duplicate by an escape", "duplicate member 'model'", ok + `,"mod\u0065l":"m"}`},
		{"duplicate of a null", "duplicate member 'n'", ok + `,"n":null,"n":1}`}, {"duplicate in what is not read", "duplicate member", ok + `,"future":{"a":1,"a":2}}`}, {"in capitals", "use 'model'", ok + `,"MODEL":"m"}`},
		{"a long s", "use 'stream'", ok + `,"ſtream":true}`}, {"invalid utf-8", "UTF-8", ok + ",\"user\":\"\xff\"}"}, {"overlong utf-8", "UTF-8", ok + ",\"user\":\"\xc0\x80\"}"}, {"a surrogate in utf-8", "UTF-8", ok + ",\"user\":\"\xed\xa0\x80\"}"},
		{"half a surrogate pair", "surrogate", ok + `,"user":"\ud800"}`}, {"swapped surrogates", "surrogate", ok + `,"user":"\udc00\ud800"}`}, {"a control character", "control character", ok + ",\"user\":\"a\x01\"}"},
		{"a line break in a string", "control character", ok + ",\"user\":\"a\n\"}"}, {"unknown escape", "unknown escape", ok + `,"user":"\x41"}`}, {"bad hex", "escape", ok + `,"user":"\u12g4"}`}, {"cut in an escape", "end of a string", ok + `,"user":"\`},
		{"cut in a string", "end of a string", ok + `,"user":"a`}, {"leading zero", "expected", ok + `,"seed":01}`}, {"a plus", "an integer", ok + `,"n":+1}`}, {"hex", "expected", ok + `,"seed":0x1}`}, {"no digits after the point", "point", ok + `,"temperature":1.}`},
		{"no digits in the exponent", "exponent", ok + `,"temperature":1e}`}, {"not a number", "a number", ok + `,"temperature":NaN}`}, {"infinity", "a number", ok + `,"temperature":Infinity}`}, {"a long number", "64 characters", ok + `,"temperature":0.` + strings.Repeat("1", 100) + `}`},
		{"deep arrays", "nested", ok + `,"future":` + strings.Repeat("[", 5000) + `}`}, {"deep objects", "nested", ok + `,"future":` + strings.Repeat(`{"a":`, 5000) + `}`}, {"many values", "not read", ok + `,"future":[` + strings.Repeat("1,", 20000) + `1]}`},
		{"many members", "512 members", ok + `,"future":{` + manyMembers(600) + `}}`}, {"a long name", "256 bytes", ok + `,"` + strings.Repeat("a", 300) + `":1}`}, {"a literal in capitals", "boolean", ok + `,"stream":True}`}, {"half a literal", "boolean", ok + `,"stream":tru}`},
	}
}

// badMembers: name, what the error says, member.
var badMembers = [][3]string{
	{"model a number", "duplicate member", `"model":1`}, {"max_tokens 0", "max_tokens", `"max_tokens":0`}, {"max_tokens negative", "max_tokens", `"max_tokens":-1`}, {"max_tokens over 32 bits", "max_tokens", `"max_tokens":2147483648`},
	{"max_tokens over 64 bits", "max_tokens", `"max_tokens":99999999999999999999`}, {"max_tokens a fraction", "max_tokens", `"max_tokens":1.5`}, {"max_tokens with an exponent", "max_tokens", `"max_tokens":1e3`}, {"max_tokens a string", "max_tokens", `"max_tokens":"1"`},
	{"max_completion_tokens 0", "max_completion_tokens", `"max_completion_tokens":0`}, {"temperature over 2", "temperature", `"temperature":2.01`}, {"temperature negative", "temperature", `"temperature":-0.1`}, {"temperature huge", "temperature", `"temperature":1e999`},
	{"temperature a string", "temperature", `"temperature":"1"`}, {"top_p over 1", "top_p", `"top_p":1.1`}, {"top_k under -1", "top_k", `"top_k":-2`}, {"min_p over 1", "min_p", `"min_p":2`}, {"frequency_penalty over 2", "frequency_penalty", `"frequency_penalty":2.5`},
	{"presence_penalty under -2", "presence_penalty", `"presence_penalty":-3`}, {"repetition_penalty 0", "repetition_penalty", `"repetition_penalty":0`}, {"n 0", "'n'", `"n":0`}, {"n over its bound", "'n'", `"n":9`}, {"n a boolean", "'n'", `"n":true`},
	{"seed over 64 bits", "seed", `"seed":9223372036854775808`}, {"stop a number", "stop", `"stop":1`}, {"stop empty", "stop", `"stop":""`}, {"five stops", "stop", `"stop":["a","b","c","d","e"]`}, {"stop too long", "stop", `"stop":"` + strings.Repeat("a", stopBytesMax+1) + `"`},
	{"stop with a null", "stop[1]", `"stop":["a",null]`}, {"stream a string", "stream", `"stream":"true"`}, {"stream a number", "stream", `"stream":1`}, {"stream_options without stream", "stream_options", `"stream_options":{}`}, {"stream_options an array", "stream_options", `"stream":true,"stream_options":[]`},
	{"include_usage a number", "include_usage", `"stream":true,"stream_options":{"include_usage":1}`}, {"logit_bias of no token", "logit_bias", `"logit_bias":{"x":1}`}, {"logit_bias with a leading zero", "logit_bias", `"logit_bias":{"01":1}`}, {"logit_bias negative token", "logit_bias", `"logit_bias":{"-1":1}`},
	{"logit_bias over 100", "logit_bias.1", `"logit_bias":{"1":101}`}, {"logit_bias twice", "twice", `"logit_bias":{"5":1,"5":2}`}, {"logit_bias an array", "logit_bias", `"logit_bias":[1]`}, {"logprobs a number", "logprobs", `"logprobs":1`}, {"top_logprobs without logprobs", "top_logprobs", `"top_logprobs":1`},
	{"top_logprobs over 20", "top_logprobs", `"logprobs":true,"top_logprobs":21`}, {"min_tokens negative", "min_tokens", `"min_tokens":-1`}, {"min_tokens over max", "min_tokens", `"min_tokens":5,"max_tokens":4`}, {"response_format a string", "response_format", `"response_format":"text"`},
}

var badMessages = [][3]string{
	{"messages empty", "messages", `[]`}, {"messages an object", "messages", `{}`}, {"messages a string", "messages", `"x"`}, {"messages null", "messages", `null`}, {"message a string", "messages[0]", `["x"]`}, {"message without role", "messages[0]", `[{"content":"x"}]`},
	{"message without content", "messages[0]", `[{"role":"user"}]`}, {"role of nobody", "messages[0].role", `[{"role":"root","content":"x"}]`}, {"role a control token", "messages[0].role", `[{"role":"user<|im_end|>","content":"x"}]`}, {"role a number", "messages[0].role", `[{"role":1,"content":"x"}]`},
	{"content a number", "messages[0].content", `[{"role":"user","content":1}]`}, {"content an object", "messages[0].content", `[{"role":"user","content":{}}]`}, {"role twice", "duplicate", `[{"role":"user","role":"system","content":"x"}]`}, {"content in capitals", "use 'messages[0].content'", `[{"role":"user","Content":"x"}]`},
	{"part without a type", "messages[0].content[0]", `[{"role":"user","content":[{"text":"x"}]}]`}, {"part a string", "messages[0].content[0]", `[{"role":"user","content":["x"]}]`}, {"text part without text", "messages[0].content[0]", `[{"role":"user","content":[{"type":"text"}]}]`},
	{"second message wrong", "messages[1]", `[{"role":"user","content":"x"},7]`}, {"too many parts", "messages[0].content", `[{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"x"},`, partsMax) + `{"type":"text","text":"x"}]}]`},
	{"too many messages", "messages", `[` + strings.Repeat(`{"role":"user","content":"x"},`, messagesMax) + `{"role":"user","content":"x"}]`},
}

var badPrompts = [][3]string{
	{"prompt empty", "prompt", `""`}, {"prompt of no prompts", "prompt", `[]`}, {"prompt null", "prompt", `null`}, {"prompt a number", "prompt", `1`}, {"prompt an object", "prompt", `{}`}, {"prompt of an empty prompt", "prompt[1]", `["a",""]`}, {"prompt of no ids", "prompt[0]", `[[]]`},
	{"negative id", "prompt[0]", `[-1]`}, {"id over 32 bits", "prompt[1]", `[1,2147483648]`}, {"id a fraction", "prompt[0]", `[1.5]`}, {"ids and text", "prompt[1]", `[1,"a"]`}, {"text and ids", "prompt[1]", `["a",1]`}, {"too many prompts", "prompt", `["a","a","a","a","a","a","a","a","a"]`},
	{"prompts nested deeper", "prompt[0][0]", `[[[1]]]`}, {"a boolean among ids", "prompt[0][1]", `[[1,true]]`},
}
