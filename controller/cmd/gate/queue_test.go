package main

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	ossignal "os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/statefulsingleton/statefulsingleton/controller/signal"
)

// listenCommand is the first argument of the test binary that makes it the main process of a container: it answers each client
// on the port with its epoch, until it gets SIGTERM.
const listenCommand = "listen"

func listen(port string) int {
	terminated := make(chan os.Signal, 1)
	ossignal.Notify(terminated, syscall.SIGTERM)
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(conn, os.Getenv(signal.EpochEnv))
			_ = conn.Close()
		}
	}()
	<-terminated
	return 0
}

// queueing is a fenced pod that queues clients of container app.
type queueing struct {
	*fencedPod
	port string
	app  *process
}

// startQueueing returns a standby that knows from the last holder how the main process listens.
func startQueueing(t *testing.T, seconds int) *queueing {
	t.Helper()
	t.Parallel()
	free, err := net.Listen("tcp", ":0")
	must(t, err)
	_, port, _ := net.SplitHostPort(free.Addr().String())
	must(t, free.Close())
	q := &queueing{fencedPod: newFenced(t, seconds), port: port}
	q.sidecar.Env = append(q.sidecar.Env, signal.QueueEnv+"=60")
	q.grantTo("db-0_other", 6)
	q.annotateLease(signal.QueueAnnotation, `{"epoch":6,"ports":{"`+port+`":"Dual"}}`)
	q.startSidecar()
	q.startApp("/supervisor", listenCommand, port)
	return q
}

func (q *queueing) startApp(argv ...string) {
	q.t.Helper()
	c := q.supervised()
	c.Argv = append([]string{"/gate", "wrap", "--"}, argv...)
	c.Env, c.NoNewPrivileges = append(c.Env, signal.ContainerEnv+"=app", signal.PortsEnv+"="+q.port), true
	q.app = q.start(c)
	q.app.says("Held")
}

func (q *queueing) next(uid string) { q.annotateLease(signal.NextAnnotation, uid) }

// report returns what the holder reports about its clients.
func (q *queueing) report() (report signal.QueueReport) {
	q.t.Helper()
	q.with(func() {
		annotations, _ := q.last()
		text, _ := annotations[signal.QueueAnnotation].(string)
		var err error
		report, err = signal.ParseQueueReport(text)
		must(q.t, err)
	})
	return report
}

