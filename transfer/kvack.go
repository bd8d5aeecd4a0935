package transfer

// KVAckError reads a KV stream's answer to a publish, with the Status header
// that came with it: nil if the stream has stored the message.
func KVAckError(status string, data []byte) error { return pubAckError(status, data) }
