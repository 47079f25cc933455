package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/statefulsingleton/statefulsingleton/controller/proof"
)

// nodesPerPage is the number of nodes that are read at once.
const nodesPerPage = 100

// kubeletUsers logs an error at the start if kubelets seem to act as other users than their nodes. The guard "reports"
// rejects the status updates of such users. No API returns the user that wrote a status. So the check asks the API
// server whether the user of a Ready node can write the status of the node, as a kubelet must.
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
		k.log.Error(err, "Cannot check the users of kubelets. The controller continues")
	case user != "" && !allowed:
		k.log.Error(nil, "Kubelets seem to act as other users than their nodes. The guards reject their status updates, and no standby becomes warm,"+
			" unless the chart value guards.kubeletUsers lists these users. The log of the kubelet has the rejection, with the user and the next step", "deniedUser", user)
	}
	return nil
}

// allowed returns the user of a Ready node, and whether that user can write the node's status. The user is empty if
// no node is Ready.
func (k kubeletUsers) allowed(ctx context.Context) (user string, allowed bool, err error) {
	node, err := k.readyNode(ctx)
	if err != nil || node == nil {
		return "", false, err
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:node:" + node.Name, Groups: []string{"system:nodes", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Version: "v1", Resource: "nodes", Subresource: "status", Name: node.Name, Verb: "patch",
		},
	}}
	if err := k.client.Create(ctx, review); err != nil {
		return "", false, fmt.Errorf("check whether user %s can patch the status of node %s: %w", review.Spec.User, node.Name, err)
	}
	return review.Spec.User, review.Status.Allowed, nil
}

// readyNode returns a Ready node, or nil. It reads pages, because a large cluster has megabytes of nodes.
func (k kubeletUsers) readyNode(ctx context.Context) (*corev1.Node, error) {
	var nodes corev1.NodeList
	for page := client.Limit(nodesPerPage); ; {
		if err := k.live.List(ctx, &nodes, page, client.Continue(nodes.Continue)); err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		if i := slices.IndexFunc(nodes.Items, func(n corev1.Node) bool { return proof.NodeReady(&n) }); i >= 0 {
			return &nodes.Items[i], nil
		}
		if nodes.Continue == "" {
			return nil, nil
		}
	}
}
