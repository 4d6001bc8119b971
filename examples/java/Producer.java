import io.foqs.thrift.*;
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.stream.Collectors;

/** Stores each line of its input as an order, at most once: seq 1 100 | java -cp ... Producer */
final class Producer {
  private static int stored, duplicates, refused;

  private static ItemSpec order(String line) {
    return new ItemSpec()
        .setTopic("orders")
        .setPayload(ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8)))
        .setPriority(line.startsWith("urgent") ? 1 : 5) // lower is more urgent
        .setDelay_ms(500)
        .setDedup_key(line);
  }

  /** Returns the error if the item must be sent again. */
  private static RequestError counted(ItemSpec item, EnqueueOutcome outcome) {
    if (outcome.error != null && Host.again(Host.refused(outcome.error))) return Host.refused(outcome.error);
    if (outcome.error != null) {
      refused++;
      System.err.println("refused: " + item.dedup_key + ": " + outcome.error.message);
    } else if (outcome.duplicate) duplicates++;
    else stored++;
    return null;
  }

  public static void main(String[] args) throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    List<ItemSpec> items = input.lines().map(Producer::order).collect(Collectors.toList());
    Host.until = System.currentTimeMillis() + 60_000;
    try {
      Host.call(client -> {
        RequestError again = null;
        while (!items.isEmpty() && again == null) {
          List<ItemSpec> batch = List.copyOf(items.subList(0, (items.size() - 1) % 100 + 1)); // the rest first
          List<EnqueueOutcome> outcomes =
              client.Enqueue(new EnqueueRequest(Host.NAMESPACE, batch).setContext(Host.CONTEXT)).outcomes;
          items.subList(0, batch.size()).clear();
          for (int n = 0; n < batch.size(); n++) {
            RequestError error = counted(batch.get(n), outcomes.get(n));
            if (error == null) continue;
            items.add(batch.get(n));
            again = error;
          }
        }
        if (again != null) throw again;
        return null;
      });
    } finally {
      String counts = "%d stored, %d duplicates, %d refused, %d unknown";
      System.out.println(counts.formatted(stored, duplicates, refused, items.size()));
    }
    System.exit(refused > 0 ? 1 : 0);
  }
}
