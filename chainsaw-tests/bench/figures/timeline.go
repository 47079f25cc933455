package figures

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Where things are in the picture, in its own units.
const (
	left     = 180.0
	right    = 880.0
	laneHigh = 20.0
	laneGap  = 4.0
	trackGap = 34.0
)

// shown are the systems of the picture, the conditions of a rollout that it shows one
// under the other.
var (
	ours            = []string{"wrapper", "barrier"}
	shownConditions = []string{"cached", "pull"}
)

// headings are the systems' names for who has not read what they mean.
var headings = map[string]string{
	"wrapper": "StatefulSingleton", "barrier": "StatefulSingleton", Recreate: "Recreate",
}

// picture is what the template draws.
type picture struct {
	Height float64
	Panels []panel
	// Legend is where it is.
	Legend float64
}

// panel has two handoffs under each other, on one axis.
type panel struct {
	Title  string
	Y      float64
	Tracks []track
	Ticks  []tick
	// AxisY is where the axis is, and Top where its lines begin.
	AxisY, Top float64
}

type track struct {
	Name, Detail, Gap string
	Y                 float64
	GapX, GapWidth    float64
	// LabelX is where the gap's label begins or, where Before is set, ends.
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

// Picture draws a handoff of ours and one of Recreate under each other, each the one
// whose gap is closest to the median of all of its kind.
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
		return "", errors.New("there is no rollout of both ours and Recreate to draw")
	}
	p.Legend, p.Height = y-10, y+30
	return render("timeline.svg.tmpl", p)
}

// rollout is the first of the systems that was measured.
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

// typical is the sample whose gap is closest to the median.
func (r *Row) typical() Sample {
	away := func(s Sample) int64 { return max(s.GapMS-r.GapMS.P50, r.GapMS.P50-s.GapMS) }
	return slices.MinFunc(r.Samples, func(a, b Sample) int { return cmp.Compare(away(a), away(b)) })
}

// scale maps milliseconds since the cause to the picture.
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

// tickStep is the round number that gives between four and ten ticks.
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

// Entries are the legend: what the classes of bars mean.
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
