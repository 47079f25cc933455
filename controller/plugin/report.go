package plugin

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

func (c commands) reportCommand() *cobra.Command {
	all, file := false, ""
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write a support bundle: an archive of what a bug report needs",
		Long: `report writes a .tar.gz with the StatefulSingletons, StatefulSetLocks and StatefulClusters of the namespace, what explain
says about each, their pods, workloads, Leases, volumes and events, the logs of the controller and of the sidecars, and
the nodes, policies, guards and webhooks that affect the pods.

The archive has no Secrets, and no logs of your applications. These are replaced by REDACTED: values of environment
variables, arguments of commands and hooks, HTTP headers and queries of probes, attributes of volumes, termination
messages, and annotations of other projects. Names, labels, images and messages of events stay, so read the archive
before you share it.

What you have no permission to read is listed in errors.txt in the archive, and the command continues.`,
		Example: `  # Write stfs-report-<time>.tar.gz to the current directory
  kubectl stfs report -n prod

  # Include all namespaces that have a StatefulSingleton, a StatefulSetLock or a StatefulCluster
  kubectl stfs report -A -o report.tar.gz

  # List the files without keeping the archive
  kubectl stfs report -n prod -o - | tar -tz`,
		Args: takes(0, 0),
		RunE: c.in(func(ctx context.Context, in *cluster, _ []string) error {
			return c.report(ctx, in, all, file)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "include all namespaces with objects of the project")
	cmd.Flags().StringVarP(&file, "output", "o", "", "the file to create, or - for standard output (default stfs-report-<time>.tar.gz)")
	return cmd
}

func (c commands) report(ctx context.Context, in *cluster, all bool, file string) error {
	if _, err := in.serverVersion(); unreached(err) || apierrors.IsUnauthorized(err) {
		return err // nothing could be read
	}
	root := "stfs-report-" + c.clock.Now().UTC().Format("20060102T150405Z")
	if file == "-" {
		return c.writeReport(ctx, in, all, root, c.Out)
	}
	file = cmp.Or(file, root+".tar.gz")
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("file %s exists. Set another file with -o", file)
	} else if err != nil {
		return fmt.Errorf("create the archive: %w", err)
	}
	if err := errors.Join(c.writeReport(ctx, in, all, root, out), out.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	fmt.Fprintf(c.ErrOut, "Wrote %s. Read it before you share it: names, labels and messages can tell more than you want\n", file)
	return nil
}

func (c commands) writeReport(ctx context.Context, in *cluster, all bool, root string, out io.Writer) error {
	zipped := gzip.NewWriter(out)
	r := &report{c: c, in: in, archive: tar.NewWriter(zipped), root: root}
	r.collect(ctx, all)
	r.addText("errors.txt", strings.Join(r.unread, ""))
	if len(r.unread) > 0 {
		r.progress("%d reads failed. They are listed in errors.txt", len(r.unread))
	}
	if err := errors.Join(ctx.Err(), r.failed, r.archive.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// report is an archive that is being written. Each file is written as soon as its objects were read, so files have the same order in
// each report.
type report struct {
	c       commands
	in      *cluster
	archive *tar.Writer
	// root is the directory of all files.
	root string
	// unread are lines that say what could not be read, and why.
	unread []string
	// failed is the first error of the archive.
	failed error
}

func (r *report) progress(format string, args ...any) {
	_ = printers.WriteEscaped(r.c.ErrOut, fmt.Sprintf(format+"\n", args...)) // the archive matters more
}

// missed records what could not be read.
func (r *report) missed(what string, err error) {
	r.unread = append(r.unread, fmt.Sprintf("%s: %v\n", what, err))
}

// add adds a file.
func (r *report) add(path string, data []byte) {
	if r.failed != nil {
		return
	}
	r.failed = r.archive.WriteHeader(&tar.Header{
		Typeflag: tar.TypeReg, Name: r.root + "/" + path, Mode: 0o600, Size: int64(len(data)), ModTime: r.c.clock.Now().UTC(),
	})
	if r.failed == nil {
		_, r.failed = r.archive.Write(data)
	}
}

// addText adds a file without control characters, because the cluster may have sent parts of it.
func (r *report) addText(path, text string) {
	r.add(path, []byte(printers.EscapeTerminal(text)))
}

// addObjects adds a file with the objects, unless there are none. own is true for objects that the chart or the controller created.
func (r *report) addObjects(path string, own bool, objects []unstructured.Unstructured) {
	var documents [][]byte
	for i := range objects {
		redact(&objects[i], own)
		document, err := yaml.Marshal(objects[i].Object)
		if err != nil {
			r.missed("encode "+objects[i].GetKind()+" "+fullName(&objects[i]), err)
			continue
		}
		documents = append(documents, document)
	}
	if len(documents) > 0 {
		r.add(path, bytes.Join(documents, []byte("---\n")))
	}
}
