package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// maxWords is the length of the longest sentence.
const maxWords = 30

var (
	// dropped are words that the glossary of reference.md does not have: a standard word of Kubernetes says the same.
	dropped = regexp.MustCompile(`(?i)\b(strangers?|runners?|left-?overs?|vanish\w*|farewells?|surveys?|hearsay|leisure|` +
		`vouch\w*|untold|vacat\w+|disarm\w*|had better|so that|whatever|whoever|whichever)\b`)
	// sentenceEnd is the end of a sentence.
	sentenceEnd = regexp.MustCompile(`[.!?]["')*]*(?:\s|$)`)
	// word begins with a letter or a digit. Code in backquotes is one word.
	word = regexp.MustCompile("`[^`]*`|[\\pL\\pN][^\\s]*")
	// linkTarget and tag are what a reader does not see.
	linkTarget = regexp.MustCompile(`\]\([^)]*\)`)
	tag        = regexp.MustCompile(`<[^>]+>`)
	// item is where a new item, heading or quotation begins.
	item = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.|#+|>)\s+`)
	// generatedFile is written by a tool.
	generatedFile = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	// directive is a comment that a tool reads.
	directive = regexp.MustCompile(`^//[a-z]+:|^//nolint|^// ?\+[a-z]`)
)

// Pages, comments and messages have short sentences, in words that the glossary or Kubernetes defines.
func TestProse(t *testing.T) {
	for _, path := range files(t) {
		t.Run(strings.TrimPrefix(path, "../"), func(t *testing.T) {
			for _, problem := range proseProblems(t, path) {
				t.Error(problem)
			}
		})
	}
}

func TestProblemsOf(t *testing.T) {
	long := strings.Repeat("word ", maxWords) + "end."
	tests := map[string]struct {
		paragraphs []string
		want       []string
	}{
		"short":   {[]string{"The pod terminates. The next pod starts."}, nil},
		"long":    {[]string{"First. " + long}, []string{"31 words: " + long}},
		"dropped": {[]string{"A stranger reads."}, []string{`"stranger": A stranger reads.`}},
		"code":    {[]string{"Set `so that` in `a b c`."}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, problemsOf(tc.paragraphs)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// files are those of the tree that have prose.
func files(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata", "kodata"}, entry.Name()):
			return fs.SkipDir
		case entry.Name() == "CODE_OF_CONDUCT.md": // not ours
		case slices.Contains([]string{".md", ".go", ".yaml", ".sh", ".awk"}, filepath.Ext(path)), entry.Name() == "Makefile":
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func proseProblems(t *testing.T, path string) []string {
	t.Helper()
	text := read(t, path)
	switch filepath.Ext(path) {
	case ".md":
		return problemsOf(ofMarkdown(text))
	case ".go":
		if generatedFile.MatchString(text) {
			return nil
		}
		return problemsOf(ofGo(t, path, text))
	default:
		return problemsOf(ofComments(text))
	}
}

// problemsOf says which sentences of the paragraphs are too long, and which words are dropped.
func problemsOf(paragraphs []string) (problems []string) {
	for _, paragraph := range paragraphs {
		for _, sentence := range sentences(paragraph) {
			if n := len(word.FindAllString(sentence, -1)); n > maxWords {
				problems = append(problems, fmt.Sprintf("%d words: %s", n, sentence))
			}
			if found := dropped.FindString(codeSpan.ReplaceAllString(sentence, "``")); found != "" {
				problems = append(problems, fmt.Sprintf("%q: %s", found, sentence))
			}
		}
	}
	return problems
}

var codeSpan = regexp.MustCompile("`[^`]*`")

func sentences(paragraph string) (all []string) {
	for len(paragraph) > 0 {
		end := len(paragraph)
		if at := sentenceEnd.FindStringIndex(paragraph); at != nil {
			end = at[1]
		}
		if sentence := strings.TrimSpace(paragraph[:end]); sentence != "" {
			all = append(all, sentence)
		}
		paragraph = paragraph[end:]
	}
	return all
}

// ofMarkdown returns the paragraphs, items and table cells of a page, without its blocks of code.
func ofMarkdown(page string) (paragraphs []string) {
	fenced, paragraph := false, ""
	flush := func() { paragraphs, paragraph = append(paragraphs, paragraph), "" }
	for line := range strings.Lines(page) {
		line = strings.ReplaceAll(line, "<br>", "|")
		line = tag.ReplaceAllString(linkTarget.ReplaceAllString(strings.TrimRight(line, "\n"), "]"), "")
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(text, "```"):
			fenced = !fenced
			flush()
		case fenced:
		case strings.HasPrefix(text, "|"):
			flush()
			paragraphs = append(paragraphs, strings.Split(text, "|")...)
		case text == "" || item.MatchString(line):
			flush()
			paragraph = item.ReplaceAllString(line, "")
		default:
			paragraph += " " + text
		}
	}
	flush()
	return paragraphs
}

// ofGo returns the comments and the messages of a Go file. A message is a string of several words.
func ofGo(t *testing.T, path, text string) (paragraphs []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Comments {
		var lines []string
		for _, comment := range group.List {
			if !directive.MatchString(comment.Text) {
				lines = append(lines, strings.TrimPrefix(comment.Text, "//"))
			}
		}
		paragraphs = append(paragraphs, ofMarkdown(unindented(lines))...)
	}
	if strings.HasSuffix(path, "_test.go") {
		return paragraphs
	}
	ast.Inspect(file, func(node ast.Node) bool {
		if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING && literal.Value[0] == '"' {
			if message, err := strconv.Unquote(literal.Value); err == nil {
				paragraphs = append(paragraphs, message)
			}
		}
		return true
	})
	return paragraphs
}

// ofComments returns the comments of a file whose comments begin with #.
func ofComments(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		before, comment, found := strings.Cut(strings.TrimRight(line, "\n"), "# ")
		if !found || strings.TrimSpace(before) != "" && !strings.HasSuffix(before, " ") || strings.HasPrefix(comment, "-- @") {
			comment = ""
		}
		lines = append(lines, comment)
	}
	return ofMarkdown(strings.Join(lines, "\n"))
}

// unindented joins the lines of a comment. A line that is indented is code.
func unindented(lines []string) string {
	for i, line := range lines {
		if strings.HasPrefix(line, "\t") {
			lines[i] = ""
		}
		lines[i] = strings.TrimPrefix(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
