package main

import (
	"os"
	"path/filepath"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
)

// report writes the page and the picture beside the summary, and the table of the readme if there is one.
func report(summary, readme string) error {
	results, err := figures.Read[figures.Gap](summary)
	if err != nil {
		return err
	}
	directory := filepath.Dir(summary)
	page, err := results.Page()
	if err != nil {
		return err
	}
	picture, err := results.Picture()
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"gap.md": page, "gap.svg": picture} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if readme == "" {
		return nil
	}
	relative, err := filepath.Rel(filepath.Dir(readme), directory)
	if err != nil {
		return err
	}
	table, err := results.Readme(relative)
	if err != nil {
		return err
	}
	return figures.ReplaceIn(readme, table)
}
