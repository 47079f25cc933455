package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GetConditions returns the conditions in the status.
func (s *StatefulSingleton) GetConditions() []metav1.Condition { return s.Status.Conditions }

// GetConditions returns the conditions in the status.
func (l *StatefulSetLock) GetConditions() []metav1.Condition { return l.Status.Conditions }

// GetConditions returns the conditions in the status.
func (c *StatefulCluster) GetConditions() []metav1.Condition { return c.Status.Conditions }
