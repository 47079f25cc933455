package gate

import "io"

// lossyLines is the number of lines that wait for a slow reader of the log.
const lossyLines = 64

// NewLossyWriter returns a writer that never blocks. It drops lines while the other writer blocks, and writes the others
// a moment later.
func NewLossyWriter(w io.Writer) io.Writer {
	lines := make(chan []byte, lossyLines)
	go func() {
		for line := range lines {
			_, _ = w.Write(line)
		}
	}()
	return lossyWriter(lines)
}

type lossyWriter chan []byte

// Write never fails, because the caller cannot do anything about it.
func (w lossyWriter) Write(line []byte) (int, error) {
	select {
	case w <- append([]byte(nil), line...):
	default:
	}
	return len(line), nil
}
