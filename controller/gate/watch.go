package gate

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// lookAnyway is how often to look where inotify watches or the bell is heard: inotify
// does not tell of what the kubelet writes on the other side of a virtual machine's
// shared file system, as under Kata Containers.
const lookAnyway = time.Second

// changes reports that something in dir may have changed: when inotify says so, and
// from time to time besides. Where inotify can't, since it has limits that all pods of
// a node share, it reports every poll. The first report comes at once, after inotify
// has begun to watch. The channel is closed when ctx ends.
func changes(ctx context.Context, dir string, poll time.Duration, log *slog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	var events chan fsnotify.Event
	var errs chan error
	watcher := watch(dir, log)
	if watcher != nil {
		events, errs = watcher.Events, watcher.Errors
		poll = lookAnyway
	}
	changed <- struct{}{}
	go func() {
		defer close(changed)
		if watcher != nil {
			defer func() { _ = watcher.Close() }()
		}
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-events:
			case <-errs: // events were lost, say
			case <-ticker.C:
			}
			select {
			case changed <- struct{}{}:
			default: // one report is waiting already
			}
		}
	}()
	return changed
}

// watch has inotify watch dir. It is nil where inotify can't.
func watch(dir string, log *slog.Logger) *fsnotify.Watcher {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(dir); err == nil {
			return watcher
		}
		_ = watcher.Close()
	}
	log.Warn("Changes are seen by polling alone, without inotify", "dir", dir, "error", err)
	return nil
}
