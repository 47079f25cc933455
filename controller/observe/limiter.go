package observe

import (
	"context"
	"errors"
	"io"
	"net/http"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// listAtOnce and objectAtOnce are the sizes in bytes up to which responses are read concurrently. Larger responses are read
	// and decoded one at a time.
	listAtOnce   = 1 << 20
	objectAtOnce = 128 << 10
	// maxPage is the size in bytes above which a page of a list is read again with fewer objects.
	maxPage = 4 << 20
)

// errPageTooLarge is the error of a page above maxPage.
var errPageTooLarge = errors.New("the page is too large")

// largeRead is a read that waits for other reads of large responses if its response is large.
type largeRead struct {
	// free is the size in bytes up to which the response is read without waiting.
	free int
	// most is the size in bytes above which the rest of the response is not read. 0: the whole response is read.
	most int
	// cut is true if the rest of the response was not read.
	cut bool
	// done frees the slot. It is nil while the read does not have the slot.
	done func()
}

type largeReadKey struct{}

// oneAtATime calls read. A response with more than free bytes waits for other large responses. The next read can begin
// when read returns, because read decodes and trims the response. oneAtATime returns errPageTooLarge if the response has more
// than most bytes, unless most is 0.
func oneAtATime(ctx context.Context, free, most int, read func(context.Context) error) error {
	large := &largeRead{free: free, most: most}
	defer func() {
		if large.done != nil {
			large.done()
		}
	}()
	err := read(context.WithValue(ctx, largeReadKey{}, large))
	if large.cut {
		return errPageTooLarge
	}
	return err
}

// Limited returns a reader whose objects wait for other large responses if they are large. The reader must belong to a
// client with LimitLargeResponses.
func Limited(reader client.Reader) client.Reader { return limitedReader{reader} }

type limitedReader struct{ client.Reader }

// Get implements client.Reader.
func (l limitedReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, waits := ctx.Value(largeReadKey{}).(*largeRead); waits {
		return l.Reader.Get(ctx, key, o, options...)
	}
	return oneAtATime(ctx, objectAtOnce, 0, func(ctx context.Context) error { return l.Reader.Get(ctx, key, o, options...) })
}

// LimitLargeResponses makes clients of the config read one large response at a time in the live reads of an Observer and of a
// Limited reader. Together, the workers could otherwise fill the memory.
func LimitLargeResponses(config *rest.Config) {
	slot := make(chan struct{}, 1)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &limiter{next, slot} })
}

type limiter struct {
	next http.RoundTripper
	// slot is full while a large response is in memory.
	slot chan struct{}
}

func (l *limiter) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if large, ok := request.Context().Value(largeReadKey{}).(*largeRead); ok && err == nil {
		response.Body = &limitedBody{ReadCloser: response.Body, context: request.Context(), large: large, slot: l.slot}
	}
	return response, err
}

// limitedBody waits after the first free bytes, and ends after the last permitted byte.
type limitedBody struct {
	io.ReadCloser
	context context.Context
	large   *largeRead
	slot    chan struct{}
	read    int
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.large.most > 0 && b.read > b.large.most {
		b.large.cut = true
		return 0, io.EOF
	}
	if b.read > b.large.free && b.large.done == nil {
		select {
		case b.slot <- struct{}{}:
			b.large.done = func() { <-b.slot }
		case <-b.context.Done():
			return 0, b.context.Err()
		}
	}
	n, err := b.ReadCloser.Read(p)
	b.read += n
	return n, err
}
