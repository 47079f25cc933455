package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOpenCluster(t *testing.T) {
	tests := map[string]struct {
		name    string
		state   string
		wantDir string
		wantErr string
	}{
		"plain":                         {name: "demo", state: "/state", wantDir: "/state/statefulsingleton/demo"},
		"a name that leads elsewhere":   {name: "../demo", state: "/state", wantErr: "lower case letters"},
		"no name":                       {name: "", state: "/state", wantErr: "lower case letters"},
		"too long a name":               {name: strings.Repeat("a", 33), state: "/state", wantErr: "at most 32"},
		"state where nodes have theirs": {name: "demo", state: "/var/lib/x", wantErr: "set XDG_STATE_HOME to another"},
		"state beside where they do":    {name: "demo", state: "/var/library", wantDir: "/var/library/statefulsingleton/demo"},
		"relative state":                {name: "demo", state: "state", wantErr: "not absolute"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", tt.state)
			c, err := openCluster(tt.name)
			wantError(t, err, tt.wantErr)
			if c.dir != tt.wantDir {
				t.Errorf("directory %q, want %q", c.dir, tt.wantDir)
			}
		})
	}
}

func TestParseNode(t *testing.T) {
	c := testCluster(t)
	for arg, want := range map[string]int{"2": 2, "node1": 1, "3": 0, "two": 0, "": 0} {
		if got, err := c.parseNode(arg); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, error %v; want %d", arg, got, err, want)
		}
	}
	for arg, want := range map[string]string{"": "", "control": "control", "2": "node2"} {
		got, err := c.parseMachine(arg)
		if wantError(t, err, ""); got != want {
			t.Errorf("%q: machine %q, want %q", arg, got, want)
		}
	}
	_, err := c.parseMachine("3")
	wantError(t, err, `it has [1 2]; the control plane is "control"`)
}

func TestCurrentClusterIsNeverChanged(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir()) // a command that runs finds no cluster
	for _, command := range []string{
		"down", "load x.tar", "unload x --on 1", "node kill 1", "node heal 1", "node partition 1", "process kill x", "apiserver cut 1",
	} {
		for choice, want := range map[string]string{"current": "CLUSTER=current: `cluster", "other": "write CLUSTER=current"} {
			t.Setenv("CLUSTER", choice)
			root := newCommand()
			root.SetArgs(strings.Fields(command))
			wantError(t, root.ExecuteContext(t.Context()), want)
		}
	}
}

// An image that is loaded again with the same tag replaces the old one. An image with another tag does not.
func TestArchiveName(t *testing.T) {
	got := []string{archiveName("registry.local/a/b:1"), archiveName("registry.local/a/b:2")}
	if diff := cmp.Diff([]string{"registry.local_a_b_1.tar", "registry.local_a_b_2.tar"}, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

func TestUnused(t *testing.T) {
	const list = `CONTAINER    IMAGE                   RUNTIME
4f5a         registry.local/app:1    io.containerd.runc.v2
9b1c         registry.local/pause:1  io.containerd.runc.v2
`
	wantError(t, unused(list, []string{"registry.local/app:2", "sha256:aaa"}), "")
	wantError(t, unused(list, []string{"sha256:bbb", "registry.local/app:1"}), "container 4f5a")
}

func TestSameImage(t *testing.T) {
	const list = `REF TYPE DIGEST SIZE PLATFORMS LABELS
registry.local/app:1 application/vnd.docker.distribution.manifest.v2+json sha256:aaa 300.0 MiB linux/amd64 io.cri-containerd.image=managed
registry.local/app@sha256:aaa application/vnd.docker.distribution.manifest.v2+json sha256:aaa 300.0 MiB linux/amd64 -
registry.local/pause:1 application/vnd.docker.distribution.manifest.v2+json sha256:bbb 1.0 MiB linux/amd64 -
sha256:ccc application/vnd.docker.distribution.manifest.v2+json sha256:aaa 300.0 MiB linux/amd64 -
`
	for image, want := range map[string][]string{
		"registry.local/app:1": {"registry.local/app:1", "registry.local/app@sha256:aaa", "sha256:ccc"},
		"registry.local/app:2": nil,
	} {
		if diff := cmp.Diff(want, sameImage(list, image)); diff != "" {
			t.Errorf("names of %s (-want +got):\n%s", image, diff)
		}
	}
}
