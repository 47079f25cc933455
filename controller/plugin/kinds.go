package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// kind is a kind of this project that an argument can name.
type kind struct {
	name, shortName string
	// empty and emptyList are an object and a list without data.
	empty     client.Object
	emptyList client.ObjectList
}

var (
	singletonKind = kind{"StatefulSingleton", "stfs", &v1.StatefulSingleton{}, &v1.StatefulSingletonList{}}
	lockKind      = kind{"StatefulSetLock", "ssl", &v1.StatefulSetLock{}, &v1.StatefulSetLockList{}}
	clusterKind   = kind{"StatefulCluster", "stc", &v1.StatefulCluster{}, &v1.StatefulClusterList{}}

	allKinds = []kind{singletonKind, lockKind, clusterKind}
)

// anyName is the argument of the commands that accept all kinds.
const anyName = "[stfs/]NAME | ssl/NAME | stc/NAME"

// is returns true if kubectl accepts the word for the kind, for example ssl, StatefulSetLock, or
// statefulsetlocks.apps.statefulsingleton.com.
func (k kind) is(word string) bool {
	name, group, qualified := strings.Cut(strings.ToLower(word), ".")
	if qualified && strings.TrimPrefix(group, v1.GroupVersion.Version+".") != v1.GroupVersion.Group {
		return false
	}
	singular := strings.ToLower(k.name)
	return slices.Contains([]string{k.shortName, singular, singular + "s"}, name)
}

// argument returns the shortest argument that names an object of the kind.
func (k kind) argument(name string) string {
	if k.name == singletonKind.name {
		return name
	}
	return k.shortName + "/" + name
}

// parse returns the kind and the name in an argument. Of the kinds that a command accepts, a name alone can only mean a
// StatefulSingleton.
func parse(arg string, accepted []kind) (kind, string, error) {
	word, name, hasKind := strings.Cut(arg, "/")
	if !hasKind {
		word, name = singletonKind.shortName, arg
	}
	i := slices.IndexFunc(accepted, func(k kind) bool { return k.is(word) })
	if i < 0 || name == "" || strings.Contains(name, "/") {
		return kind{}, "", fmt.Errorf("%q is not the name of an object for this command: use %s", arg, forms(accepted))
	}
	return accepted[i], name, nil
}

// forms says which arguments name an object of the kinds.
func forms(accepted []kind) string {
	var all []string
	for _, k := range accepted {
		form := k.shortName + "/NAME"
		if k.name == singletonKind.name {
			form = "NAME or " + form
		}
		all = append(all, form+" for a "+k.name)
	}
	return strings.Join(all, ", ")
}

// read reads the object that an argument names.
func (c *cluster) read(ctx context.Context, arg string, accepted ...kind) (client.Object, error) {
	k, name, err := parse(arg, accepted)
	if err != nil {
		return nil, err
	}
	o := k.empty.DeepCopyObject().(client.Object)
	err = c.find(ctx, name, o, k.emptyList.DeepCopyObject().(client.ObjectList))
	if meta.IsNoMatchError(err) && k.name == clusterKind.name {
		return nil, errors.New("the API server does not serve StatefulClusters. Install the chart with statefulClusters.enabled=true")
	}
	return o, err
}
