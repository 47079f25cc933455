package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// load gives an image archive to every node that runs, and keeps it for those that start later.
func (c cluster) load(ctx context.Context, archive string) error {
	if err := c.requireControl(); err != nil {
		return err
	}
	tags, err := archiveTags(archive)
	if err != nil {
		return err
	}
	kept := filepath.Join(c.images(), archiveName(tags[0]))
	if err := copyFile(kept, archive); err != nil {
		return fmt.Errorf("keep %s for nodes to come: %w", archive, err)
	}
	nodes, err := c.nodes()
	if err != nil {
		return err
	}
	return step("load "+strings.Join(tags, ", "), func() error {
		for _, n := range nodes {
			if err := c.importInto(ctx, n, kept); err != nil {
				return err
			}
		}
		return nil
	})
}

// importInto leaves out a node that does not run: it imports what is kept when it starts.
func (c cluster) importInto(ctx context.Context, n int, archive string) error {
	pid, err := c.machinePID(nodeName(n))
	if err != nil || pid == 0 {
		return err
	}
	ctr := filepath.Join(c.tools().bin(), "ctr")
	if _, err := output(insideMachine(ctx, pid, append([]string{ctr}, importArgs(archive)...)...)); err != nil {
		return fmt.Errorf("import %s on %s: %w", archive, nodeName(n), err)
	}
	return nil
}

// unload takes an image from a node, under all the names that it has there, once no container uses it: what one uses
// stays, and would not be pulled again. It reads the tables that ctr prints. containerd's socket is in the machine's
// own /run, in which ctr runs, and a client in this process would not find the socket.
func (c cluster) unload(ctx context.Context, image string, n int) error {
	pid, err := c.machinePID(nodeName(n))
	if err != nil {
		return err
	}
	if pid == 0 {
		return fmt.Errorf("%s does not run: run `cluster node heal %d`", nodeName(n), n)
	}
	ctr := func(args ...string) (string, error) {
		argv := []string{filepath.Join(c.tools().bin(), "ctr"), "--address", containerdSocket, "--namespace", "k8s.io"}
		return output(insideMachine(ctx, pid, append(argv, args...)...))
	}
	list, err := ctr("images", "list")
	if err != nil {
		return err
	}
	names := sameImage(list, image)
	if len(names) == 0 {
		return nil
	}
	err = poll(ctx, time.Minute, 100*time.Millisecond, func() error {
		containers, err := ctr("containers", "list")
		if err == nil {
			err = unused(containers, names)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("take %s from %s: %w", image, nodeName(n), err)
	}
	_, err = ctr(append([]string{"images", "remove", "--sync"}, names...)...)
	return err
}

// unused wants that, of what `ctr containers list` prints, no container is of an image of these names.
func unused(list string, names []string) error {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 1 && slices.Contains(names, fields[1]) {
			return fmt.Errorf("container %s uses it, and is not removed within a minute", fields[0])
		}
	}
	return nil
}

// sameImage finds, in what `ctr images list` prints, all names of the image that has this one.
func sameImage(list, image string) (names []string) {
	digests := map[string]string{}
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 2 {
			digests[fields[0]] = fields[2]
		}
	}
	for name, digest := range digests {
		if digest == digests[image] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// archiveTags reads the image names in an archive as `docker save`, ko and package image write it.
func archiveTags(archive string) ([]string, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not an image archive as `docker save` writes it: %w", archive, err)
	}
	var tags []string
	for _, image := range manifest {
		tags = append(tags, image.RepoTags...)
	}
	if len(tags) == 0 {
		return nil, fmt.Errorf("%s names no image: a pod could not ask for it; save it with its tag", archive)
	}
	return tags, nil
}

// archiveName is one file name for each tag, so an image that is loaded again replaces the old one.
func archiveName(tag string) string {
	return strings.NewReplacer("/", "_", ":", "_").Replace(tag) + ".tar"
}

// copyFile copies a file whole or not at all.
func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	return writeFrom(to, source)
}
