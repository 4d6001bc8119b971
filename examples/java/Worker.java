import io.foqs.thrift.*;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Works on orders until SIGTERM. */
final class Worker {
  private static final long LEASE_MS = Long.parseLong(Host.env("LEASE_MS", "30000"));

  private static void work(String order, int attempt) throws Exception {
    if (order.startsWith("flaky") && attempt == 1) throw new Exception("the payment service is busy");
    if (order.startsWith("long")) Thread.sleep(2_500);
    System.out.println("done: " + order + ", attempt " + attempt);
  }

  private static void nack(Item item, NackItem nack) {
    Host.report(item, client -> client.Nack(new NackRequest(List.of(nack)).setContext(Host.CONTEXT)).outcomes);
  }

  private static Void handle(Item item) {
    var lease = List.of(new ExtendItem(item.id, item.lease));
    var extending = Executors.newSingleThreadScheduledExecutor();
    Runnable extend = () ->
        Host.report(item, client -> client.ExtendLease(new ExtendLeaseRequest(lease).setContext(Host.CONTEXT)).outcomes);
    extending.scheduleAtFixedRate(extend, LEASE_MS / 3, LEASE_MS / 3, TimeUnit.MILLISECONDS);
    try {
      work(new String(item.getPayload(), StandardCharsets.UTF_8), item.attempt);
      var acks = List.of(new AckItem(item.id, item.lease));
      Host.report(item, client -> client.Ack(new AckRequest(acks).setContext(Host.CONTEXT)).outcomes);
    } catch (Exception error) {
      var nack = new NackItem(item.id, item.lease).setFailed(true).setDelay_ms(1_000 * item.attempt);
      nack(item, nack.setReason(error.getMessage()));
    } finally {
      extending.shutdownNow();
    }
    return null;
  }

  public static void main(String[] args) throws Exception {
    Host.stopAtSignal();
    var request = new DequeueRequest(Host.NAMESPACE, List.of(new TopicCount("orders", 10)));
    request.setLease_ms(LEASE_MS).setWait_ms(5_000).setContext(Host.CONTEXT);
    request.setWorker("orders-" + ProcessHandle.current().pid());
    var threads = Executors.newCachedThreadPool();
    while (Host.until == Long.MAX_VALUE) {
      List<Callable<Void>> handlers = new ArrayList<>();
      for (Item item : Host.call(client -> client.Dequeue(request).items)) {
        if (Host.until == Long.MAX_VALUE) handlers.add(() -> handle(item));
        else nack(item, new NackItem(item.id, item.lease).setRelease(true));
      }
      threads.invokeAll(handlers);
    }
    threads.shutdown();
  }
}
