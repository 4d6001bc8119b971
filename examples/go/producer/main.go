// Stores each line of its input as an order, at most once: seq 1 100 | go run ./producer
package main

import (
	"bufio"
	"context"
	"log"
	"orders/gen-go/foqsthrift"
	"orders/host"
	"os"
	"strings"
	"time"
)

func order(line string) *foqsthrift.ItemSpec {
	priority, delayMs := int32(5), int64(500)
	if strings.HasPrefix(line, "urgent") {
		priority = 1 // lower is more urgent
	}
	return &foqsthrift.ItemSpec{Topic: "orders", Payload: []byte(line), Priority: priority, DelayMs: &delayMs,
		Delivery: foqsthrift.Delivery_AT_LEAST_ONCE, DedupKey: &line} // a literal has none of the contract's defaults
}

func main() {
	items, stored, duplicates, refused := []*foqsthrift.ItemSpec{}, 0, 0, 0
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		items = append(items, order(lines.Text()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := host.Call(ctx, func(client *foqsthrift.FoqsClient) (again error) {
		for len(items) > 0 && again == nil {
			batch := items[:(len(items)-1)%100+1] // the rest first, then hundreds
			reply, err := client.Enqueue(ctx, &foqsthrift.EnqueueRequest{Ns: host.Namespace, Items: batch, Context: host.Context})
			if err != nil {
				return err
			}
			items = items[len(batch):]
			for n, outcome := range reply.Outcomes {
				if outcome.GetDuplicate() {
					duplicates++
				} else if outcome.Error == nil {
					stored++
				} else if err := host.Refused(outcome.Error); host.Again(err) {
					items, again = append(items, batch[n]), err
				} else {
					refused++
					log.Printf("refused: %s: %s", batch[n].Payload, outcome.Error.Message)
				}
			}
		}
		return again
	})
	log.Printf("%d stored, %d duplicates, %d refused, %d unknown", stored, duplicates, refused, len(items))
	if err != nil {
		log.Fatal(err)
	} else if refused > 0 {
		os.Exit(1)
	}
}
