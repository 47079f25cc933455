package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

const (
	// kubernetesVariable is the environment variable with the version of Kubernetes, for example v1.34.4.
	kubernetesVariable = "KUBERNETES"
	// kubernetesModule is the name of the module with Kubernetes, and the directory of its default version. A directory
	// of another version has the minor version as a suffix, for example kubernetes-1.34.
	kubernetesModule = "kubernetes"
	kubernetesMain   = "k8s.io/kubernetes"
)

// kubernetesRelease is a version of Kubernetes that a checkout can build.
type kubernetesRelease struct {
	version string // for example v1.34.4
	dir     string // directory of the module in chainsaw-tests/tools
}

// kubernetesReleases returns the releases that chainsaw-tests/tools has, the oldest first.
func kubernetesReleases(toolsDir string) ([]kubernetesRelease, error) {
	files, err := filepath.Glob(filepath.Join(toolsDir, kubernetesModule+"*", "go.mod"))
	if err != nil {
		return nil, err
	}
	var releases []kubernetesRelease
	for _, file := range files {
		version, err := requiredVersion(file, kubernetesMain)
		if err != nil {
			return nil, err
		}
		releases = append(releases, kubernetesRelease{version: version, dir: filepath.Base(filepath.Dir(file))})
	}
	slices.SortFunc(releases, func(a, b kubernetesRelease) int { return semver.Compare(a.version, b.version) })
	return releases, nil
}

// requiredVersion returns the version of a module that a go.mod requires.
func requiredVersion(file, module string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	parsed, err := modfile.Parse(file, content, nil)
	if err != nil {
		return "", err
	}
	for _, r := range parsed.Require {
		if r.Mod.Path == module {
			return r.Mod.Version, nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", file, module)
}

// chooseKubernetes returns the release with the version, or the default release if the version is empty.
func chooseKubernetes(toolsDir, version string) (kubernetesRelease, error) {
	releases, err := kubernetesReleases(toolsDir)
	if err != nil {
		return kubernetesRelease{}, err
	}
	var known []string
	for _, r := range releases {
		if r.version == version || version == "" && r.dir == kubernetesModule {
			return r, nil
		}
		known = append(known, r.version)
	}
	return kubernetesRelease{}, fmt.Errorf("%s=%s: %s has no module for this version. Set %s to one of %s, or unset it to use the default",
		kubernetesVariable, version, toolsDir, kubernetesVariable, strings.Join(known, ", "))
}

// checkKubernetes returns an error if the cluster has another version of Kubernetes. A stopped cluster has a version
// too, because an API server may not be able to read the objects that a newer version has stored.
func (c cluster) checkKubernetes(asked string) error {
	has := c.tools().version(kubernetesModule)
	if has == "" || has == asked {
		return nil
	}
	return fmt.Errorf("start the cluster %[1]s with Kubernetes %[2]s: the cluster has Kubernetes %[3]s, and its version cannot change.\n"+
		"To use the cluster as it is, set %[4]s=%[3]s. To create it again with %[2]s, first run: cluster --name %[1]s down",
		c.name, asked, has, kubernetesVariable)
}
