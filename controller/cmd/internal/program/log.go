package program

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/statefulsingleton/statefulsingleton/controller/internal/apply"
)

// shortCore cuts long texts of log lines. The error of a webhook can be as long as a request, and each retry logs it.
type shortCore struct{ zapcore.Core }

// With returns a core that also logs the fields.
func (s shortCore) With(fields []zapcore.Field) zapcore.Core {
	return shortCore{s.Core.With(shorten(fields))}
}

// Check adds the core to the entry if it logs the level of the entry.
func (s shortCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !s.Enabled(entry.Level) {
		return checked
	}
	return checked.AddCore(entry, s)
}

// Write logs an entry.
func (s shortCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	entry.Message = apply.CutText(entry.Message)
	return s.Core.Write(entry, shorten(fields))
}

// shorten returns the fields with texts and errors that are not too long.
func shorten(fields []zapcore.Field) []zapcore.Field {
	short := make([]zapcore.Field, len(fields))
	for i, field := range fields {
		text := field.String
		if err, isError := field.Interface.(error); isError && field.Type == zapcore.ErrorType {
			text = err.Error()
		}
		if len(text) > apply.MaxText {
			field = zap.String(field.Key, apply.CutText(text))
		}
		short[i] = field
	}
	return short
}
