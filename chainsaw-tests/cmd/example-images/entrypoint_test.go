package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stubs are the programs that the entrypoint runs.
var stubs = map[string]string{
	"initdb":   "#!/bin/sh\necho \"initdb for $(cat)\"\necho 17 >\"$PGDATA/PG_VERSION\"\n[ -z \"$STOP\" ] || kill -s \"$STOP\" $PPID\n",
	"postgres": "#!/bin/sh\necho \"postgres $*\"\n",
	"id":       "#!/bin/sh\necho ${FAKE_UID:-999}\n",
	"chown":    "#!/bin/sh\n",
	"gosu":     "#!/bin/sh\necho \"as $1\"\nshift\nFAKE_UID= exec sh \"$@\"\n",
}

func TestEntrypoint(t *testing.T) {
	const made = "initdb for secret\n"
	tests := map[string]struct {
		starts   [][]string // arguments of consecutive starts on the same volume
		password string
		uid      string // empty means another user than root
		stop     string // signal during the first start, while it makes the database
		want     string
		wantErr  string
	}{
		"the first start makes the database": {starts: [][]string{{"postgres"}}, password: "secret", want: made + "postgres \n"},
		"the second finds it":                {starts: [][]string{{"postgres"}, {"postgres"}}, password: "secret", want: made + "postgres \npostgres \n"},
		"options are the server's":           {starts: [][]string{{"-c", "work_mem=8MB"}}, password: "secret", want: made + "postgres -c work_mem=8MB\n"},
		"any other command":                  {starts: [][]string{{"echo", "hello"}}, want: "hello\n"},
		"root":                               {starts: [][]string{{"postgres"}}, password: "secret", uid: "0", want: "as postgres\n" + made + "postgres \n"},
		"root, any other command":            {starts: [][]string{{"echo", "hello"}}, uid: "0", want: "hello\n"},
		"stopped while it makes it":          {starts: [][]string{{"postgres"}, {"postgres"}}, password: "secret", stop: "INT", want: made + "postgres \n"},
		"terminated while it makes it":       {starts: [][]string{{"postgres"}, {"postgres"}}, password: "secret", stop: "TERM", want: made + "postgres \n"},
		"no password":                        {starts: [][]string{{"postgres"}}, wantErr: "POSTGRES_PASSWORD is not set"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for program, text := range stubs {
				if err := writeText(filepath.Join(dir, "bin", program), text); err != nil {
					t.Fatal(err)
				}
			}
			data := filepath.Join(dir, "volume/pgdata")
			var out, problems strings.Builder
			var err error
			for _, args := range tc.starts {
				cmd := exec.Command("sh", append([]string{"docker-entrypoint.sh"}, args...)...)
				cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "PGDATA=" + data, "POSTGRES_PASSWORD=" + tc.password, "FAKE_UID=" + tc.uid, "STOP=" + tc.stop}
				cmd.Stdout, cmd.Stderr = &out, &problems
				err = cmd.Run()
			}
			if (err != nil) != (tc.wantErr != "") || !strings.Contains(problems.String(), tc.wantErr) {
				t.Errorf("error %v, %q, want %q", err, problems.String(), tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			for file, want := range map[string]string{"pg_hba.conf": "host all all all scram-sha-256\n", "postgresql.conf": "listen_addresses = '*'\n"} {
				if got, err := os.ReadFile(filepath.Join(data, file)); strings.Contains(tc.want, made) && string(got) != want {
					t.Errorf("%s contains %q (%v), want %q", file, got, err, want)
				}
			}
			if info, err := os.Stat(data); err == nil && info.Mode().Perm() != 0o700 {
				t.Errorf("the data directory has mode %v, and the server refuses what others may read", info.Mode())
			}
		})
	}
}
