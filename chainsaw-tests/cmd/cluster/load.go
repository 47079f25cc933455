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

// load imports an image archive on every running node, and keeps it for nodes that start again.
func (c cluster) load(ctx context.Context, archive string) error {
	if _, err := c.runningPID(controlMachine); err != nil {
		return err
	}
	tags, err := archiveTags(archive)
	if err != nil {
		return err
	}
	kept := filepath.Join(c.images(), archiveName(tags[0]))
	if err := copyFile(kept, archive); err != nil {
		return fmt.Errorf("keep %s for nodes that start again: %w", archive, err)
	}
	return step("load "+strings.Join(tags, ", "), func() error {
		for _, n := range nodes {
			pid := c.machinePIDs()[nodeName(n)]
			if pid == 0 {
				continue // it imports the kept archives when it starts
			}
			if _, err := c.ctr(ctx, pid, "images", "import", "--local", kept); err != nil {
				return fmt.Errorf("import %s on %s: %w", kept, nodeName(n), err)
			}
		}
		return nil
	})
}

// ctr runs ctr on a node, because containerd's socket is in the node's own /run. pid is the first process of the node.
func (c cluster) ctr(ctx context.Context, pid int, args ...string) (string, error) {
	return output(insideMachine(ctx, pid, append([]string{filepath.Join(c.tools().bin(), "ctr")}, ctrArgs(args...)...)...))
}

// unload removes an image with all its names from a node. It fails if a container uses the image, because the image
// could not be pulled again.
func (c cluster) unload(ctx context.Context, image, node string) error {
	pid, err := c.runningPID(node)
	if err != nil {
		return err
	}
	list, err := c.ctr(ctx, pid, "images", "list")
	if err != nil {
		return err
	}
	names := sameImage(list, image)
	if len(names) == 0 {
		return nil
	}
	err = poll(ctx, time.Minute, 100*time.Millisecond, func() error {
		containers, err := c.ctr(ctx, pid, "containers", "list")
		if err == nil {
			err = unused(containers, names)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("take %s from %s: %w", image, node, err)
	}
	_, err = c.ctr(ctx, pid, append([]string{"images", "remove", "--sync"}, names...)...)
	return err
}

// unused returns an error if the output of `ctr containers list` has a container of an image with one of the names.
func unused(list string, names []string) error {
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 1 && slices.Contains(names, fields[1]) {
			return fmt.Errorf("container %s uses it, and is not removed within a minute", fields[0])
		}
	}
	return nil
}

// sameImage returns all names in the output of `ctr images list` that have the same image.
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

// archiveTags reads the image names from an archive that `docker save`, ko or package image wrote.
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

// archiveName returns one file name for each tag. An image that is loaded again therefore replaces the old one.
func archiveName(tag string) string {
	return strings.NewReplacer("/", "_", ":", "_").Replace(tag) + ".tar"
}

// copyFile replaces a file atomically with a copy.
func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	return writeFrom(to, source)
}
