package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/statefulsingleton/statefulsingleton/controller/api/v1"
)

// ClusterStatus is the output of `kubectl stfs status stc/NAME -o json` for one StatefulCluster. Fields can be added, but are never
// renamed or removed.
type ClusterStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Replicas is spec.replicas.
	Replicas int32 `json:"replicas"`
	// ReadyReplicas, AvailableReplicas and UpdatedReplicas are the counts of the status.
	ReadyReplicas     int32 `json:"readyReplicas"`
	AvailableReplicas int32 `json:"availableReplicas"`
	UpdatedReplicas   int32 `json:"updatedReplicas"`
	// UpdateRevision is the revision of the template.
	UpdateRevision string `json:"updateRevision"`
	// Message describes the state. If nothing continues without a person, the message says what to do.
	Message string `json:"message"`
	// Deleting: the StatefulCluster is being deleted.
	Deleting bool `json:"deleting,omitempty"`
	// Members are status.members.
	Members []v1.ClusterMember `json:"members"`
	// Released are status.released.
	Released []v1.ReleasedClaim `json:"released"`
	// Conditions are status.conditions.
	Conditions []metav1.Condition `json:"conditions"`
}

// isCluster returns true for an argument such as stc/db.
func isCluster(arg string) bool {
	kind, _, slash := strings.Cut(arg, "/")
	return slash && slices.Contains(clusterPrefixes, kind)
}

// clusters reads the StatefulClusters of a namespace, or of all namespaces. A chart without statefulClusters.enabled has none.
func (c *cluster) clusters(ctx context.Context, namespace string) ([]v1.StatefulCluster, error) {
	var list v1.StatefulClusterList
	err := c.List(ctx, &list, client.InNamespace(namespace))
	if meta.IsNoMatchError(err) {
		err = nil
	}
	return list.Items, err
}

func clusterStatus(o *v1.StatefulCluster) ClusterStatus {
	is := &o.Status
	replicas := int32(1)
	if o.Spec.Replicas != nil {
		replicas = *o.Spec.Replicas
	}
	return ClusterStatus{
		Namespace: o.Namespace, Name: o.Name, Replicas: replicas, ReadyReplicas: is.ReadyReplicas, AvailableReplicas: is.AvailableReplicas,
		UpdatedReplicas: is.UpdatedReplicas, UpdateRevision: is.UpdateRevision, Message: is.Message, Deleting: o.DeletionTimestamp != nil,
		Members: append([]v1.ClusterMember{}, is.Members...), Released: append([]v1.ReleasedClaim{}, is.Released...),
		Conditions: append([]metav1.Condition{}, is.Conditions...),
	}
}

// text returns the status of the StatefulCluster as text.
func (s *ClusterStatus) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "StatefulCluster %s/%s: %d of %d pods are available, %d have revision %s\n", s.Namespace, s.Name, s.AvailableReplicas, s.Replicas, s.UpdatedReplicas, cmp.Or(s.UpdateRevision, "-"))
	if s.Deleting {
		fmt.Fprintln(&b, "The StatefulCluster is being deleted.")
	}
	if s.Message != "" {
		fmt.Fprintf(&b, "  %s\n", s.Message)
	}
	b.WriteString("\nMembers\n")
	if len(s.Members) == 0 {
		b.WriteString("  none\n")
	}
	b.WriteString(columns(func(row func(cells ...string)) {
		for _, m := range s.Members {
			var claims []string
			for _, claim := range m.Claims {
				claims = append(claims, claim.Name)
			}
			row("  "+m.Name, string(m.State), cmp.Or(m.Node, "-"), cmp.Or(m.Revision, "-"), strings.Join(claims, ", "))
		}
	}))
	b.WriteString(conditionsText(s.Conditions, []string{v1.ConditionReady, v1.ConditionStalled, v1.ConditionPolicyInstalled}, s.Message))
	return b.String()
}

// clusterTable returns one line for each StatefulCluster, with a column of namespaces if needed.
func clusterTable(clusters []ClusterStatus, namespace string) string {
	return columns(func(row func(cells ...string)) {
		in := func(in string, cells ...string) {
			if namespace == "" {
				cells = append([]string{in}, cells...)
			}
			row(cells...)
		}
		in("NAMESPACE", "CLUSTER", "DESIRED", "READY", "AVAILABLE", "UPDATED", "LOST", "MESSAGE")
		for i := range clusters {
			s := &clusters[i]
			lost := 0
			for _, m := range s.Members {
				if m.State == v1.MemberLost {
					lost++
				}
			}
			in(s.Namespace, s.Name, fmt.Sprint(s.Replicas), fmt.Sprint(s.ReadyReplicas), fmt.Sprint(s.AvailableReplicas), fmt.Sprint(s.UpdatedReplicas), fmt.Sprint(lost), s.Message)
		}
	})
}
