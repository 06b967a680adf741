// Command exec-stream runs a command for `kubectl exec`, over a connection that it inherits as its standard input.
//
//	exec-stream COMMAND [ARGUMENT]... <connection
//
// The first bytes of the connection are the request of the API server, which chooses SPDY or WebSocket. The library of
// the real kubelet speaks both; this program only connects its streams to the process. If the client disconnects, the
// process group is killed. The command inherits the environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	// The kubelet's default of streamingConnectionIdleTimeout.
	idleTimeout = 4 * time.Hour
	headTimeout = 30 * time.Second
	killTimeout = 5 * time.Second
	// Exit code of a process that a signal ended, before the number of the signal is added.
	signalBase = 128
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "exec-stream:", err)
		os.Exit(1)
	}
}

// serve answers the one request of the connection and returns when the command has ended.
func serve(command []string) error {
	if len(command) == 0 {
		return errors.New("usage: exec-stream COMMAND [ARGUMENT]... <connection")
	}
	inherited, err := net.FileConn(os.Stdin)
	if err != nil {
		return fmt.Errorf("standard input is not a connection: %w", err)
	}
	connection := &watchedConn{Conn: inherited, gone: make(chan struct{})}
	done := make(chan struct{})
	handler := func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		answer(w, r, processRunner{gone: connection.gone}, command)
	}
	server := http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: headTimeout}
	server.SetKeepAlivesEnabled(false)
	go func() { _ = server.Serve(listenOnce(connection)) }()
	select {
	case <-done:
	case <-connection.gone:
		// The handler ends the command. If there was no request, there is none.
		select {
		case <-done:
		case <-time.After(killTimeout):
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return server.Shutdown(ctx)
}

func answer(w http.ResponseWriter, r *http.Request, executor remotecommand.Executor, command []string) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, executor, "", "", "", command, options, idleTimeout,
		remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

// processRunner runs commands as child processes, until the client has gone.
type processRunner struct {
	gone <-chan struct{}
}

// ExecInContainer implements remotecommand.Executor. The command already enters the container.
func (p processRunner) ExecInContainer(_ context.Context, _, _, _ string, argv []string, in io.Reader,
	out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	command := exec.Command(argv[0], argv[1:]...)
	if tty {
		return p.runInTerminal(command, in, out, resize)
	}
	// Sizes of a terminal that there is not; the stream must be read to its end.
	go func() {
		for range resize {
		}
	}()
	return p.runWithPipes(command, in, out, errOut)
}

func (p processRunner) runWithPipes(command *exec.Cmd, in io.Reader, out, errOut io.WriteCloser) error {
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A typed nil would be a writer.
	if out != nil {
		command.Stdout = out
	}
	if errOut != nil {
		command.Stderr = errOut
	}
	if in != nil {
		// With a pipe of our own, Wait does not wait for the client to close its input.
		pipe, err := command.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			defer pipe.Close()
			_, _ = io.Copy(pipe, in)
		}()
	}
	if err := command.Start(); err != nil {
		return err
	}
	defer p.killWhenGone(command.Process.Pid)()
	return exitError(command.Wait())
}

func (p processRunner) runInTerminal(command *exec.Cmd, in io.Reader, out io.Writer,
	resize <-chan remotecommand.TerminalSize) error {
	// Starts the command in a session of its own.
	terminal, err := pty.Start(command)
	if err != nil {
		return err
	}
	defer terminal.Close()
	defer p.killWhenGone(command.Process.Pid)()
	go func() {
		for size := range resize {
			_ = pty.Setsize(terminal, &pty.Winsize{Rows: size.Height, Cols: size.Width})
		}
	}()
	if in != nil {
		go func() { _, _ = io.Copy(terminal, in) }()
	}
	if out != nil {
		// Ends with EIO when the last process has closed the terminal.
		_, _ = io.Copy(out, terminal)
	}
	return exitError(command.Wait())
}

// killWhenGone kills the process group if the client disconnects, until the returned function is called.
func (p processRunner) killWhenGone(pid int) func() {
	ended := make(chan struct{})
	go func() {
		select {
		case <-p.gone:
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		case <-ended:
		}
	}()
	return func() { close(ended) }
}

// exitError returns the exit code as the library expects it. A signal counts like in a shell.
func exitError(err error) error {
	var failed *exec.ExitError
	if !errors.As(err, &failed) {
		return err
	}
	code := failed.ExitCode()
	if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		code = signalBase + int(status.Signal())
	}
	return utilexec.CodeExitError{Err: err, Code: code}
}

// watchedConn closes a channel when the other side has closed the connection.
type watchedConn struct {
	net.Conn
	once sync.Once
	gone chan struct{}
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	var timeout net.Error
	if err != nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
		c.once.Do(func() { close(c.gone) })
	}
	return n, err
}

// singleListener accepts one connection; then it blocks until it is closed.
type singleListener struct {
	connection chan net.Conn
	closed     chan struct{}
	once       sync.Once
}

func listenOnce(connection net.Conn) *singleListener {
	listener := &singleListener{connection: make(chan net.Conn, 1), closed: make(chan struct{})}
	listener.connection <- connection
	return listener
}

func (l *singleListener) Accept() (net.Conn, error) {
	select {
	case connection := <-l.connection:
		return connection, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *singleListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *singleListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
