package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	ocireg "github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/time/rate"

	"github.com/statefulsingleton/statefulsingleton/chainsaw-tests/fixture/image"
)

const (
	// registryAddress is the address of registry.local for the nodes of the local cluster.
	registryAddress = "10.99.0.1:5000"
	repository      = "bench:1"
	pulledImage     = "registry.local/" + repository
	// burst is the number of bytes that are served without a delay: a hundredth of a second at 30 MB/s.
	burst = 256 << 10
)

// registry serves the pulled image at a limited rate.
type registry struct {
	server  *http.Server
	limiter *rate.Limiter
	// bytes is the number of bytes served so far.
	bytes atomic.Int64
	// scratch is the folder of the blobs.
	scratch string
}

// serveImage starts the registry. The image has incompressible bytes and the application, which `make install` builds.
func serveImage(ctx context.Context) (*registry, error) {
	scratch, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	r := &registry{limiter: rate.NewLimiter(rate.Inf, burst), scratch: scratch}
	blobs := filepath.Join(scratch, "blobs")
	if err := os.Mkdir(blobs, 0o755); err != nil {
		return nil, err
	}
	handler := ocireg.New(ocireg.Logger(log.New(io.Discard, "", 0)), ocireg.WithBlobHandler(ocireg.NewDiskBlobHandler(blobs)))
	listener, err := net.Listen("tcp", registryAddress)
	if err != nil {
		return nil, fmt.Errorf("serve a registry in the local cluster's network: %w", err)
	}
	r.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		handler.ServeHTTP(&limited{w, request.Context(), r}, request)
	})}
	go func() {
		if err := r.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "bench: the registry:", err)
		}
	}()
	return r, push(ctx, scratch)
}

func push(ctx context.Context, scratch string) error {
	ballast := filepath.Join(scratch, "ballast")
	file, err := os.Create(ballast)
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, rand.NewChaCha8([32]byte{}), imageSize)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", ballast, err)
	}
	built, err := image.Build(image.Spec{
		Ref: pulledImage, Files: map[string]string{"/app": "dist/images/bin/app", "/ballast": ballast}, Entrypoint: []string{"/app"},
	})
	if err != nil {
		return err
	}
	reference, err := name.ParseReference(registryAddress+"/"+repository, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(reference, built, remote.WithContext(ctx))
}

// limit sets the rate of all responses in bytes per second. 0 means no limit.
func (r *registry) limit(bytes int) {
	limit := rate.Inf
	if bytes > 0 {
		limit = rate.Limit(bytes)
	}
	r.limiter.SetLimit(limit)
}

func (r *registry) close() {
	_ = r.server.Close()
	_ = os.RemoveAll(r.scratch)
}

// limited is a response with a limited rate.
type limited struct {
	http.ResponseWriter
	ctx      context.Context
	registry *registry
}

func (l *limited) Write(data []byte) (int, error) {
	written := 0
	for len(data) > 0 {
		part := data[:min(len(data), l.registry.limiter.Burst())]
		if err := l.registry.limiter.WaitN(l.ctx, len(part)); err != nil {
			return written, err
		}
		n, err := l.ResponseWriter.Write(part)
		written += n
		l.registry.bytes.Add(int64(n))
		if err != nil {
			return written, err
		}
		data = data[n:]
	}
	return written, nil
}
