import com.google.protobuf.Empty;
import com.google.protobuf.StringValue;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.xds.XdsChannelCredentials;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/**
 * Client of the tests of Sheave's xDS server, with grpc-java.
 *
 * <pre>java ProxylessClient TARGET</pre>
 *
 * <p>Its commands and answers are those of {@code call} in main.go.
 */
public final class ProxylessClient {
  /** Longer than any call takes on a busy machine. */
  private static final long PATIENCE_SECONDS = 60;

  private static final int STREAMS = 4;

  private final Channel channel;
  private final List<Thread> streams = new ArrayList<>();
  private CallCounts streamed = new CallCounts();
  private volatile boolean running;

  private ProxylessClient(Channel channel) {
    this.channel = channel;
  }

  public static void main(String[] arguments) throws Exception {
    ChannelCredentials credentials = InsecureChannelCredentials.create();
    if (System.getenv("XDS_CREDENTIALS") != null) {
      credentials = XdsChannelCredentials.create(credentials);
    }
    Channel channel = Grpc.newChannelBuilder(arguments[0], credentials).build();
    ProxylessClient client = new ProxylessClient(channel);
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      client.run(line.trim().split("\\s+"));
    }
    // Threads of the channel would keep the process.
    System.exit(0);
  }

  private void run(String[] words) throws InterruptedException {
    switch (words[0]) {
      case "wait":
        System.out.println(waitFor(words[1]));
        break;
      case "stream":
        start(words[1]);
        break;
      case "stop":
        running = false;
        for (Thread stream : streams) {
          stream.join();
        }
        System.out.println(streamed);
        break;
      default:
        CallCounts counts = new CallCounts();
        Channel withMetadata = withMetadata(List.of(words).subList(2, words.length));
        for (int call = 0; call < Integer.parseInt(words[1]); call++) {
          record(withMetadata, words[0], counts);
        }
        System.out.println(counts);
    }
  }

  /** Calls until the server has answered; returns the microseconds that it took. */
  private long waitFor(String name) {
    long began = System.nanoTime();
    while (System.nanoTime() - began < TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS)) {
      try {
        if (invoke(channel, "/shop.Cart/Get").equals(name)) {
          return TimeUnit.NANOSECONDS.toMicros(System.nanoTime() - began);
        }
      } catch (StatusRuntimeException error) {
        System.err.println("wait " + error);
      }
    }
    throw new IllegalStateException(name + " has not answered");
  }

  private void start(String method) {
    running = true;
    streamed = new CallCounts();
    streams.clear();
    for (int number = 0; number < STREAMS; number++) {
      Thread stream = new Thread(() -> {
        while (running) {
          record(channel, method, streamed);
        }
      });
      stream.setDaemon(true);
      stream.start();
      streams.add(stream);
    }
  }

  private Channel withMetadata(List<String> fields) {
    Metadata metadata = new Metadata();
    for (String field : fields) {
      String[] pair = field.split("=", 2);
      metadata.put(Metadata.Key.of(pair[0], Metadata.ASCII_STRING_MARSHALLER), pair[1]);
    }
    return ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
  }

  private static void record(Channel channel, String method, CallCounts counts) {
    try {
      counts.add(invoke(channel, method));
    } catch (StatusRuntimeException error) {
      System.err.println(method + " " + error);
      counts.add("failed");
      counts.add("status-" + error.getStatus().getCode().value());
    }
  }

  private static String invoke(Channel channel, String method) {
    MethodDescriptor<Empty, StringValue> descriptor =
        MethodDescriptor.<Empty, StringValue>newBuilder()
            .setType(MethodDescriptor.MethodType.UNARY)
            .setFullMethodName(method.substring(1))
            .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
            .setResponseMarshaller(ProtoUtils.marshaller(StringValue.getDefaultInstance()))
            .build();
    CallOptions options = CallOptions.DEFAULT.withDeadlineAfter(PATIENCE_SECONDS, TimeUnit.SECONDS);
    return ClientCalls.blockingUnaryCall(channel, descriptor, options, Empty.getDefaultInstance()).getValue();
  }

  /** Calls by the server that has answered, and those that have failed, by their status too. */
  private static final class CallCounts {
    private final Map<String, Integer> counts = new TreeMap<>(Map.of("failed", 0));

    synchronized void add(String name) {
      counts.merge(name, 1, Integer::sum);
    }

    @Override
    public synchronized String toString() {
      return counts.entrySet().stream()
          .map(entry -> entry.getKey() + "=" + entry.getValue())
          .collect(Collectors.joining(" "));
    }
  }
}