// connect connects to the port. It returns nil if the connection is refused.
func (q *queueing) connect() net.Conn {
	conn, err := net.Dial("tcp", "127.0.0.1:"+q.port)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	must(q.t, err)
	q.t.Cleanup(func() { _ = conn.Close() })
	must(q.t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

func (q *queueing) awaitConnect() (client net.Conn) {
	q.t.Helper()
	eventually(q.t, "clients can connect", func() bool { client = q.connect(); return client != nil })
	return client
}

// wantProbe fails unless the probe of the container, which would itself fail, has the result.
func (q *queueing) wantProbe(kind string, want bool) {
	q.t.Helper()
	if out, err := q.app.inside("/gate", "probe", kind, "--", "false").CombinedOutput(); (err == nil) != want {
		q.t.Errorf("%s probe: %v %s", kind, err, out)
	}
}

// The gate does the liveness check of a container only while its main process runs. The main process does not speak HTTP.
func TestQueueLiveness(t *testing.T) {
	q := startQueueing(t, 60)
	alive := func(probe string) bool {
		value := base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"probe":{%q:{"port":%s}}}`, probe, q.port))
		cmd := q.app.inside("/gate", "probe", "liveness")
		cmd.Env = append(cmd.Environ(), signal.LivenessEnv+"="+value)
		return cmd.Run() == nil
	}
	if !alive("httpGet") || !alive("tcpSocket") {
		t.Error("a container that is held is not alive")
	}
	q.grant(7)
	wantEpoch(t, q.awaitConnect(), "7")
	if !alive("tcpSocket") {
		t.Error("a main process that listens is not alive")
	}
	if alive("httpGet") {
		t.Error("a main process that answers with an error is alive")
	}
}

func wantEpoch(t *testing.T, client net.Conn, want string) {
	t.Helper()
	if line, err := bufio.NewReader(client).ReadString('\n'); line != want+"\n" {
		t.Errorf("answered %q, %v, want epoch %s", line, err, want)
	}
}

// Clients that connect before the main process runs are answered by it.
func TestQueue(t *testing.T) {
	q := startQueueing(t, 60)
	if q.connect() != nil {
		t.Error("clients can connect before the pod runs next")
	}
	q.app.wantStarted(false)
	q.wantProbe("liveness", true)
	q.wantProbe("readiness", false)

	q.next(podUID)
	client := q.awaitConnect()
	q.app.wantStarted(true)
	q.wantProbe("liveness", true)
	q.wantProbe("readiness", true)
	q.running.kill()
	q.startSidecar() // the queue outlives it

	q.grant(7)
	wantEpoch(t, client, "7")
	q.wantProbe("readiness", false)
	eventually(t, "the pod reports the start and its ports", func() bool {
		report := q.report()
		return report.Epoch == 7 && report.Reason == signal.QueueHandedOver && report.Message == ""
	})
	number, _ := strconv.Atoi(q.port)
	if shape := q.report().Ports[uint16(number)]; shape != "Dual" {
		t.Errorf("shape %q", shape)
	}
}

// A main process reports on which ports it listens, also if nothing was queued for it.
func TestQueueLearns(t *testing.T) {
	q := startQueueing(t, 60)
	q.annotateLease(signal.QueueAnnotation, "")
	q.next(podUID) // without a known shape, it queues nothing
	q.grant(7)
	number, _ := strconv.Atoi(q.port)
	eventually(t, "the pod reports its ports", func() bool { return q.report().Ports[uint16(number)] == "Dual" })
	if report := q.report(); report.Epoch != 7 || report.Reason != "" {
		t.Errorf("report %+v", report)
	}
}

// Clients of a pod that does not run next after all are let go.
func TestQueueLeaves(t *testing.T) {
	q := startQueueing(t, 60)
	q.next(podUID)
	client := q.awaitConnect()
	q.next("another")
	if _, err := io.ReadAll(client); err == nil {
		t.Error("the client was answered")
	}
	eventually(t, "clients are refused", func() bool { return q.connect() == nil })
	eventually(t, "the container is not ready", func() bool { return q.app.inside("/gate", "probe", "readiness", "--", "true").Run() != nil })
	q.wantProbe("liveness", true)
	q.grant(7)
	wantEpoch(t, q.awaitConnect(), "7")
	eventually(t, "the report", func() bool { return q.report().Epoch == 7 && q.report().Message != "" })
}

// A main process that ends before it accepts its clients loses them, and starts again without a queue.
func TestQueueOfACrash(t *testing.T) {
	q := startQueueing(t, 60)
	q.app.kill()
	q.startApp("/bin/false")
	q.next(podUID)
	client := q.awaitConnect()
	q.grant(7)
	if _, err := io.ReadAll(client); err == nil {
		t.Error("the client was answered")
	}
	q.app.wantExit(1)
	q.startApp("/supervisor", listenCommand, q.port)
	wantEpoch(t, q.awaitConnect(), "7")
}

// A frozen gate keeps its clients.
func TestQueueOfAFrozenGate(t *testing.T) {
	q := startQueueing(t, 60)
	q.next(podUID)
	q.awaitConnect()
	q.app.send(syscall.SIGSTOP)
	client := q.awaitConnect()
	q.grant(7)
	q.awaitRenewals(1)
	q.app.send(syscall.SIGCONT)
	wantEpoch(t, client, "7")
}

// A pod that is deleted still serves for the delay of the Lease. Another stop is not delayed.
func TestQueueDelaysTheStop(t *testing.T) {
	for name, tc := range map[string]struct {
		retire      bool
		delay       string
		least, most time.Duration
	}{
		"deleted":                    {true, "2000", 2 * time.Second, patience},
		"deleted, without a standby": {true, "", 0, 1500 * time.Millisecond},
		"not deleted":                {false, "", 0, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			q := startQueueing(t, 60)
			q.grant(7)
			wantEpoch(t, q.awaitConnect(), "7")
			if tc.retire {
				q.annotateLease(signal.DelayAnnotation, tc.delay)
				q.retire()
				q.awaitState(`"retired":true`)
			}
			begun := time.Now()
			q.app.send(syscall.SIGTERM)
			if tc.least > 0 {
				wantEpoch(t, q.awaitConnect(), "7")
			}
			q.app.wantExit(0)
			if took := time.Since(begun); took < tc.least || took > tc.most {
				t.Errorf("it stopped after %s, want %s to %s", took, tc.least, tc.most)
			}
		})
	}
}

// A delayed stop does not outlive the term.
func TestQueueDelayEndsWithTheLease(t *testing.T) {
	q := startQueueing(t, 10)
	q.grant(7)
	wantEpoch(t, q.awaitConnect(), "7")
	q.annotateLease(signal.DelayAnnotation, "3600000")
	q.retire()
	q.awaitState(`"retired":true`)
	q.app.send(syscall.SIGTERM)
	q.grantTo("db-2_other", 8)
	_ = q.app.exit()
}
