package injection

import (
	"context"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// apiServerConfigMap is the name of the ConfigMap from which guard "api-server" knows the API server. The chart creates it
	// in the namespace of the controller.
	apiServerConfigMap = "statefulsingleton-api-server"
	// apiServerPeriod is the time between two reads of the certificate authorities. The kubelet updates their file about
	// once per minute.
	apiServerPeriod = 10 * time.Second
)

// APIServer is the API server that the controller itself uses. The controller tells it to the guard, and the policies to the
// sidecars of fenced pods, so that nobody who writes in the namespace of a pod says which server the pod asks. Only the leader
// writes.
type APIServer struct {
	config    *rest.Config
	client    client.Client
	live      client.Reader
	namespace string

	mu      sync.Mutex
	known   signal.APIServer
	changed []chan event.GenericEvent
}

// NewAPIServer returns the API server of the configuration. The namespace is that of the controller. If it is empty, because
// the controller does not run in the cluster, no guard knows the API server.
func NewAPIServer(config *rest.Config, c client.Client, live client.Reader, namespace string) *APIServer {
	s := &APIServer{config: config, client: c, live: live, namespace: namespace}
	s.known, _ = apiServerOf(config) // sync reports the error
	return s
}

// Start implements manager.Runnable.
func (s *APIServer) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.sync(ctx); err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to say which API server fenced pods use, so guard api-server can reject new ones. The next attempt follows in 10 seconds")
		}
	}, apiServerPeriod)
	return nil
}

// sync tells the guard and then the policies which API server the controller uses now.
func (s *APIServer) sync(ctx context.Context) error {
	now, err := apiServerOf(s.config)
	if err != nil {
		return err
	}
	if err := s.publish(ctx, now); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if reflect.DeepEqual(s.known, now) {
		return nil
	}
	s.known = now
	for _, changed := range s.changed {
		select {
		case changed <- event.GenericEvent{Object: &corev1.ConfigMap{}}:
		default: // an event is waiting, and its handler will read the new state
		}
	}
	return nil
}

// publish writes the API server into the ConfigMap.
func (s *APIServer) publish(ctx context.Context, now signal.APIServer) error {
	if s.namespace == "" {
		return nil
	}
	want := map[string]string{"url": now.URL, "ca-sha256": strings.Join(now.Authorities, ",")}
	key := client.ObjectKey{Namespace: s.namespace, Name: apiServerConfigMap}
	found := &corev1.ConfigMap{}
	if err := s.live.Get(ctx, key, found); err != nil {
		return fmt.Errorf("read ConfigMap %s, which the chart creates. If it is missing, run helm upgrade: %w", key, err)
	}
	if maps.Equal(found.Data, want) {
		return nil
	}
	changed := found.DeepCopy()
	changed.Data = want
	if err := s.client.Patch(ctx, changed, client.MergeFrom(found), fieldOwner); err != nil {
		return fmt.Errorf("write ConfigMap %s: %w", key, err)
	}
	return nil
}

// current returns the API server. It is empty while the certificate authorities cannot be read. Fenced pods are then rejected.
func (s *APIServer) current() signal.APIServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known
}

// changes returns a channel that receives after changes.
func (s *APIServer) changes() <-chan event.GenericEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := make(chan event.GenericEvent, 1)
	s.changed = append(s.changed, changed)
	return changed
}

// apiServerOf returns the address and the certificate authorities in the configuration. The file of the authorities can
// change.
func apiServerOf(config *rest.Config) (signal.APIServer, error) {
	url, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return signal.APIServer{}, fmt.Errorf("parse the address of the API server: %w", err)
	}
	if url.Scheme != "https" {
		return signal.APIServer{}, fmt.Errorf("the address of the API server is %s: fenced pods need https", url)
	}
	if url.Port() == "" {
		url.Host += ":443"
	}
	bundle := config.CAData
	if len(bundle) == 0 {
		if bundle, err = os.ReadFile(config.CAFile); err != nil {
			return signal.APIServer{}, fmt.Errorf("read the certificate authorities of the API server: %w", err)
		}
	}
	s := signal.APIServer{URL: strings.TrimSuffix(url.String(), "/")}
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			s.Authorities = append(s.Authorities, signal.Fingerprint(block.Bytes))
		}
	}
	if len(s.Authorities) == 0 {
		return signal.APIServer{}, fmt.Errorf("the certificate authorities of the API server in %q contain no certificate", config.CAFile)
	}
	return s, nil
}
