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
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || c.dir != tt.wantDir {
				t.Errorf("directory %q, error %v, want %q", c.dir, err, tt.wantDir)
			}
		})
	}
}

func TestParseNode(t *testing.T) {
	c := testCluster(t)
	tests := map[string]struct {
		want    int
		wantErr string
	}{
		"2":     {want: 2},
		"node1": {want: 1},
		"3":     {wantErr: "it has [1 2]"},
		"two":   {wantErr: `no node "two"`},
		"":      {wantErr: "no node"},
	}
	for arg, tt := range tests {
		t.Run(arg, func(t *testing.T) {
			got, err := c.parseNode(arg)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("error %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("node %d, error %v, want %d", got, err, tt.want)
			}
		})
	}
}

func TestCurrentClusterIsNeverChanged(t *testing.T) {
	t.Setenv("CLUSTER", "current")
	for _, command := range []string{"down", "load x.tar", "node kill 1", "node heal 1", "node partition 1"} {
		t.Run(command, func(t *testing.T) {
			root := newCommand()
			root.SetArgs(strings.Fields(command))
			err := root.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), "CLUSTER=current: `cluster") {
				t.Errorf("error %v, want a refusal", err)
			}
		})
	}
}

func TestClusterVariable(t *testing.T) {
	t.Setenv("CLUSTER", "other")
	if _, err := chosenCluster(); err == nil || !strings.Contains(err.Error(), "write CLUSTER=current") {
		t.Errorf("error %v", err)
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
	if err := unused(list, []string{"registry.local/app:2", "sha256:aaa"}); err != nil {
		t.Errorf("an image that no container uses: %v", err)
	}
	if err := unused(list, []string{"sha256:bbb", "registry.local/app:1"}); err == nil || !strings.Contains(err.Error(), "container 4f5a") {
		t.Errorf("an image that a container uses: %v, want its name", err)
	}
}

func TestSameImage(t *testing.T) {
	const list = `REF TYPE DIGEST SIZE PLATFORMS LABELS
registry.local/app:1 application/vnd.docker.distribution.manifest.v2+json sha256:aaa 300.0 MiB linux/amd64 io.cri-containerd.image=managed
registry.local/app@sha256:aaa application/vnd.docker.distribution.manifest.v2+json sha256:aaa 300.0 MiB linux/amd64 -
registry.local/pause:1 application/vnd.docker.distribution.manifest.v2+json sha256:bbb 1.0 MiB linux/amd64 -
sha256:ccc application/vnd.docker.distribution.manifest.v2+json sha256:aaa 300.0 MiB linux/amd64 -
`
	tests := map[string]struct {
		image string
		want  []string
	}{
		"there":     {"registry.local/app:1", []string{"registry.local/app:1", "registry.local/app@sha256:aaa", "sha256:ccc"}},
		"not there": {"registry.local/app:2", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, sameImage(list, tc.image)); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
}
