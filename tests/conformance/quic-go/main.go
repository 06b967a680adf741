// Command quic-go is an HTTP/3 client for the interoperability cases, whose names are those of quic-interop-runner.
//
//	quic-go CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS
//
// It opens connections, sends requests on each, and prints `response STATUS LENGTH SHA256` for each response, and
// `fact NAME` for what only a client can observe. The exit code is 127 if quic-go cannot do the case.
package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	serverName     = "localhost"
	unsupported    = 127
	patience       = 2 * time.Minute
	uploadBytes    = 100_000
	smallWindow    = 32 << 10
	migrationAfter = 64 << 10
)

func main() {
	if len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: quic-go CASE ADDRESS AUTHORITY CONNECTIONS REQUESTS")
		os.Exit(1)
	}
	if os.Args[1] == "chacha20" {
		// Go's crypto/tls chooses the cipher suites of TLS 1.3 itself.
		os.Exit(unsupported)
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "quic-go:", err)
		os.Exit(2)
	}
}

func run(arguments []string) error {
	counts := make([]int, 2)
	for at := range counts {
		count, err := strconv.Atoi(arguments[3+at])
		if err != nil {
			return err
		}
		counts[at] = count
	}
	address, err := net.ResolveUDPAddr("udp", arguments[1])
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(arguments[2])
	if err != nil {
		return err
	}
	client := newClient(arguments[0], address, authority, counts[1])
	return client.runConnections(counts[0])
}

// client runs one case.
type client struct {
	name     string
	address  *net.UDPAddr
	tls      *tls.Config
	quic     *quic.Config
	requests int
}

func newClient(name string, address *net.UDPAddr, authority []byte, requests int) *client {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	c := &client{
		name:     name,
		address:  address,
		requests: requests,
		tls: &tls.Config{
			RootCAs:            roots,
			ServerName:         serverName,
			NextProtos:         []string{http3.NextProtoH3},
			ClientSessionCache: tls.NewLRUClientSessionCache(8),
		},
		quic: &quic.Config{HandshakeIdleTimeout: patience, MaxIdleTimeout: patience, Tracer: traceKeyUpdates},
	}
	switch name {
	case "transfer":
		c.quic.InitialStreamReceiveWindow = smallWindow
		c.quic.InitialConnectionReceiveWindow = smallWindow
	case "versionnegotiation":
		c.quic.Versions = []quic.Version{quic.Version2, quic.Version1}
	}
	return c
}

// runConnections runs the connections of the case: one after another if a later one resumes the session of an earlier
// one, else all at once.
func (c *client) runConnections(count int) error {
	if c.name == "resumption" || c.name == "zerortt" {
		for number := range count {
			if err := c.runConnection(number > 0 && c.name == "zerortt"); err != nil {
				return fmt.Errorf("connection %d: %w", number, err)
			}
		}
		return nil
	}
	return all(count, func(int) error { return c.runConnection(false) })
}

// all runs a function so many times at once.
func all(count int, one func(int) error) error {
	failures := make([]error, count)
	var running sync.WaitGroup
	for number := range count {
		running.Go(func() { failures[number] = one(number) })
	}
	running.Wait()
	return errors.Join(failures...)
}

func (c *client) runConnection(early bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	transport, err := newTransport()
	if err != nil {
		return err
	}
	defer transport.Close()
	connection, err := c.dial(ctx, transport, early)
	if err != nil {
		return err
	}
	defer connection.CloseWithError(0, "")
	h3 := (&http3.Transport{}).NewClientConn(connection)
	if err := all(c.requests, func(int) error { return c.exchange(ctx, h3, connection, early) }); err != nil {
		return err
	}
	if early && connection.ConnectionState().Used0RTT {
		fmt.Println("fact early-data")
	}
	if c.name == "resumption" || c.name == "zerortt" {
		// The ticket comes after the handshake; the response of a later request comes after the ticket.
		return c.exchange(ctx, h3, connection, false)
	}
	return nil
}

func newTransport() (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{})
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: socket}, nil
}

func (c *client) dial(ctx context.Context, transport *quic.Transport, early bool) (*quic.Conn, error) {
	if early {
		return transport.DialEarly(ctx, c.address, c.tls, c.quic)
	}
	return transport.Dial(ctx, c.address, c.tls, c.quic)
}

// exchange sends a request and prints its response.
func (c *client) exchange(ctx context.Context, h3 *http3.ClientConn, connection *quic.Conn, early bool) error {
	method, body := http.MethodGet, io.Reader(nil)
	switch {
	case early:
		method = http3.MethodGet0RTT
	case c.name == "http3":
		method, body = http.MethodPost, strings.NewReader(strings.Repeat("x", uploadBytes))
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+serverName+"/", body)
	if err != nil {
		return err
	}
	response, err := h3.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	digest := sha256.New()
	length := int64(0)
	if c.name == "connectionmigration" {
		if length, err = io.CopyN(digest, response.Body, migrationAfter); err != nil {
			return err
		}
		if err := migrate(ctx, connection); err != nil {
			return err
		}
	}
	rest, err := io.Copy(digest, response.Body)
	if err != nil {
		return err
	}
	fmt.Printf("response %d %d %x\n", response.StatusCode, length+rest, digest.Sum(nil))
	return nil
}

// migrate moves the connection to another socket, after it has validated the path (RFC 9000, section 9).
func migrate(ctx context.Context, connection *quic.Conn) error {
	transport, err := newTransport()
	if err != nil {
		return err
	}
	path, err := connection.AddPath(transport)
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		return err
	}
	return path.Switch()
}
