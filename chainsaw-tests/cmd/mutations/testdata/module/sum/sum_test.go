package sum

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain fails before any test runs, as where an API server does not start.
func TestMain(m *testing.M) {
	if data, err := os.ReadFile("../greeting.txt"); err != nil || strings.TrimSpace(string(data)) == "" {
		fmt.Fprintln(os.Stderr, "greeting.txt is empty")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestAdd(t *testing.T) {
	t.Run("small", func(t *testing.T) {
		if Add(1, 2) != 3 {
			t.Error("1 + 2 is not 3")
		}
	})
	t.Run("large", func(t *testing.T) {
		if Add(1000, 2000) != 3000 {
			t.Error("1000 + 2000 is not 3000")
		}
	})
}

func TestSub(t *testing.T) {
	Sub(2, 1)
}

func TestClamp(t *testing.T) {
	if Clamp(2, 1) != 1 || Clamp(1, 1) != 1 {
		t.Error("above the limit")
	}
}

func TestEnds(t *testing.T) {
	for n := 0; n < 2; n = Add(n, 1) {
	}
}

func TestGreeting(t *testing.T) {
	data, err := os.ReadFile("../greeting.txt")
	if err != nil || strings.TrimSpace(string(data)) != "hello" {
		t.Errorf("greeting.txt: %q, %v", data, err)
	}
}

// TestLeavesAProcess ends without its child, as a panic does.
func TestLeavesAProcess(t *testing.T) {
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if Add(1, 1) != 2 {
		panic("1 + 1 is not 2")
	}
	_ = child.Process.Kill()
	_ = child.Wait()
}

func TestSkipped(t *testing.T) {
	t.Skip("what it needs is missing")
}

func TestFails(t *testing.T) {
	t.Error("always")
}
