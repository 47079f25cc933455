package main

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kubeletUsers reports at start if kubelets seem to act as other users than their nodes. The guard "reports" rejects
// the reports of such users. The API server does not say who wrote a status, so the check asks whether the user of a
// Ready node can write the node's status, as a kubelet must.
type kubeletUsers struct {
	client client.Client
	live   client.Reader
	log    logr.Logger
}

// Start implements manager.Runnable.
func (k kubeletUsers) Start(ctx context.Context) error {
	user, allowed, err := k.allowed(ctx)
	switch {
	case err != nil:
		k.log.Error(err, "Could not check which users kubelets act as. The controller continues")
	case user != "" && !allowed:
		k.log.Error(nil, "kubelets seem to act as other users than their nodes. The guards then reject their reports, and no standby becomes warm,"+
			" unless the chart's value guards.kubeletUsers lists these users. The rejection in the kubelet's log names the user and says what to do", "deniedUser", user)
	}
	return nil
}

// allowed returns the user of a Ready node, and whether that user can write the node's status. The user is empty if
// no node is Ready.
func (k kubeletUsers) allowed(ctx context.Context) (user string, allowed bool, err error) {
	var nodes corev1.NodeList
	if err := k.live.List(ctx, &nodes); err != nil {
		return "", false, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if !ready(node) {
			continue
		}
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "system:node:" + node.Name, Groups: []string{"system:nodes", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Version: "v1", Resource: "nodes", Subresource: "status", Name: node.Name, Verb: "patch",
			},
		}}
		if err := k.client.Create(ctx, review); err != nil {
			return "", false, fmt.Errorf("ask whether user %s may patch the status of node %s: %w", review.Spec.User, node.Name, err)
		}
		return review.Spec.User, review.Status.Allowed, nil
	}
	return "", false, nil
}

func ready(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
