package plugin

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// timelineWidth is the width of the timeline in characters.
const timelineWidth = 40

// point is a point in time with a name. Nil: it has not been reached.
type point struct {
	name string
	at   *metav1.MicroTime
}

// handoffTimeline draws the last handoff of a singleton.
func handoffTimeline(t *v1.Transition) string {
	words := inWords(string(t.Cause), t.From, t.To, "holder", t.Proof)
	return timeline("Last handoff: "+words+gap(t), []point{{"started", t.Started}, {"terminated", t.Terminated}, {"signalled", t.Signalled}, {"ready", t.Ready}})
}

// timeline draws points to scale. Each line shows a point, with a bar from the time of the line before.
func timeline(title string, points []point) string {
	points = slices.DeleteFunc(points, func(p point) bool { return p.at == nil })
	var b strings.Builder
	fmt.Fprintln(&b, title)
	if len(points) == 0 {
		return b.String()
	}
	first := points[0].at.UTC()
	whole := points[len(points)-1].at.Sub(first)
	before, from := first, 0
	for i, p := range points {
		to := from
		if whole > 0 {
			share := float64(p.at.Sub(first)) / float64(whole)
			to = min(max(from, int(math.Round(share*(timelineWidth-1)))), timelineWidth-1)
		}
		bar := strings.Repeat(" ", from) + "●"
		if to > from {
			bar += strings.Repeat("━", to-from-1) + "●"
		}
		if i == 0 {
			fmt.Fprintf(&b, "  %s  %-10s  %s\n", first.Format("2006-01-02 15:04:05.000"), p.name, bar)
		} else {
			fmt.Fprintf(&b, "  %11s%s  %-10s  %s%s  +%s\n", "", p.at.UTC().Format("15:04:05.000"), p.name,
				bar, strings.Repeat(" ", timelineWidth-1-to), p.at.Sub(before).Round(time.Millisecond))
		}
		before, from = p.at.Time, to
	}
	return b.String()
}

// inWords describes the cause, the pods and the proof of a change of the holder or the writer.
func inWords(cause, from, to, role string, proof v1.Proof) string {
	words := cause
	switch {
	case from != "" && to != "":
		words += fmt.Sprintf(", %s to %s", from, to)
	case from != "":
		words += fmt.Sprintf(", from %s, no new %s yet", from, role)
	case to != "":
		words += ", to " + to
	}
	if proof != "" {
		words += ", proof " + string(proof)
	}
	return words
}

// gap returns the gap of a handoff as text, if it is known.
func gap(t *v1.Transition) string {
	if t.GapMilliseconds == nil {
		return ""
	}
	return fmt.Sprintf(", gap %s", time.Duration(*t.GapMilliseconds)*time.Millisecond)
}
