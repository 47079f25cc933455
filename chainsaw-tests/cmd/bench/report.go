package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/report"
)

// report writes the table of the subject's page, and its picture.
func (s *subject) report(folder string) error {
	var results results
	file := filepath.Join(folder, s.name)
	if err := report.ReadJSON(file+".json", &results); err != nil {
		return err
	}
	names := 2 + min(len(s.conditions), 1)
	return report.Write(file, results.Text(), names, s.table(results.Rows), s.picture(results.Rows))
}

func (s *subject) table(rows []row) [][]string {
	all := [][]string{slices.Concat([]string{"cause", "condition", "system", "n"}, s.metrics, []string{"overlaps"})}
	for _, r := range rows {
		cells := []string{r.Cause, r.Condition, r.System, fmt.Sprint(r.N)}
		if failed := len(r.Failed); failed > 0 {
			cells[3] += fmt.Sprintf(", %d failed", failed)
		}
		for _, metric := range s.metrics {
			figures, _ := r.figures(metric)
			cells = append(cells, figures.String())
		}
		all = append(all, append(cells, fmt.Sprint(r.Overlaps)))
	}
	if len(s.conditions) == 0 {
		for i := range all {
			all[i] = slices.Delete(all[i], 1, 2)
		}
	}
	return all
}

// picture has a group of bars for each cause and condition, and a bar for each system.
func (s *subject) picture(rows []row) *report.Bars {
	bars := &report.Bars{Title: "Median " + s.drawn, Unit: "seconds"}
	for _, r := range rows {
		figures, isTime := r.figures(s.drawn)
		value := float64(figures.P50)
		if isTime {
			value /= 1000
		} else {
			bars.Unit = "requests"
		}
		bars.Add(strings.TrimSpace(r.Cause+"\n"+strings.TrimPrefix(r.Condition, "cached")), r.System, value)
	}
	return bars
}

// figures returns the figures of the metric: times in milliseconds, or numbers of requests.
func (r *row) figures(metric string) (figures report.Distribution, isTime bool) {
	if counts, ok := r.Counts[metric]; ok {
		return counts, false
	}
	return r.MS[metric], true
}
