package gate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

const (
	// renewals is how many times the sidecar renews the Lease in one duration.
	renewals = 5
	// showPause is the time between two renewals of a Lease that never expires. They only show that the pod reaches the API server.
	showPause = time.Minute
	// retryPause is the time between two attempts to read or renew the Lease.
	retryPause = 500 * time.Millisecond
	// releasePatience is how long a sidecar that must stop waits for the reports of gates, to release the Lease.
	releasePatience = time.Second
)

// errConflict is the error of update if the Lease was written since it was read. It is temporary.
var errConflict = errors.New("the Lease was written since it was read")

// follow renews and releases the Lease until ctx ends.
func (f *fencer) follow(ctx context.Context) {
	pause := f.fence.duration / renewals
	if f.fence.neverExpires() {
		pause = showPause
	}
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	problem := f.problem("Cannot renew or release the Lease")
	for {
		var retry <-chan time.Time
		err := f.update(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			retry = time.After(retryPause)
			f.endTerm()
		}
		if !errors.Is(err, errConflict) {
			problem(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-retry:
		case <-f.changed:
		}
	}
}

// endTerm makes the file with the role say reader if the term is over.
func (f *fencer) endTerm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fence.term != (Term{}) { // otherwise an earlier sidecar wrote the file
		f.writeRole()
	}
}

// finish releases the Lease if the sidecar stops because its pod does. The kubelet stops the sidecar right after the held
// containers, often before the Lease is released.
func (f *fencer) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), releasePatience)
	defer cancel()
	for f.releasesSoon() {
		if err := f.update(ctx); err != nil {
			f.log.Warn("The Lease is not released. The next pod waits for the report of the kubelet", "lease", f.lease.name, "error", err)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-f.changed:
		}
	}
}

// releasesSoon returns true if the pod holds the Lease, and the Lease can be released now or after the reports of
// connected gates.
func (f *fencer) releasesSoon() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current != nil && f.names(f.current) && (f.fence.Retired || f.fence.roles) && (f.fence.mayRelease() || len(f.gates) > 0)
}

// watch keeps the Lease current until ctx ends.
func (f *fencer) watch(ctx context.Context) {
	problem := f.problem("Cannot read the Lease, so main processes may not start, change their role or retire")
	for {
		begun := time.Now()
		l, err := f.read(ctx)
		if err == nil {
			err = f.lease.watch(ctx, l, f.see)
		}
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil // the API server ends watches
		}
		problem(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryPause - time.Since(begun)): // no pause after a long watch
		}
	}
}

// problem returns a function that logs an error if it differs from the error before, and the end of the problem.
func (f *fencer) problem(what string) func(error) {
	last := ""
	return func(err error) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		switch {
		case text == last:
		case err == nil:
			f.log.Info("The problem with the Lease is over", "lease", f.lease.name, "was", what)
		default:
			f.log.Warn(what, "lease", f.lease.name, "error", err)
		}
		last = text
	}
}

// read reads the Lease from the API server. A state with a lower version than before counts, for example after a restore
// of etcd, unless a newer state was seen in the meantime.
func (f *fencer) read(ctx context.Context) (*lease, error) {
	f.mu.Lock()
	before := f.current
	f.mu.Unlock()
	l, err := f.lease.get(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	if f.current == before {
		f.current = nil
	}
	f.mu.Unlock()
	f.see(l)
	return l, nil
}

// see records a state of the Lease. It ignores a late event about an older state.
func (f *fencer) see(l *lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != nil && l.version() < f.current.version() {
		return
	}
	f.replace(l)
}

// replace makes l the current state of the Lease. f.mu is locked.
func (f *fencer) replace(l *lease) {
	news := f.current == nil || f.names(f.current) != f.names(l)
	f.current = l
	if !f.names(l) {
		f.fence.lose()
		f.tell()
		f.writeRole()
	}
	f.tellClients()
	news = f.followTenure() || news
	// If main processes of a retired pod run, the Lease is not renewed now: the release would wait for the renewal.
	if f.retire() && f.fence.mayRelease() || news {
		f.wake()
	}
}

// followTenure follows the tenure of a pod of a StatefulSetLock. It returns true if the tenure begins to end. f.mu is locked.
func (f *fencer) followTenure() bool {
	if !f.fence.roles || !f.names(f.current) {
		return false
	}
	if f.fence.begin(f.current.Spec.LeaseTransitions) {
		for _, gate := range f.gates {
			gate.started = false
		}
	}
	before := f.fence.ending()
	revoked, _ := strconv.ParseInt(f.current.Metadata.Annotations[signal.RevokedAnnotation], 10, 64)
	f.fence.revoke(revoked)
	if before || !f.fence.ending() {
		return false
	}
	f.log.Info("The tenure of the writer ends", "lease", f.lease.name, "epoch", f.fence.Tenure)
	f.store()
	f.tell()
	f.writeRole()
	return true
}

// names returns true if the pod holds the Lease.
func (f *fencer) names(l *lease) bool { return l.Spec.HolderIdentity == f.identity }

// retire returns true if it retires the pod because the Lease says so. If the state cannot be stored, the next renewal
// tries again. f.mu is locked.
func (f *fencer) retire() bool {
	if f.fence.Retired || f.current.Metadata.Annotations[signal.RetireAnnotation] != f.fence.UID {
		return false
	}
	f.fence.Retired = true
	f.fence.Retired = f.store()
	return f.fence.Retired
}

// update renews the Lease if it names the pod, or releases it if no main process runs and none will. After a conflict it
// tries again, because a start or a release must not wait.
func (f *fencer) update(ctx context.Context) error {
	err := f.tryUpdate(ctx)
	if errors.Is(err, errConflict) {
		err = f.tryUpdate(ctx)
	}
	return err
}

func (f *fencer) tryUpdate(ctx context.Context) error {
	f.mu.Lock()
	current, release := f.current, f.fence.mayRelease()
	// Without renewals, a gate that is gone and cannot report the end delays the next writer only until the Lease expires. A
	// restarted sidecar has no term yet, with which it tells the gates that the tenure ends.
	expires := f.fence.ending() && !release && f.fence.term != Term{}
	reports := f.reports()
	f.mu.Unlock()
	if current == nil || !f.names(current) || expires {
		return nil
	}
	sent := bootTime()
	var next *lease
	var err error
	if release {
		next, err = f.lease.release(ctx, current)
	} else {
		next, err = f.lease.renew(ctx, current, reports)
	}
	if refused, ok := errors.AsType[leaseError](err); ok && len(reports) > 0 && refused.code != http.StatusConflict && refused.code < http.StatusInternalServerError {
		// A guard of another release may not know the annotation. Nothing must keep the pod from renewing the Lease.
		f.rejected(err)
		next, err = f.lease.renew(ctx, current, nil)
	}
	if err != nil && release {
		f.mu.Lock()
		f.store() // this sidecar may end before the next attempt
		f.writeRole()
		f.mu.Unlock()
	}
	if conflict, ok := errors.AsType[leaseError](err); ok && conflict.code == http.StatusConflict {
		if _, err := f.read(ctx); err != nil {
			return err
		}
		return errConflict
	}
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != current && f.current != nil && next.version() < f.current.version() {
		return nil // the answer came later than the event of a newer state
	}
	f.replace(next)
	switch {
	case release:
		f.log.Info("Released the Lease: no main process of this pod needs the Lease any more", "lease", f.lease.name)
	case f.names(next): // otherwise an answer from before a restore of etcd
		f.fence.renew(next.Spec.LeaseTransitions, sent)
		f.tell()
	}
	return nil
}
