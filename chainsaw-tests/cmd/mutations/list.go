package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// mutation is one entry of a list: an edit of one file, and the tests that should fail with it.
type mutation struct {
	// Name says what is broken. It is unique in all lists.
	Name string `json:"name"`
	// File is the path of the changed file from the root of the tree.
	File string `json:"file"`
	// Old is the text that New replaces. It occurs exactly once in the file.
	Old string `json:"old"`
	New string `json:"new"`
	// Tests run in this order until one fails.
	Tests []tests `json:"tests"`
	// Survives says why no test can notice the mutation. Empty: a test fails.
	Survives string `json:"survives,omitempty"`

	// area is the name of the list's file, without .yaml.
	area string
}

// tests are some tests of one package.
type tests struct {
	// Package is the path of the package from the root of the tree, as ./controller/handoff.
	Package string `json:"package"`
	// Run selects tests as go test -run does.
	Run string `json:"run"`
}

// readLists returns the mutations of every list that the pattern matches below root. It checks every entry, and its
// error names all that are wrong.
func readLists(root, pattern string) ([]mutation, error) {
	files, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no list matches %s: run this in the root of the repository", filepath.Join(root, pattern))
	}
	var all []mutation
	var wrong []error
	lists := map[string]string{} // by name of a mutation
	check := checker{root: root, texts: map[string]string{}, functions: map[string][]string{}}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var entries []mutation
		if err := yaml.UnmarshalStrict(data, &entries); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", file, err))
			continue
		}
		for i, m := range entries {
			m.area = strings.TrimSuffix(filepath.Base(file), ".yaml")
			entry := fmt.Sprintf("%q", m.Name)
			if m.Name == "" {
				entry = fmt.Sprintf("entry %d", i+1)
				wrong = append(wrong, fmt.Errorf("%s: %s: name is missing", file, entry))
			} else if other, ok := lists[m.Name]; ok {
				wrong = append(wrong, fmt.Errorf("%s: %s: %s has an entry of the same name: rename one of them", file, entry, other))
			}
			lists[m.Name] = file
			for _, err := range check.mutation(m) {
				wrong = append(wrong, fmt.Errorf("%s: %s: %w", file, entry, err))
			}
			all = append(all, m)
		}
	}
	return all, errors.Join(wrong...)
}

// checker checks entries against the tree. It reads each file once.
type checker struct {
	root string
	// texts are the files, by path.
	texts map[string]string
	// functions are the test functions, by package.
	functions map[string][]string
}

// mutation returns what is wrong with an entry.
func (c checker) mutation(m mutation) (wrong []error) {
	switch {
	case m.File == "":
		wrong = append(wrong, errors.New("file is missing"))
	case !filepath.IsLocal(m.File):
		wrong = append(wrong, fmt.Errorf("file %s is not a path from the root of the tree", m.File))
	case m.Old == "":
		wrong = append(wrong, errors.New("old is missing"))
	case m.Old == m.New:
		wrong = append(wrong, errors.New("old and new are the same"))
	default:
		text, err := c.text(m.File)
		if err != nil {
			wrong = append(wrong, err)
		} else if n := strings.Count(text, m.Old); n != 1 {
			wrong = append(wrong, fmt.Errorf("old occurs %d times in %s, want exactly once: adapt it to the file: %q", n, m.File, m.Old))
		}
	}
	if len(m.Tests) == 0 {
		wrong = append(wrong, errors.New("tests is missing: name the tests that should fail"))
	}
	for _, t := range m.Tests {
		if err := c.tests(t); err != nil {
			wrong = append(wrong, err)
		}
	}
	return wrong
}

// tests returns an error unless the package has a test of that name.
func (c checker) tests(t tests) error {
	if !strings.HasPrefix(t.Package, "./") || !filepath.IsLocal(t.Package) {
		return fmt.Errorf("package %q is not a path from the root of the tree: use for example ./controller/handoff", t.Package)
	}
	if t.Run == "" {
		return fmt.Errorf("run of package %s is missing: name the tests that should fail", t.Package)
	}
	for part := range strings.SplitSeq(t.Run, "/") {
		if _, err := regexp.Compile(part); err != nil {
			return fmt.Errorf("run %q of package %s: %w", t.Run, t.Package, err)
		}
	}
	functions, err := c.functionsOf(t.Package)
	if err != nil {
		return err
	}
	for _, function := range functions {
		if selects(t.Run, function) {
			return nil
		}
	}
	return fmt.Errorf("run %q matches no test function of package %s", t.Run, t.Package)
}

// selects reports whether go test -run with the pattern runs the test, or a parent of the test.
func selects(pattern, test string) bool {
	parts, names := strings.Split(pattern, "/"), strings.Split(test, "/")
	for i := range min(len(parts), len(names)) {
		if ok, err := regexp.MatchString(parts[i], names[i]); err != nil || !ok {
			return false
		}
	}
	return true
}

func (c checker) text(file string) (string, error) {
	if text, ok := c.texts[file]; ok {
		return text, nil
	}
	data, err := os.ReadFile(filepath.Join(c.root, file))
	if err != nil {
		return "", err
	}
	c.texts[file] = string(data)
	return c.texts[file], nil
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)

func (c checker) functionsOf(pkg string) ([]string, error) {
	if functions, ok := c.functions[pkg]; ok {
		return functions, nil
	}
	files, err := filepath.Glob(filepath.Join(c.root, pkg, "*_test.go"))
	if err != nil {
		return nil, err
	}
	var functions []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, match := range testFunction.FindAllSubmatch(data, -1) {
			functions = append(functions, string(match[1]))
		}
	}
	c.functions[pkg] = functions
	return functions, nil
}
