package apply

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names and errors that users and webhooks choose make a text long. The API server rejects a status with a message of more than
// 32 KiB as a whole, and an event with a note of more than 1 KiB.
const (
	// MaxText is the maximum length of a message and of a text in the log, in bytes. A status has the same message several
	// times, and every reader of the object gets all of them.
	MaxText = 4 << 10
	// MaxNote is the maximum length of the note of an event, in bytes.
	MaxNote = 1 << 10
)

// CutText returns the text, or as much as fits into a message or into the log.
func CutText(text string) string { return cut(text, MaxText) }

// CutNote returns the text, or as much as fits into the note of an event.
func CutNote(text string) string { return cut(text, MaxNote) }

// CutMessages cuts the messages of a status.
func CutMessages(message *string, conditions []metav1.Condition) {
	*message = CutText(*message)
	for i := range conditions {
		conditions[i].Message = CutText(conditions[i].Message)
	}
}

// OneLine joins the lines of a message, for example of joined errors or of Kyverno's rejections.
func OneLine(message string) string {
	var lines []string
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

// ErrorText returns the text of an error for a message, with what a person can do about an error that is a conflict each time.
func ErrorText(err error) string {
	text := OneLine(err.Error())
	if !IsOvertaken(err) {
		return text
	}
	return text + ". The answer is 409 (Conflict) each time, because another client keeps writing the object or a webhook rejects the write. " +
		"List the webhooks, and have them accept the write: kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations"
}

// cut returns a text of at most limit bytes. It cuts the middle out and says so, because the beginning of a message says what
// failed, and the end has the command that helps. The parentheses make a shell reject a command that was cut.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	gap := fmt.Sprintf(" … (%d bytes in all) … ", len(text))
	kept := limit - len(gap)
	begin, end := text[:kept-kept/2], text[len(text)-kept/2:]
	return strings.ToValidUTF8(begin, "") + gap + strings.ToValidUTF8(end, "")
}
