// Produce one task with nothing but a Kafka client: `go run . [localhost:9092]`.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	broker := "localhost:9092"
	if len(os.Args) > 1 {
		broker = os.Args[1]
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	id := fmt.Sprintf("go-%x", time.Now().UnixNano())
	value, err := json.Marshal(map[string]any{
		"task_id": id, "workflow": "math", "prompt": "What is 17 + 25?", "answer": "42",
	})
	if err != nil {
		log.Fatal(err)
	}
	record := &kgo.Record{Topic: "trinity.tasks", Key: []byte(id), Value: value}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(id)
}
