package gate

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// fallbackPoll is how often to read a file in addition to inotify or the wake-up pipe. Inotify does not report writes
// on the other side of a shared file system, for example those of the kubelet under Kata Containers.
const fallbackPoll = time.Second

// changes sends when a file in dir may have changed: at once, when inotify reports it, and periodically. Without
// inotify, whose limits all pods of a node share, it sends every poll. The channel is closed when ctx ends.
func changes(ctx context.Context, dir string, poll time.Duration, log *slog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	var events chan fsnotify.Event
	var errs chan error
	watcher := watch(dir, log)
	if watcher != nil {
		events, errs = watcher.Events, watcher.Errors
		poll = fallbackPoll
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
			case <-errs: // for example, inotify lost events
			case <-ticker.C:
			}
			select {
			case changed <- struct{}{}:
			default: // the receiver has a pending change
			}
		}
	}()
	return changed
}

// watch watches dir with inotify. It returns nil if that fails.
func watch(dir string, log *slog.Logger) *fsnotify.Watcher {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(dir); err == nil {
			return watcher
		}
		_ = watcher.Close()
	}
	log.Warn("Cannot watch the directory with inotify. Polling the directory instead", "dir", dir, "error", err)
	return nil
}
