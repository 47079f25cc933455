package docs

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// maxWords is the length of the longest sentence.
const maxWords = 30

var (
	// dropped are words that the glossary of reference.md does not have: a standard word of Kubernetes says the same.
	//
	// Some dropped words are also ordinary English, so only their private meanings are dropped. The words again, line,
	// part, word, moment, turn, form and per are allowed elsewhere: "try again", "a line of the log", "part of the
	// chart", "at any moment".
	dropped = regexp.MustCompile(`(?i)\b(strangers?|runners?|left-?overs?|vanish\w*|farewells?|surveys?|hearsay|leisure|` +
		`vouch\w*|untold|vacat\w+|(dis)?arm(s|ed|ing)?|laws?|stor(y|ies)|sights?|legs?|usual|by fact|` +
		`in (the |a )?line for|(its|their|in) turns?|take[sn]? turns?|turns? of (a|the) (singleton|reader?|read)s?|` +
		`words? of (a|the) (watch|person|kubelet|cache)|(his|her|their|its|take|at) words?|` +
		`parts? (that |which )?(a|the) pods? (has|have|plays?)|(its|what) parts?|` +
		`moments? of (a|the) (handoff|singleton|timeline)|(policy|other|both|either) forms?|forms? of polic(y|ies)|` +
		`had better|so that|whatever|whoever|whichever)\b`)
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

func TestParagraphs(t *testing.T) {
	tests := map[string]struct {
		got, want []string
	}{
		"help text": {
			ofString("`cluster runs\netcd.\n\nFlags:\n  -n  number\n`"),
			[]string{" cluster runs etcd.", "", "Flags:", "", "  -n  number", ""},
		},
		"no sentence": {ofString(`"node-1"`), nil},
		"sum of strings": {
			messagesOf(t, "package a\nvar b = \"read \" + c + \": it \" +\n\"failed\"\ntype d struct {\ne int `a: b c`\n}\n"),
			[]string{"read …: it failed"},
		},
		"values of YAML": {
			ofYAML("- name: adopt a pod  # unique\n  description: >-\n    The pod\n    runs.\n  expression: a b\n  messageExpression: \"'pod ' + a + ' runs'\"\n"),
			[]string{"adopt a pod", "The pod runs.", "pod ", " runs"},
		},
		"template": {
			ofTemplate("{{- /* a comment */}}\nRelease {{ .Name }} runs."),
			[]string{" a comment", "", " Release … runs."},
		},
		"comment beside code": {
			ofComments("# of\n# both\n- a # one\n- b # two\n"),
			[]string{" of both", " one", "", " two"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("paragraphs (-want +got):\n%s", diff)
			}
		})
	}
}

func messagesOf(t *testing.T, source string) []string {
	_, messages := ofGo(t, "a.go", source)
	return messages
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
		case strings.HasSuffix(path, ".svg.tmpl"):
		case slices.Contains(withProse, filepath.Ext(path)), slices.Contains([]string{"Makefile", "run"}, entry.Name()):
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// withProse are the extensions of files with pages, comments or messages.
var withProse = []string{".md", ".go", ".yaml", ".yml", ".sh", ".awk", ".tpl", ".tmpl", ".txt", ".lua"}

func proseProblems(t *testing.T, path string) []string {
	t.Helper()
	text := read(t, path)
	switch filepath.Ext(path) {
	case ".md":
		return problemsOf(ofMarkdown(text))
	case ".txt", ".tmpl":
		return problemsOf(ofTemplate(text))
	case ".tpl":
		return problemsOf(slices.Concat(ofTemplate(text), ofYAML(text)))
	case ".yaml", ".yml":
		return problemsOf(slices.Concat(ofComments(text), templateComments(text), ofYAML(text)))
	case ".lua":
		return problemsOf(ofComments(strings.ReplaceAll(text, "--", "#")))
	case ".go":
		if generatedFile.MatchString(text) {
			return nil
		}
		comments, messages := ofGo(t, path, text)
		if strings.HasSuffix(path, "_test.go") {
			// A test expects messages that the product composes of several sentences.
			return append(problemsOf(comments), droppedWords(messages)...)
		}
		return problemsOf(append(comments, messages...))
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
			problems = append(problems, droppedWords([]string{sentence})...)
		}
	}
	return problems
}

// droppedWords returns the dropped words in the texts, at most one of each text.
func droppedWords(texts []string) (problems []string) {
	for _, text := range texts {
		if found := dropped.FindString(codeSpan.ReplaceAllString(text, "``")); found != "" {
			problems = append(problems, fmt.Sprintf("%q: %s", found, text))
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
