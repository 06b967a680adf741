// Command sign-in runs oauth2-proxy, with an OpenID provider of one user.
//
// The arguments are the program of oauth2-proxy and the URL of the application. Both servers have free ports; it prints
// the address of oauth2-proxy and the URL of the provider. The user is `test-user@localhost`, with the password
// `verysecure`.
package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sign-in OAUTH2-PROXY URL")
		os.Exit(1)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "sign-in:", err)
		os.Exit(1)
	}
}

func run(program, url string) error {
	redirect := url + "/oauth2/callback"
	listener, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	issuer := fmt.Sprintf("http://localhost:%d/", listener.Addr().(*net.TCPAddr).Port)
	storage.RegisterClients(storage.WebClient("web", "secret", redirect))
	store := storage.NewStorage(storage.NewUserStore(issuer))
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	go http.Serve(listener, exampleop.SetupServer(issuer, store, logger, false))

	// The address is known, and accepts connections, before oauth2-proxy has started.
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	socket, err := own.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	// The protocol of systemd for sockets: the process whose number this is gets them.
	proxy := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@"`, program,
		"--http-address=fd:3",
		"--reverse-proxy",
		"--set-xauthrequest",
		"--upstream=static://200",
		"--provider=oidc",
		"--oidc-issuer-url="+issuer,
		"--client-id=web",
		"--client-secret=secret",
		"--redirect-url="+redirect,
		"--cookie-secret=0123456789abcdef0123456789abcdef",
		"--cookie-secure=false",
		"--email-domain=*",
		"--code-challenge-method=S256",
		"--whitelist-domain=app.localhost:*",
	)
	proxy.ExtraFiles = []*os.File{socket}
	proxy.Stderr = os.Stderr
	proxy.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := proxy.Start(); err != nil {
		return err
	}
	fmt.Println(own.Addr(), issuer)
	return proxy.Wait()
}
