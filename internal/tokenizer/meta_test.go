package tokenizer

import "fmt"

// meta is metadata in memory; a value of the wrong type is an error, as in a file.
type meta map[string]any

func look[T any](m meta, key string) (v T, ok bool, err error) {
	raw, ok := m[key]
	if !ok {
		return v, false, nil
	}
	v, same := raw.(T)
	if !same {
		return v, true, fmt.Errorf("has another type")
	}
	return v, true, nil
}

func (m meta) Str(key string) (string, bool, error)    { return look[string](m, key) }
func (m meta) Strs(key string) ([]string, bool, error) { return look[[]string](m, key) }
func (m meta) Ints(key string) ([]int32, bool, error)  { return look[[]int32](m, key) }
func (m meta) Uint(key string) (uint64, bool, error)   { return look[uint64](m, key) }
func (m meta) Bool(key string) (bool, bool, error)     { return look[bool](m, key) }

func (m meta) with(key string, value any) meta {
	out := meta{}
	for k, v := range m {
		out[k] = v
	}
	if value == nil {
		delete(out, key)
	} else {
		out[key] = value
	}
	return out
}
