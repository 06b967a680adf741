// Command connections opens connections at a steady rate, or serves them.
//
//	connections load -rate N -timeout DURATION -host HOST ADDRESS:PORT
//	connections serve ADDRESS
//
// A load opens each connection at its time, whether earlier ones have ended or not, sends one request and reads the
// response. At SIGTERM it stops, and prints a line for each connection: the time at which it began in seconds since the
// epoch, its source port, its duration in seconds, and "ok" with the pod that answered, or the failure.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// Connections that are open at a time; more would be a failure of the load itself.
	mostOpen     = 10_000
	tick         = time.Millisecond
	drainTimeout = 20 * time.Second
)

func main() {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := run(stop, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "connections:", err)
		os.Exit(1)
	}
}

func run(stop context.Context, words []string) error {
	switch {
	case len(words) == 2 && words[0] == "serve":
		return serve(stop, words[1])
	case len(words) > 1 && words[0] == "load":
		return startLoad(stop, words[1:])
	}
	return errors.New("usage: connections load [FLAG]... ADDRESS:PORT | connections serve ADDRESS")
}

func serve(stop context.Context, address string) error {
	body, err := json.Marshal(map[string]string{"pod": os.Getenv("POD_NAME")})
	if err != nil {
		return err
	}
	answer := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}
	server := http.Server{Addr: address, Handler: http.HandlerFunc(answer)}
	ended := make(chan error, 1)
	go func() { ended <- server.ListenAndServe() }()
	select {
	case err := <-ended:
		return err
	case <-stop.Done():
	}
	left, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	return server.Shutdown(left)
}

// result is what became of one connection.
type result struct {
	begun   time.Time
	port    int
	took    time.Duration
	outcome string
}

// load is a steady stream of new connections to one address.
type load struct {
	target  string
	request string
	timeout time.Duration
	mutex   sync.Mutex
	results []result
	open    chan struct{}
	running sync.WaitGroup
}

func startLoad(stop context.Context, words []string) error {
	flags := flag.NewFlagSet("load", flag.ContinueOnError)
	rate := flags.Float64("rate", 1000, "connections a second")
	timeout := flags.Duration("timeout", time.Second, "longest time until the response is complete")
	host := flags.String("host", "web", "host of the requests")
	if err := flags.Parse(words); err != nil {
		return err
	}
	if flags.NArg() != 1 || *rate <= 0 {
		return errors.New("load needs one address, and a rate above 0")
	}
	request := fmt.Sprintf("GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", *host)
	it := load{target: flags.Arg(0), request: request, timeout: *timeout, open: make(chan struct{}, mostOpen)}
	it.run(stop, *rate)
	return it.print()
}

// run opens connections until it is stopped, and returns when all have ended.
func (l *load) run(stop context.Context, rate float64) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	begun, opened := time.Now(), 0.0
	for {
		select {
		case <-stop.Done():
			l.running.Wait()
			return
		case <-ticker.C:
		}
		for ; opened < time.Since(begun).Seconds()*rate; opened++ {
			l.start()
		}
	}
}

func (l *load) start() {
	select {
	case l.open <- struct{}{}:
	default:
		l.record(result{begun: time.Now(), outcome: "too many open connections"})
		return
	}
	l.running.Go(func() {
		defer func() { <-l.open }()
		l.record(l.connect())
	})
}

func (l *load) record(it result) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.results = append(l.results, it)
}

// connect opens one connection and reads the response to one request.
func (l *load) connect() result {
	it := result{begun: time.Now()}
	dialer := net.Dialer{Timeout: l.timeout, Control: func(network, _ string, raw syscall.RawConn) error {
		return bindToAnyPort(network, raw, &it.port)
	}}
	connection, err := dialer.Dial("tcp", l.target)
	if err == nil {
		defer connection.Close()
		_ = connection.SetDeadline(it.begun.Add(l.timeout))
		it.outcome, err = l.exchange(connection)
	}
	if err != nil {
		it.outcome = describe(err)
	}
	it.took = time.Since(it.begun)
	return it
}

func (l *load) exchange(connection net.Conn) (string, error) {
	if _, err := io.WriteString(connection, l.request); err != nil {
		return "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Sprintf("status %d", response.StatusCode), nil
	}
	var answer struct{ Pod string }
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", err
	}
	return "ok " + answer.Pod, nil
}

// bindToAnyPort chooses the source port before the connection is opened, so that it is known if that fails.
func bindToAnyPort(network string, raw syscall.RawConn, port *int) error {
	var failed error
	err := raw.Control(func(descriptor uintptr) {
		fd := int(descriptor)
		if strings.HasSuffix(network, "6") {
			failed = syscall.Bind(fd, &syscall.SockaddrInet6{})
		} else {
			failed = syscall.Bind(fd, &syscall.SockaddrInet4{})
		}
		if failed != nil {
			return
		}
		var bound syscall.Sockaddr
		bound, failed = syscall.Getsockname(fd)
		switch address := bound.(type) {
		case *syscall.SockaddrInet4:
			*port = address.Port
		case *syscall.SockaddrInet6:
			*port = address.Port
		}
	})
	return errors.Join(err, failed)
}

func describe(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	}
	return strings.ReplaceAll(err.Error(), "\n", " ")
}

func (l *load) print() error {
	out := bufio.NewWriter(os.Stdout)
	for _, it := range l.results {
		begun := float64(it.begun.UnixNano()) / 1e9
		fmt.Fprintf(out, "%.6f %d %.6f %s\n", begun, it.port, it.took.Seconds(), it.outcome)
	}
	return out.Flush()
}
