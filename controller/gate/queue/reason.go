package queue

import "fmt"

// Reason is why a queue is closed, in the form of the reason of a Kubernetes condition.
type Reason string

// Reasons why the queue is closed although nothing is wrong with it.
const (
	HandedOver       Reason = "HandedOver"
	Stopped          Reason = "Stopped"
	ApplicationEnded Reason = "ApplicationEnded"
	NotBound         Reason = "NotBound"
)

// Reasons why there can be no queue for the container.
const (
	CannotListen    Reason = "CannotListen"
	CannotStart     Reason = "CannotStart"
	NoNewPrivileges Reason = "NoNewPrivileges"
	KernelTooOld    Reason = "KernelTooOld"
	NoSeccomp       Reason = "NoSeccomp"
	OtherListener   Reason = "OtherListener"
)

// Reasons why the queue cannot safely answer for the application.
const (
	ForeignABI   Reason = "ForeignABI"
	IOUring      Reason = "IOUring"
	OtherNetwork Reason = "OtherNetwork"
	OtherUser    Reason = "OtherUser"
	Inaccessible Reason = "Inaccessible"
	OneAddress   Reason = "OneAddress"
	OtherShape   Reason = "OtherShape"
	Shared       Reason = "Shared"
	Polled       Reason = "Polled"
	SocketOption Reason = "SocketOption"
	TooMany      Reason = "TooMany"
)

var messages = map[Reason]string{
	HandedOver:       "The application accepts the queued connections.",
	Stopped:          "The gate closed the queue, because the application stops or does not start in this pod.",
	ApplicationEnded: "The application ended before it accepted the queued connections. Its log says why.",
	NotBound:         "The application did not listen on every queued port in time. List only ports on which it listens, or allow it more time.",

	CannotListen:    "The gate cannot listen on a port of the container. List only ports that no other container of the pod uses.",
	CannotStart:     "The gate cannot prepare the start of the application. Look at the container's limits for processes, open files and memory.",
	NoNewPrivileges: "The container may gain privileges. Set securityContext.allowPrivilegeEscalation to false.",
	KernelTooOld:    "The kernel does not support the queue. Use nodes with Linux 5.19 or later, and no sandbox such as gVisor.",
	NoSeccomp:       "The container cannot use seccomp(2). Set its seccomp profile to RuntimeDefault, and use no sandbox such as gVisor.",
	OtherListener:   "Another program receives the seccomp notifications of the container. Remove listenerPath from its seccomp profile.",

	ForeignABI:   "A 32-bit or x32 program binds a socket or sets up an io_uring. Use programs that are built for the node's architecture.",
	IOUring:      "The application uses io_uring, which the gate cannot follow. Set its seccomp profile to RuntimeDefault.",
	OtherNetwork: "The application uses another network namespace. Turn off the sandbox that it creates.",
	OtherUser:    "The application listens as another user than the one that the container starts with. Set securityContext.runAsUser to the user of the application.",
	Inaccessible: "The gate cannot read or replace what the application binds. Check that the application is dumpable and that kernel.yama.ptrace_scope of the node is 0 or 1.",
	OneAddress:   "The application listens on one address. Configure it to listen on all addresses.",
	OtherShape:   "The application listens on other IP families than the queue does.",
	Shared:       "The application has several descriptors of a socket that it binds, so the gate cannot replace the socket.",
	Polled:       "The application adds a socket to epoll before it binds, so the gate cannot replace the socket.",
	SocketOption: "The application sets an option that the gate cannot set on a queued socket. Remove the option from its configuration.",
	TooMany:      "The container has too many processes, open files or sockets for the gate to find the one that the application binds.",
}

// Message returns what the reason means and what to change, for a person. It is empty for a reason that this package does
// not define.
func (r Reason) Message() string { return messages[r] }

// Closed is why a queue was closed, or why Listen opened none.
type Closed struct {
	Reason Reason
	// Cause is what was seen. Nil: the reason says it all.
	Cause error
	// Lost is the number of waiting clients whose connections the kernel has reset.
	Lost int
}

// Error returns the reason, its message and the cause.
func (c Closed) Error() string {
	text := string(c.Reason)
	if message := c.Reason.Message(); message != "" {
		text += ": " + message
	}
	if c.Cause != nil {
		text += fmt.Sprintf(" (%v)", c.Cause)
	}
	return text
}

// Unwrap returns the cause.
func (c Closed) Unwrap() error { return c.Cause }
