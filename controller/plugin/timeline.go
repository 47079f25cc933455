package plugin

import (
	"fmt"
	"math"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// timelineWidth is the width of the timeline in characters.
const timelineWidth = 40

// timeline draws a handoff to scale. Each line shows a point in time, with a bar from the time of the line before.
func timeline(t *v1.Transition) string {
	type point struct {
		name string
		at   time.Time
	}
	var points []point
	add := func(name string, at *metav1.MicroTime) {
		if at != nil {
			points = append(points, point{name, at.UTC()})
		}
	}
	add("started", t.Started)
	add("terminated", t.Terminated)
	add("signalled", t.Signalled)
	add("ready", t.Ready)

	var b strings.Builder
	fmt.Fprintf(&b, "Last handoff: %s%s\n", inWords(t), gap(t))
	if len(points) == 0 {
		return b.String()
	}
	first := points[0].at
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
			fmt.Fprintf(&b, "  %11s%s  %-10s  %s%s  +%s\n", "", p.at.Format("15:04:05.000"), p.name,
				bar, strings.Repeat(" ", timelineWidth-1-to), p.at.Sub(before).Round(time.Millisecond))
		}
		before, from = p.at, to
	}
	return b.String()
}

// inWords describes the pods, the cause and the proof of a handoff.
func inWords(t *v1.Transition) string {
	words := string(t.Cause)
	switch {
	case t.From != "" && t.To != "":
		words += fmt.Sprintf(", %s to %s", t.From, t.To)
	case t.From != "":
		words += fmt.Sprintf(", from %s, no new holder yet", t.From)
	case t.To != "":
		words += ", to " + t.To
	}
	if t.Proof != "" {
		words += ", proof " + string(t.Proof)
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
