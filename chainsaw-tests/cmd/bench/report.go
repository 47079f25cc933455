package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/figures"
)

// report makes page and picture beside the file of the results, and the table of the
// readme, if one is named.
func report(file, readme string) error {
	results, err := figures.Read(file)
	if err != nil {
		return err
	}
	directory := filepath.Dir(file)
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
	return writeTable(results, directory, readme)
}

func writeTable(results *figures.Results, directory, readme string) error {
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	relative, err := filepath.Rel(filepath.Dir(readme), directory)
	if err != nil {
		return err
	}
	table, err := results.Summary(relative)
	if err != nil {
		return err
	}
	replaced, err := figures.Replace(string(text), table)
	if err != nil {
		return fmt.Errorf("write the table into %s: %w", readme, err)
	}
	return os.WriteFile(readme, []byte(replaced), 0o644)
}
