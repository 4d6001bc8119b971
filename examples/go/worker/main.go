// Works on orders until SIGTERM: go run ./worker
package main

import (
	"context"
	"errors"
	"log"
	"strings"
	"sync"
	"time"

	"orders/gen-go/foqsthrift"
	"orders/host"
)

func work(order string, attempt int32) error {
	if strings.HasPrefix(order, "flaky") && attempt == 1 {
		return errors.New("the payment service is busy")
	} else if strings.HasPrefix(order, "long") {
		time.Sleep(2500 * time.Millisecond)
	}
	log.Printf("done: %s, attempt %d", order, attempt)
	return nil
}

func handle(ctx context.Context, item *foqsthrift.Item) {
	working, worked := context.WithCancel(ctx)
	go host.Extend(working, item)
	err := work(string(item.Payload), item.Attempt)
	worked()
	if err == nil {
		err = host.Ack(ctx, item)
	} else {
		err = host.Nack(ctx, item, 1000*int64(item.Attempt), err.Error())
	}
	if err != nil { // NOT_FOUND, STALE_LEASE: an earlier try succeeded, or the lease has ended and the item comes again
		log.Printf("item %d: %v", item.ID, err)
	}
}

func main() {
	running, ctx := host.UntilSignal()
	for running.Err() == nil {
		items, err := host.Dequeue(ctx, "orders", 10)
		if err != nil {
			log.Fatal(err)
		}
		var handlers sync.WaitGroup
		for _, item := range items {
			if running.Err() != nil {
				host.Nack(ctx, item, 0, "")
				continue
			}
			handlers.Add(1)
			go func(item *foqsthrift.Item) { defer handlers.Done(); handle(ctx, item) }(item)
		}
		handlers.Wait()
	}
}
