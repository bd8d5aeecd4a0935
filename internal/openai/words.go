package openai

import (
	"math/rand/v2"
	"strings"
)

// words are ordinary English words, mostly one token each in the vocabularies of models of English.
var words = strings.Fields(`time year people way day man thing woman life child world school state family student
	group country problem hand part place case week company system program question work government number night point
	home water room mother area money story fact month lot right study book eye job word business issue side kind head
	house service friend father power hour game line end member law car city community name`)

// Filler is a text of about so many tokens, where a word is perWord tokens: [Abilities.TokensPerWord].
func Filler(rng *rand.Rand, tokens int, perWord float64) string {
	if perWord < 0.25 {
		perWord = 1
	}
	out := make([]string, max(1, int(float64(tokens)/perWord+0.5)))
	for i := range out {
		out[i] = words[rng.IntN(len(words))]
	}
	return strings.Join(out, " ")
}
