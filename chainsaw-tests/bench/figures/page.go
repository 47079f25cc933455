package figures

import (
	"bytes"
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

//go:embed *.tmpl
var files embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"triple": func(d Distribution) string { return fmt.Sprintf("%d | %d | %d", d.P50, d.P95, d.Max) },
	"ratio":  Ratio,
	"sorted": func(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) },
}).ParseFS(files, "*.tmpl"))

// Ratio formats a RatioToRecreate. The text is empty if there is no ratio.
func Ratio(r float64) string {
	if r == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", r)
}

// Page renders the page of all figures as Markdown.
func (r *Results) Page() (string, error) { return render("page.md.tmpl", r) }

// Summary renders the table of the README as Markdown. The directory contains the page and the picture.
func (r *Results) Summary(directory string) (string, error) {
	return render("summary.md.tmpl", struct {
		*Results
		Directory string
	}{r, directory})
}

func render(name string, data any) (string, error) {
	var text bytes.Buffer
	if err := templates.ExecuteTemplate(&text, name, data); err != nil {
		return "", err
	}
	return text.String(), nil
}

// Cell returns a cell of the gap table in the README: median and maximum.
func (r *Results) Cell(system, cause, condition string) string {
	row := r.Row(system, cause, condition)
	if row == nil || row.N == 0 {
		return "–"
	}
	cell := fmt.Sprintf("%d / %d", row.GapMS.P50, row.GapMS.Max)
	if row.Overlaps > 0 {
		cell += fmt.Sprintf(", two ran %d×", row.Overlaps)
	}
	return cell
}

// Pause returns a cell of the downtime table in the README: median and maximum.
func (r *Results) Pause(system, cause, condition string) string {
	row := r.Row(system, cause, condition)
	if row == nil || row.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%d / %d", row.DowntimeMS.P50, row.DowntimeMS.Max)
}

// Measured returns true if a row has the cause and the condition.
func (r *Results) Measured(cause, condition string) bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Cause == cause && row.Condition == condition })
}

// Handoffs returns the range of the numbers of handoffs in the rows, as text.
func (r *Results) Handoffs() string {
	if len(r.Rows) == 0 {
		return "0"
	}
	least, most := r.Rows[0].N, r.Rows[0].N
	for _, row := range r.Rows {
		least, most = min(least, row.N), max(most, row.N)
	}
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

const (
	begins = "<!-- bench -->"
	ends   = "<!-- /bench -->"
)

// Between returns the text between the markers.
func Between(text string) (string, error) {
	_, after, begun := strings.Cut(text, begins+"\n")
	between, _, ended := strings.Cut(after, ends)
	if !begun || !ended {
		return "", fmt.Errorf("the lines %s and %s are missing", begins, ends)
	}
	return between, nil
}

// Replace replaces the text between the markers.
func Replace(text, words string) (string, error) {
	old, err := Between(text)
	if err != nil {
		return "", err
	}
	return strings.Replace(text, begins+"\n"+old+ends, begins+"\n"+words+ends, 1), nil
}

// Failures lists the errors of failed handoffs.
func (r *Results) Failures() []string {
	var all []string
	for _, row := range r.Rows {
		for _, why := range row.Failed {
			all = append(all, fmt.Sprintf("%s, %s, %s: %s", row.System, row.Cause, row.Condition, why))
		}
	}
	return all
}
