package tokenizer

import (
	"fmt"
	"strings"
	"time"

	"github.com/ardanlabs/jinja"
)

// strftimeNow is Hugging Face's strftime_now: datetime.now().strftime(format).
func (r *run) strftimeNow(a args, _ kwargs) (jinja.Value, error) {
	f := arg(a, 0)
	if !f.IsString() || len(f.AsString()) > 256 {
		return jinja.Undefined(), &RenderError{}
	}
	s, err := strftime(r.t.now(), f.AsString())
	return jinja.NewString(s), err
}

// strftime formats as Python does in the C locale. A directive it does not know is an
// error: a wrong date in a prompt would go unnoticed.
func strftime(t time.Time, format string) (string, error) {
	layouts := map[byte]string{
		'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'B': "January", 'b': "Jan",
		'A': "Monday", 'a': "Mon", 'p': "PM", 'I': "03", 'y': "06", 'j': "002", 'F': "2006-01-02", 'T': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		if i++; i == len(format) {
			return "", &RenderError{}
		}
		if format[i] == '%' {
			b.WriteByte('%')
		} else if layout, ok := layouts[format[i]]; ok {
			b.WriteString(t.Format(layout))
		} else if format[i] == '-' && i+1 < len(format) && format[i+1] == 'd' { // glibc: no padding
			fmt.Fprint(&b, t.Day())
			i++
		} else {
			return "", &RenderError{}
		}
	}
	return b.String(), nil
}
