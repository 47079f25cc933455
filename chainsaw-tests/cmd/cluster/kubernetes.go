package main

import (
	"errors"
	"fmt"
	"maps"
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

// kubernetesReleases maps the versions of Kubernetes that chainsaw-tests/tools has to the directories of their modules.
func kubernetesReleases(toolsDir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(toolsDir, kubernetesModule+"*", "go.mod"))
	releases := map[string]string{}
	for _, file := range files {
		version, wrong := requiredVersion(file, kubernetesMain)
		err = errors.Join(err, wrong)
		releases[version] = filepath.Base(filepath.Dir(file))
	}
	return releases, err
}

// chooseKubernetes returns a release with the directory of its module. An empty version selects the default.
func chooseKubernetes(toolsDir, asked string) (version, dir string, err error) {
	releases, err := kubernetesReleases(toolsDir)
	if err != nil {
		return "", "", err
	}
	for version, dir := range releases {
		if version == asked || asked == "" && dir == kubernetesModule {
			return version, dir, nil
		}
	}
	known := slices.SortedFunc(maps.Keys(releases), semver.Compare)
	return "", "", fmt.Errorf("%s=%s: %s has no module for this version. Set %s to one of %s, or unset it to use the default",
		kubernetesVariable, asked, toolsDir, kubernetesVariable, strings.Join(known, ", "))
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
