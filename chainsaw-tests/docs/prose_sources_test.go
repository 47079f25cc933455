package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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

// ofGo returns the comments and the strings of a Go file. Strings without a blank have no sentence.
func ofGo(t *testing.T, path, text string) (comments, messages []string) {
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
		comments = append(comments, ofMarkdown(unindented(lines))...)
	}
	if filepath.Base(path) == "prose_test.go" { // has the dropped words, and sentences that are too long
		return comments, nil
	}
	seen := map[ast.Node]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.Field:
			seen[node.Tag] = true
		case *ast.BinaryExpr:
			if !seen[node] && node.Op == token.ADD {
				messages = append(messages, ofSum(node, seen))
			}
		case *ast.BasicLit:
			if !seen[node] && node.Kind == token.STRING {
				messages = append(messages, ofString(node.Value)...)
			}
		}
		return true
	})
	return comments, messages
}

// ofSum returns the sentence of a sum of strings in double quotes, and marks its operands as seen. A value that is
// inserted is an ellipsis.
func ofSum(expr ast.Expr, seen map[ast.Node]bool) string {
	switch node := expr.(type) {
	case *ast.BinaryExpr:
		seen[node] = true
		return ofSum(node.X, seen) + ofSum(node.Y, seen)
	case *ast.BasicLit:
		if text, err := strconv.Unquote(node.Value); err == nil && node.Value[0] == '"' {
			seen[node] = true
			return text
		}
	}
	return "…"
}

// ofString returns the paragraphs of a Go string literal. In a string in backquotes, an indented line or a line with
// columns is a paragraph of its own, as in the examples and flags of a help text.
func ofString(literal string) (paragraphs []string) {
	text, err := strconv.Unquote(literal)
	if err != nil || !strings.Contains(text, " ") {
		return nil
	}
	if literal[0] == '"' {
		return []string{text}
	}
	paragraph := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.TrimSpace(line) == "":
			paragraphs, paragraph = append(paragraphs, paragraph), ""
		case aside.MatchString(line):
			paragraphs, paragraph = append(paragraphs, paragraph, line), ""
		default:
			paragraph += " " + line
		}
	}
	return append(paragraphs, paragraph)
}

// aside matches lines that do not continue a sentence: code, data, and lines of a list or a table.
var aside = regexp.MustCompile(`^\s|\S\s{2,}\S|^[-*#{}\[|<]|^\S+:|[{};,\]]$`)

// ofTemplate returns the comments of a template and its text, in which each action is a word.
func ofTemplate(text string) []string {
	withoutComments := templateComment.ReplaceAllString(text, "")
	return slices.Concat(templateComments(text), ofMarkdown(templateAction.ReplaceAllString(withoutComments, "…")))
}

var (
	templateAction  = regexp.MustCompile(`(?s)\{\{.*?\}\}`)
	templateComment = regexp.MustCompile(`(?s)\{\{-?\s*/\*(.*?)\*/\s*-?\}\}`)
)

// templateComments returns the paragraphs of a template's comments.
func templateComments(text string) (paragraphs []string) {
	for _, comment := range templateComment.FindAllStringSubmatch(text, -1) {
		paragraphs = append(paragraphs, ofMarkdown(comment[1])...)
	}
	return paragraphs
}

var (
	// spoken matches a key of YAML whose value people read, and the value.
	spoken = regexp.MustCompile(`^(\s*(?:- )?)(name|message|expression|messageExpression|description|summary|survives|about):\s+(.*)$`)
	// quoted matches a text in a CEL expression.
	quoted = regexp.MustCompile(`'([^']*)'|"([^"]*)"`)
	// blockScalar is the beginning of a value in the next lines.
	blockScalar = regexp.MustCompile(`^[>|][-+]?$`)
)

// ofYAML returns the values that people read, also of YAML in a template: texts, and the quoted texts of expressions.
func ofYAML(text string) (paragraphs []string) {
	lines := strings.Split(templateAction.ReplaceAllString(text, "…"), "\n")
	for i := 0; i < len(lines); i++ {
		found := spoken.FindStringSubmatch(lines[i])
		if found == nil {
			continue
		}
		value, _, _ := strings.Cut(found[3], " #")
		if blockScalar.MatchString(strings.TrimSpace(value)) {
			value = ""
		}
		for ; i+1 < len(lines) && strings.HasPrefix(lines[i+1], strings.Repeat(" ", len(found[1])+1)); i++ {
			value += " " + strings.TrimSpace(lines[i+1])
		}
		if value = strings.TrimSpace(value); strings.HasPrefix(value, `"`) {
			value = strings.Trim(value, `"`)
		}
		if !strings.HasSuffix(strings.ToLower(found[2]), "expression") {
			paragraphs = append(paragraphs, strings.Trim(value, "'"))
			continue
		}
		for _, part := range quoted.FindAllStringSubmatch(value, -1) {
			paragraphs = append(paragraphs, part[1]+part[2])
		}
	}
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
		if strings.TrimSpace(before) != "" { // a comment beside code is a paragraph of its own
			comment = "\n" + comment + "\n"
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
