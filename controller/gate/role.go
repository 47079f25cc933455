package gate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// changePatience is how long a reader may take to end after SIGTERM, before the main process starts again as the writer.
const changePatience = 10 * time.Second

// leaveSignals end a container for good: the main process does not start again in another role.
var leaveSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT}

// runRoles runs the main process in the role of the pod, until the main process ends by itself or by a signal to the
// container. Without a hook for a change of the role, it starts the main process again.
func runRoles(ctx context.Context, s *sidecarConnection, clock *alarm, argv []string, hooks signal.Hooks, received <-chan os.Signal, log *slog.Logger) (code int, err error) {
	var term Term
	for {
		path, err := lookUp(argv[0])
		if err != nil {
			return exitCodeOf(err), err
		}
		i := &incarnation{sidecar: s, clock: clock, hooks: hooks, log: log, orders: make(chan os.Signal), children: newChildren()}
		// The sidecar must know of a writer before the writer starts.
		if term.Epoch > 0 && bootTime() < term.Stop && s.startsWriter(term) {
			i.term = term
		}
		code, err = i.run(ctx, path, argv, received)
		if i.term.Epoch > 0 && !errors.Is(err, ErrProcessesLeft) {
			err = errors.Join(err, s.reportWriterEnd(i.term.Epoch))
		}
		if err != nil || !i.changes || i.leaves {
			return code, err
		}
		term = i.next
	}
}

// incarnation is one run of the main process.
type incarnation struct {
	sidecar  *sidecarConnection
	clock    *alarm
	hooks    signal.Hooks
	log      *slog.Logger
	orders   chan os.Signal
	children *children

	// term is the term of the writer. Its epoch is 0 while the main process is a reader.
	term Term
	// ends is true after the tenure of the writer began to end. Later terms do not lengthen it.
	ends bool
	// changes is true after the main process was asked to end, because it must start again in the other role. Deadline is
	// when a reader gets SIGKILL.
	changes  bool
	deadline time.Duration
	// next is the term with which the main process starts again. Its epoch is 0 for a reader.
	next Term
	// leaves is true after a signal that ends the container.
	leaves bool
	// hook receives the result of the running hook. Nil: none runs.
	hook chan error
}

// run runs the main process until it ends.
func (i *incarnation) run(ctx context.Context, path string, argv []string, received <-chan os.Signal) (code int, err error) {
	epoch := i.term.Epoch // govern changes the term
	env := roleEnvironment(os.Environ(), i.role(), epoch)
	i.log.Info("Starting the main process", "role", i.role(), "epoch", epoch)
	skipPIDs(firstPID)
	ctx, cancel := context.WithCancel(ctx)
	governed := make(chan struct{})
	go func() {
		defer close(governed)
		i.govern(ctx, received)
	}()
	started := func() {
		if epoch > 0 {
			i.sidecar.reportStart(epoch)
		}
	}
	code, err = Supervise(Execute(path, argv, env), i.orders, started, i.children.reaped, i.log)
	cancel()
	<-governed
	// A hook must not run in the next incarnation.
	if !errors.Is(err, ErrProcessesLeft) && i.children.close() {
		err = errors.Join(err, endOthers())
	}
	if err != nil && !errors.Is(err, ErrProcessesLeft) {
		err = startError(argv[0], err)
		code = exitCodeOf(err)
	}
	return code, err
}

func (i *incarnation) role() string {
	if i.term.Epoch > 0 {
		return signal.WriterRole
	}
	return signal.ReaderRole
}

// govern forwards signals, and follows the terms, until ctx ends.
func (i *incarnation) govern(ctx context.Context, received <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-received:
			i.leaves = i.leaves || slices.Contains(leaveSignals, s)
			i.order(ctx, s)
		case term := <-i.sidecar.terms:
			i.follow(ctx, term)
		case err := <-i.hook:
			i.hook = nil
			i.hookEnded(ctx, err)
		case <-i.rings():
			i.ring(ctx)
		}
	}
}

// order sends a signal to the main process. The start of a process can block, and must not delay the end of a writer.
func (i *incarnation) order(ctx context.Context, s os.Signal) {
	for {
		var overdue <-chan struct{}
		if i.term.Epoch > 0 {
			overdue = i.clock.until(i.term.Kill)
		}
		select {
		case i.orders <- s:
			return
		case <-ctx.Done():
			return
		case <-overdue:
			if bootTime() >= i.term.Kill {
				killAndExit(i.log)
			}
		}
	}
}

