package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCores(t *testing.T) {
	got := cores(map[string]float64{"etcd": 10, "kubelet": 5}, map[string]float64{"etcd": 15, "kubelet": 5.01, "kwok": 2}, 10)
	if diff := cmp.Diff(map[string]float64{"etcd": 0.5, "kwok": 0.2}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
