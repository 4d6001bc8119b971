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
  private static volatile long until = Long.MAX_VALUE; // once it stops: how long it tries to report what it has done

  private static void work(String order, int attempt) throws Exception {
    if (order.startsWith("flaky") && attempt == 1) throw new Exception("the payment service is busy");
    if (order.startsWith("long")) Thread.sleep(2_500);
    System.out.println("done: " + order + ", attempt " + attempt);
  }

  /** Sends an ack, a nack or an extension of one item. */
  private static void report(Item item, Host.Request<List<ItemOutcome>> request) {
    try {
      Host.call(() -> until, client -> {
        ItemError error = request.send(client).get(0).error;
        if (error != null) throw Host.refused(error);
        return null;
      });
    } catch (Exception error) { // NOT_FOUND, STALE_LEASE: an earlier try succeeded, or the item comes again
      System.err.println("item " + item.id + ": " + error.getMessage());
    }
  }

  private static void nack(Item item, NackItem nack) {
    report(item, client -> client.Nack(new NackRequest(List.of(nack)).setContext(Host.CONTEXT)).outcomes);
  }

  private static Void handle(Item item) {
    var lease = List.of(new ExtendItem(item.id, item.lease));
    var extending = Executors.newSingleThreadScheduledExecutor();
    Runnable extend = () ->
        report(item, client -> client.ExtendLease(new ExtendLeaseRequest(lease).setContext(Host.CONTEXT)).outcomes);
    extending.scheduleAtFixedRate(extend, LEASE_MS / 3, LEASE_MS / 3, TimeUnit.MILLISECONDS);
    try {
      work(new String(item.getPayload(), StandardCharsets.UTF_8), item.attempt);
      var acks = List.of(new AckItem(item.id, item.lease));
      report(item, client -> client.Ack(new AckRequest(acks).setContext(Host.CONTEXT)).outcomes);
    } catch (Exception error) {
      var nack = new NackItem(item.id, item.lease).setFailed(true).setDelay_ms(1_000 * item.attempt);
      nack(item, nack.setReason(error.getMessage()));
    } finally {
      extending.shutdownNow();
    }
    return null;
  }

  public static void main(String[] args) throws Exception {
    Thread main = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> { // the JVM ends when this thread ends
      until = System.currentTimeMillis() + 10_000;
      try {
        main.join();
      } catch (InterruptedException error) {
        main.interrupt();
      }
    }));
    var request = new DequeueRequest(Host.NAMESPACE, List.of(new TopicCount("orders", 10)));
    request.setLease_ms(LEASE_MS).setWait_ms(5_000).setContext(Host.CONTEXT);
    request.setWorker("orders-" + ProcessHandle.current().pid());
    var threads = Executors.newCachedThreadPool();
    while (until == Long.MAX_VALUE) {
      List<Callable<Void>> handlers = new ArrayList<>();
      for (Item item : Host.call(() -> until, client -> client.Dequeue(request).items)) {
        if (until == Long.MAX_VALUE) handlers.add(() -> handle(item));
        else nack(item, new NackItem(item.id, item.lease).setRelease(true));
      }
      threads.invokeAll(handlers);
    }
    threads.shutdown();
  }
}
