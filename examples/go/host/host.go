// Package host has one connection to any host of a cluster, and the calls over it.
package host

import (
	"context"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"
	"orders/gen-go/foqsthrift"
)

var (
	Namespace = env("FOQS_NAMESPACE", "default")
	token     = env("FOQS_TOKEN", "")
	Context   = &foqsthrift.RequestContext{Token: &token, TimeoutMs: thrift.Int64Ptr(10_000)}
	addresses = strings.Split(env("FOQS_ADDRESS", "127.0.0.1:7707"), ",")
	settings  = &thrift.TConfiguration{ConnectTimeout: 5 * time.Second, SocketTimeout: 30 * time.Second,
		TBinaryStrictRead: thrift.BoolPtr(true), TBinaryStrictWrite: thrift.BoolPtr(true)}
	lock   sync.Mutex // a client of Thrift makes one call at a time
	open   thrift.TTransport
	client *foqsthrift.FoqsClient
	turn   int
)

// env returns a variable of the environment, or another value if it is empty.
func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// Refused returns the error of one item as that of a request.
func Refused(item *foqsthrift.ItemError) error {
	return &foqsthrift.RequestError{Code: item.Code, Message: item.Message, RetryAfterMs: item.RetryAfterMs}
}

// Again says if a call may be repeated. An error that no host has sent is of the connection.
func Again(err error) bool {
	said, sent := err.(*foqsthrift.RequestError)
	return err != nil && (!sent || said.Code == foqsthrift.ErrorCode_OVERLOADED ||
		said.Code == foqsthrift.ErrorCode_UNAVAILABLE || said.Code == foqsthrift.ErrorCode_OUTCOME_UNKNOWN)
}

func once(request func(*foqsthrift.FoqsClient) error) (err error) {
	lock.Lock()
	defer lock.Unlock()
	if open == nil {
		open = thrift.NewTFramedTransportConf(thrift.NewTSocketConf(addresses[turn%len(addresses)], settings), settings)
		client = foqsthrift.NewFoqsClientFactory(open, thrift.NewTBinaryProtocolFactoryConf(settings))
		turn++
		err = open.Open()
	}
	if err == nil {
		err = request(client)
	}
	if Again(err) {
		open.Close()
		open = nil
	}
	return err
}

// Call repeats what may be repeated, each time at the next host, until ctx ends.
func Call(ctx context.Context, request func(*foqsthrift.FoqsClient) error) error {
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := once(request)
		if !Again(err) || ctx.Err() != nil {
			return err
		}
		log.Printf("trying again: %v", err)
		if pause > 5*time.Second {
			pause = 5 * time.Second
		}
		if said, sent := err.(*foqsthrift.RequestError); sent && said.GetRetryAfterMs() > pause.Milliseconds() {
			pause = time.Duration(said.GetRetryAfterMs()) * time.Millisecond
		}
		time.Sleep(pause)
	}
}
