package apply

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCut(t *testing.T) {
	tests := map[string]struct {
		text string
		// wantWhole is true if the text fits.
		wantWhole bool
	}{
		"empty":               {"", true},
		"fits exactly":        {strings.Repeat("x", MaxNote), true},
		"one byte too long":   {strings.Repeat("x", MaxNote+1), false},
		"much too long":       {"begin " + strings.Repeat("pod ", 100_000) + " end", false},
		"two-byte characters": {strings.Repeat("ü", MaxNote), false},
		"three-byte, shifted": {"x" + strings.Repeat("…", MaxNote), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := CutNote(tc.text)
			if whole := got == tc.text; whole != tc.wantWhole || len(got) > MaxNote || !utf8.ValidString(got) {
				t.Fatalf("%d bytes, valid UTF-8 %v, the whole text %v, want at most %d bytes of valid UTF-8 and the whole text %v",
					len(got), utf8.ValidString(got), whole, MaxNote, tc.wantWhole)
			}
			if tc.wantWhole {
				return
			}
			begin, end, isCut := strings.Cut(got, " … (")
			_, end, _ = strings.Cut(end, ") … ")
			if !isCut || !strings.HasPrefix(tc.text, begin) || !strings.HasSuffix(tc.text, end) || len(begin) < MaxNote/3 || len(end) < MaxNote/3 {
				t.Errorf("%q, want the beginning and the end of the text", got)
			}
		})
	}
}
