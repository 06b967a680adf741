import com.google.protobuf.Empty;
import com.google.protobuf.StringValue;
import io.grpc.HandlerRegistry;
import io.grpc.InsecureServerCredentials;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerCredentials;
import io.grpc.ServerMethodDefinition;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ServerCalls;
import io.grpc.xds.XdsServerBuilder;
import io.grpc.xds.XdsServerCredentials;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;

/**
 * Server of the tests of Sheave's xDS server, with grpc-java.
 *
 * <pre>java ProxylessServer serve-xds NAME</pre>
 *
 * <p>It does what {@code serve-xds} in main.go does, but for the health check and the methods that fail.
 */
public final class ProxylessServer {
  private static final int BIND_TRIES = 10;

  private ProxylessServer() {}

  public static void main(String[] arguments) throws Exception {
    for (int tries = 1; ; tries++) {
      int port = freePort();
      try {
        Server server = server(port, arguments[1]).start();
        System.out.println("127.0.0.1:" + port);
        server.awaitTermination();
        return;
      } catch (IOException taken) {
        if (tries == BIND_TRIES) {
          throw taken;
        }
      }
    }
  }

  /** Returns a port that is free now: the name of the server's listener has it. */
  private static int freePort() throws IOException {
    try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      return probe.getLocalPort();
    }
  }

  private static Server server(int port, String name) {
    ServerCredentials credentials = XdsServerCredentials.create(InsecureServerCredentials.create());
    return XdsServerBuilder.forPort(port, credentials).fallbackHandlerRegistry(new NamedRegistry(name)).build();
  }

  /** Answers every method with a name. */
  private static final class NamedRegistry extends HandlerRegistry {
    private final String name;

    private NamedRegistry(String name) {
      this.name = name;
    }

    @Override
    public ServerMethodDefinition<?, ?> lookupMethod(String method, String authority) {
      MethodDescriptor<Empty, StringValue> descriptor =
          MethodDescriptor.<Empty, StringValue>newBuilder()
              .setType(MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(method)
              .setRequestMarshaller(ProtoUtils.marshaller(Empty.getDefaultInstance()))
              .setResponseMarshaller(ProtoUtils.marshaller(StringValue.getDefaultInstance()))
              .build();
      return ServerMethodDefinition.create(
          descriptor,
          ServerCalls.asyncUnaryCall(
              (Empty request, io.grpc.stub.StreamObserver<StringValue> answer) -> {
                answer.onNext(StringValue.of(name));
                answer.onCompleted();
              }));
    }
  }
}
