import io.foqs.thrift.ErrorCode;
import io.foqs.thrift.Foqs;
import io.foqs.thrift.Item;
import io.foqs.thrift.ItemError;
import io.foqs.thrift.ItemOutcome;
import io.foqs.thrift.RequestContext;
import io.foqs.thrift.RequestError;
import java.util.List;
import org.apache.thrift.TConfiguration;
import org.apache.thrift.TException;
import org.apache.thrift.protocol.TBinaryProtocol;
import org.apache.thrift.transport.TSocket;
import org.apache.thrift.transport.TTransport;
import org.apache.thrift.transport.layered.TFramedTransport;

/** One connection to any host of a cluster, and the calls over it. */
final class Host {
  static final String NAMESPACE = env("FOQS_NAMESPACE", "default");
  static final RequestContext CONTEXT =
      new RequestContext().setTimeout_ms(10_000).setToken(System.getenv("FOQS_TOKEN"));
  private static final String[] ADDRESSES = env("FOQS_ADDRESS", "127.0.0.1:7707").split(",");
  /** Epoch milliseconds: the end of repeats. */
  static volatile long until = Long.MAX_VALUE;

  private static TTransport open;
  private static Foqs.Client client;
  private static int turn;

  interface Request<T> {
    T send(Foqs.Client client) throws TException;
  }

  static String env(String name, String otherwise) {
    return System.getenv().getOrDefault(name, otherwise);
  }

  /** Returns the error of one item as that of a request. */
  static RequestError refused(ItemError error) {
    RequestError made = new RequestError(error.code, error.message);
    return error.isSetRetry_after_ms() ? made.setRetry_after_ms(error.retry_after_ms) : made;
  }

  /** Says if a call may be repeated. An error that no host has sent is of the connection. */
  static boolean again(TException error) {
    return !(error instanceof RequestError said)
        || said.code == ErrorCode.OVERLOADED
        || said.code == ErrorCode.UNAVAILABLE
        || said.code == ErrorCode.OUTCOME_UNKNOWN;
  }

  /** A client of Thrift makes one call at a time. */
  private static synchronized <T> T once(Request<T> request) throws TException {
    try {
      if (open == null) {
        String[] address = ADDRESSES[turn++ % ADDRESSES.length].split(":");
        int port = Integer.parseInt(address[1]);
        open = new TFramedTransport(new TSocket(new TConfiguration(), address[0], port, 30_000, 5_000));
        client = new Foqs.Client(new TBinaryProtocol(open, true, true)); // strict
        open.open();
      }
      return request.send(client);
    } catch (TException error) {
      if (again(error) && open != null) {
        open.close();
        open = null;
      }
      throw error;
    }
  }

  /** Repeats what may be repeated, each time at the next host, until a time. */
  static <T> T call(Request<T> request) throws TException, InterruptedException {
    for (long pause = 100; ; pause = Math.min(2 * pause, 5_000)) {
      try {
        return once(request);
      } catch (TException error) {
        if (!again(error) || System.currentTimeMillis() >= until) throw error;
        System.err.println("trying again: " + error.getMessage());
        Thread.sleep(Math.max(pause, error instanceof RequestError said ? said.retry_after_ms : 0));
      }
    }
  }

  /** Sends an ack, a nack or an extension of one item. */
  static void report(Item item, Request<List<ItemOutcome>> request) {
    try {
      call(client -> {
        ItemError error = request.send(client).get(0).error;
        if (error != null) throw refused(error);
        return null;
      });
    } catch (Exception error) { // NOT_FOUND, STALE_LEASE: an earlier try succeeded, or the item comes again
      System.err.println("item " + item.id + ": " + error.getMessage());
    }
  }

  /** At SIGTERM, repeats end 10 s later, and the JVM ends with this thread. */
  static void stopAtSignal() {
    Thread main = Thread.currentThread();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      System.err.println("stopping");
      until = System.currentTimeMillis() + 10_000;
      try {
        main.join();
      } catch (InterruptedException error) {
        main.interrupt();
      }
    }));
  }
}
