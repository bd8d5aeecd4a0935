package tokenizer

// runeToByte is GPT-2's byte-level alphabet, reversed (openai/gpt-2, encoder.py,
// bytes_to_unicode): the 188 bytes that print stand for themselves as code points, the
// other 68 for U+0100 onwards in order, so that a vocabulary file never holds a space or
// a control character. -1: not in the alphabet.
var runeToByte = byteLevelAlphabet()

func byteLevelAlphabet() (to [256 + 68]int16) {
	for i := range to {
		to[i] = -1
	}
	next := 256
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			to[b] = int16(b)
		} else {
			to[next] = int16(b)
			next++
		}
	}
	return to
}

// bytesOf turns a token's text into the bytes it stands for. A text with a character
// outside the alphabet stands for its own UTF-8, as in Hugging Face's decoder.
func bytesOf(text string) string {
	out := make([]byte, 0, len(text))
	for _, r := range text {
		if int(r) >= len(runeToByte) || runeToByte[r] < 0 {
			return text
		}
		out = append(out, byte(runeToByte[r]))
	}
	return string(out)
}
