package injection

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The condition advises a check of Kyverno only if Kyverno can be the cause.
func TestAdviceAfterRejection(t *testing.T) {
	forbidden := func(why string) error {
		return apierrors.NewForbidden(corev1.Resource("pods"), "statefulsingleton-probe", errors.New(why))
	}
	for name, tc := range map[string]struct {
		err         error
		wantKyverno bool
	}{
		"quota":                {forbidden("exceeded quota: few, requested: pods=1, used: pods=5, limited: pods=5"), false},
		"pod security":         {forbidden(`violates PodSecurity "restricted:latest": privileged`), false},
		"guard":                {forbidden("ValidatingAdmissionPolicy 'held' denied request: Kyverno has not injected it"), true},
		"policy of Kyverno":    {forbidden(`admission webhook "validate.kyverno.svc-fail" denied the request`), true},
		"no answer of Kyverno": {apierrors.NewInternalError(errors.New("failed calling webhook")), true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFailing(t, nil)
			f.podErr = tc.err
			f.install()
			message := f.reconciler.Condition(f.singleton).Message
			if got := strings.Contains(message, kyvernoHelp); got != tc.wantKyverno {
				t.Errorf("%q: advice about Kyverno %v, want %v", message, got, tc.wantKyverno)
			}
		})
	}
}