// follow follows a message of the sidecar.
func (i *incarnation) follow(ctx context.Context, term Term) {
	isWriter := i.term.Epoch > 0
	switch {
	case !isWriter && (term.Ends || bootTime() >= term.Stop || i.sidecar.ended(term.Epoch)):
		i.next = Term{}
		if term.Ends {
			i.report(term.Epoch) // the sidecar may have let this container start a writer
		}
	case !isWriter:
		i.next = term
		if !i.changes && !i.leaves && i.hook == nil {
			i.promote(ctx)
		}
	case term.Epoch != i.term.Epoch: // the pod does not hold the Lease
		i.term.Stop, i.term.Kill = 0, 0
	case i.ends:
	case term.Ends:
		i.demote(ctx)
	default:
		i.term = term
	}
}

// promote makes the reader the writer.
func (i *incarnation) promote(ctx context.Context) {
	if len(i.hooks.Promote) == 0 {
		i.restart(ctx, bootTime()+changePatience)
		return
	}
	if !i.sidecar.startsWriter(i.next) {
		return // another term follows
	}
	i.term, i.next = i.next, Term{}
	i.log.Info("Running the promote hook", "epoch", i.term.Epoch)
	i.runHook(ctx, i.hooks.Promote)
}

// demote makes the writer a reader.
func (i *incarnation) demote(ctx context.Context) {
	i.ends = true
	if i.leaves {
		return // the main process has its signal, and the alarm of the term rings
	}
	if len(i.hooks.Demote) == 0 || i.hook != nil || i.changes {
		i.restart(ctx, i.term.Kill)
		return
	}
	i.log.Info("Running the demote hook", "epoch", i.term.Epoch)
	i.runHook(ctx, i.hooks.Demote)
}

// restart makes the main process end, and start again in the other role.
func (i *incarnation) restart(ctx context.Context, deadline time.Duration) {
	i.changes, i.deadline = true, deadline
	i.log.Info("The role changes: the main process must stop and start again", "role", i.role())
	i.order(ctx, syscall.SIGTERM)
}

// runHook starts a hook. The start of a process can block, and must not delay the end of a writer.
func (i *incarnation) runHook(ctx context.Context, argv []string) {
	role := signal.WriterRole
	if i.ends {
		role = signal.ReaderRole
	}
	env := roleEnvironment(os.Environ(), role, i.term.Epoch)
	i.hook = make(chan error, 1)
	go func(result chan<- error) {
		ended, err := i.children.start(argv, env)
		if err != nil {
			result <- err
			return
		}
		select {
		case status := <-ended:
			if code := exitCode(status); code != 0 {
				result <- fmt.Errorf("exit code %d", code)
				return
			}
			result <- nil
		case <-ctx.Done():
		}
	}(i.hook)
}

// hookEnded continues after a hook.
func (i *incarnation) hookEnded(ctx context.Context, err error) {
	switch {
	case i.changes:
	case err != nil:
		i.log.Error("A hook failed: the main process starts again as a reader", "error", err)
		i.ends = true
		i.restart(ctx, i.term.Kill)
	case i.ends:
		epoch := i.term.Epoch
		i.term, i.ends = Term{}, false
		i.log.Info("The main process is a reader")
		i.report(epoch)
	default:
		i.log.Info("The main process is the writer", "epoch", i.term.Epoch)
		i.sidecar.reportStart(i.term.Epoch)
	}
}

func (i *incarnation) report(epoch int64) {
	if err := i.sidecar.reportWriterEnd(epoch); err != nil {
		i.log.Warn("The end of the tenure is not reported", "error", err)
	}
}

// rings returns a channel that receives at the next deadline. Nil: there is none.
func (i *incarnation) rings() <-chan struct{} {
	switch {
	case i.term.Epoch > 0 && !i.ends:
		return i.clock.until(i.term.Stop)
	case i.term.Epoch > 0:
		return i.clock.until(i.term.Kill)
	case i.changes:
		return i.clock.until(i.deadline)
	}
	return nil
}

// ring enforces the deadlines.
func (i *incarnation) ring(ctx context.Context) {
	now := bootTime()
	switch {
	case i.term.Epoch > 0 && now >= i.term.Kill:
		killAndExit(i.log)
	case i.term.Epoch > 0 && !i.ends && now >= i.term.Stop:
		i.log.Warn("The Lease was not renewed in time: the writer must stop")
		i.demote(ctx)
	case i.term.Epoch == 0 && i.changes && now >= i.deadline:
		i.log.Warn("The reader does not stop: killing every process of the container")
		i.deadline = now + changePatience
		i.order(ctx, syscall.SIGKILL)
	}
}
