package figures

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Positions and sizes in the picture, in units of its view box.
const (
	left     = 180.0
	right    = 880.0
	laneHigh = 20.0
	laneGap  = 4.0
	trackGap = 34.0
)

// ours are the systems of which the picture shows the first that was measured. shownConditions are the conditions of
// the rollouts in the picture.
var (
	ours            = []string{"wrapper", "barrier"}
	shownConditions = []string{"cached", "pull"}
)

// headings are the names of the systems in the picture.
var headings = map[string]string{
	"wrapper": "StatefulSingleton", "barrier": "StatefulSingleton", Recreate: "Recreate",
}

// picture is the data of the template.
type picture struct {
	Height float64
	Panels []panel
	// Legend is the vertical position of the legend.
	Legend float64
}

// panel shows two handoffs on one axis.
type panel struct {
	Title  string
	Y      float64
	Tracks []track
	Ticks  []tick
	// AxisY is the position of the axis. Top is the upper end of its grid lines.
	AxisY, Top float64
}

type track struct {
	Name, Detail, Gap string
	Y                 float64
	GapX, GapWidth    float64
	// LabelX is the start of the gap's label, or the end of the label if Before is set.
	LabelX float64
	Before bool
	High   float64
	Bars   []bar
}

type bar struct {
	X, Y, Width, High float64
	Class, Label      string
}

type tick struct {
	X     float64
	Label string
}

// Picture draws one rollout by StatefulSingleton and one rollout by Recreate for each shown condition. Each is the
// sample with the gap closest to the median.
func (r *Results) Picture() (string, error) {
	p := picture{}
	y := 30.0
	for _, condition := range shownConditions {
		our, other := r.rollout(ours, condition), r.rollout([]string{Recreate}, condition)
		if our == nil || other == nil {
			continue
		}
		panel := drawPanel(y, r.about(condition), our, other)
		p.Panels = append(p.Panels, panel)
		y = panel.AxisY + 60
	}
	if len(p.Panels) == 0 {
		return "", errors.New("draw the timeline: no condition has rollouts of both StatefulSingleton and Recreate")
	}
	p.Legend, p.Height = y-10, y+30
	return render("timeline.svg.tmpl", p)
}

// rollout returns the row of the first system that was measured, or nil.
func (r *Results) rollout(systems []string, condition string) *Row {
	for _, system := range systems {
		if row := r.Row(system, "rollout", condition); row != nil && row.N > 0 {
			return row
		}
	}
	return nil
}

func (r *Results) about(condition string) string {
	i := slices.IndexFunc(r.Conditions, func(t Term) bool { return t.Name == condition })
	if i < 0 {
		return condition
	}
	return r.Conditions[i].About
}

// typical returns the sample with the gap closest to the median.
func (r *Row) typical() Sample {
	away := func(s Sample) int64 { return max(s.GapMS-r.GapMS.P50, r.GapMS.P50-s.GapMS) }
	return slices.MinFunc(r.Samples, func(a, b Sample) int { return cmp.Compare(away(a), away(b)) })
}

// scale maps milliseconds since the cause to positions in the picture.
type scale struct{ from, to int64 }

func (s scale) x(ms int64) float64 {
	return left + (right-left)*float64(min(max(ms, s.from), s.to)-s.from)/float64(s.to-s.from)
}

func drawPanel(y float64, about string, rows ...*Row) panel {
	p := panel{Title: "A rollout: " + about, Y: y, Top: y + 12}
	var last int64
	for _, row := range rows {
		last = max(last, row.typical().ReadyMS)
	}
	s := scale{-last / 12, last + last/12}
	y += 40
	for _, row := range rows {
		t := drawTrack(s, y, row)
		p.Tracks = append(p.Tracks, t)
		y += t.High + trackGap
	}
	p.AxisY = y - trackGap + 12
	step := tickStep(s.to - s.from)
	for ms := int64(0); ms <= s.to; ms += step {
		p.Ticks = append(p.Ticks, tick{s.x(ms), fmt.Sprint(ms)})
	}
	return p
}

// tickStep returns a round number that results in four to ten ticks.
func tickStep(span int64) int64 {
	for step := int64(1); ; step *= 10 {
		for _, times := range []int64{1, 2, 5} {
			if span/(step*times) < 10 {
				return step * times
			}
		}
	}
}

func drawTrack(s scale, y float64, row *Row) track {
	sample := row.typical()
	at := sample.Moments
	t := track{
		Name: headings[row.System], Y: y, High: 2*laneHigh + laneGap,
		Detail: fmt.Sprintf("Ready after %d ms", sample.ReadyMS), Gap: fmt.Sprintf("nobody runs: %d ms", sample.GapMS),
		GapX: s.x(at[Exit]), GapWidth: s.x(at[Start]) - s.x(at[Exit]),
	}
	t.LabelX = t.GapX
	if t.GapX > (left+2*right)/3 {
		t.LabelX, t.Before = t.GapX+t.GapWidth, true
	}
	add := func(lane int, from, to int64, class, label string) {
		b := bar{s.x(from), y + float64(lane)*(laneHigh+laneGap), s.x(to) - s.x(from), laneHigh, class, label}
		if b.Width < 10+7*float64(len(label)) {
			b.Label = ""
		}
		if b.Width > 0 {
			t.Bars = append(t.Bars, b)
		}
	}
	add(0, s.from, at[Asked], "running", "old pod runs")
	add(0, at[Asked], at[Exit], "stopping", "stops")
	ended := at[Start]
	if warm, held := at[Warm]; held && warm < at[Start] {
		add(1, at[Created], warm, "warming", "new pod warms up")
		add(1, warm, ended, "held", "held, warm")
	} else {
		add(1, at[Created], ended, "warming", "new pod comes up")
	}
	add(1, at[Start], at[Ready], "starting", "runs")
	add(1, at[Ready], s.to, "ready", "Ready")
	return t
}

// Entries returns the legend of the bars.
func (picture) Entries() []bar {
	var entries []bar
	x := 20.0
	for _, e := range [][2]string{
		{"running", "old runs"}, {"stopping", "old stops"}, {"warming", "new comes up"}, {"held", "new is warm, held"},
		{"starting", "new runs"}, {"ready", "new is Ready"}, {"gap", "nobody runs"},
	} {
		entries = append(entries, bar{X: x, Class: e[0], Label: e[1]})
		x += 34 + 6.8*float64(len(e[1]))
	}
	return entries
}
