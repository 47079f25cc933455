package gate

import (
	"context"
	"log/slog"
	"time"

	"github.com/fsnotify/fsnotify"
)

// changes reports that something in dir may have changed: when inotify says so,
// and every poll besides, since inotify has limits that all pods of a node share.
// The first report comes at once. The channel is closed when ctx ends.
func changes(ctx context.Context, dir string, poll time.Duration, log *slog.Logger) <-chan struct{} {
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	var events chan fsnotify.Event
	var errs chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		events, errs = watcher.Events, watcher.Errors
		err = watcher.Add(dir)
	}
	if err != nil {
		log.Info("No inotify here, so changes are seen by polling alone", "dir", dir, "every", poll.String(), "error", err.Error())
	}
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
			case <-errs: // an overflow, say: look
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
