package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// As a cluster's DNS has it for a headless Service.
	ttlSeconds      = 5
	maxMessageBytes = 512
)

// resolve is a DNS server with one name, for which it gives all servers in an order drawn anew each time, as CoreDNS
// does for a headless Service. It writes a line for each question about their addresses.
func resolve(words []string) error {
	flags := flag.NewFlagSet("resolve", flag.ExitOnError)
	name := flags.String("name", "", "the name, with a dot at its end")
	file := flags.String("servers", "", "a file of their addresses, which is read for each question")
	if err := flags.Parse(words[1:]); err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", words[0])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	question := make([]byte, maxMessageBytes)
	for {
		count, client, err := socket.ReadFrom(question)
		if err != nil {
			return err
		}
		answer, err := answerTo(question[:count], *name, *file)
		if err != nil {
			continue
		}
		if _, err := socket.WriteTo(answer, client); err != nil {
			return err
		}
	}
}

func answerTo(message []byte, name, file string) ([]byte, error) {
	var asked dnsmessage.Message
	if err := asked.Unpack(message); err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{Header: asked.Header, Questions: asked.Questions}
	reply.Response, reply.Authoritative = true, true
	for _, question := range asked.Questions {
		switch {
		case question.Name.String() != name:
			reply.RCode = dnsmessage.RCodeNameError
		case question.Type == dnsmessage.TypeA:
			fmt.Println(question.Name)
			addresses, err := servers(file)
			if err != nil {
				return nil, err
			}
			reply.Answers = append(reply.Answers, records(question.Name, addresses)...)
		}
	}
	return reply.Pack()
}

func servers(file string) ([]netip.Addr, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, word := range strings.Fields(string(text)) {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return nil, err
		}
		found = append(found, address)
	}
	return found, nil
}

func records(name dnsmessage.Name, addresses []netip.Addr) []dnsmessage.Resource {
	found := make([]dnsmessage.Resource, len(addresses))
	for place, number := range rand.Perm(len(addresses)) {
		found[place] = dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttlSeconds},
			Body:   &dnsmessage.AResource{A: addresses[number].As4()},
		}
	}
	return found
}
