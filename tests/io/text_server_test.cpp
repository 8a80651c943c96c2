#include "io/net/text_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <vector>

#include "io/base/file.h"

namespace tri {
namespace {

Descriptor connected_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

std::string all_from(const Descriptor& socket) {
  std::string text;
  char buffer[4096];
  for (ssize_t bytes; (bytes = ::recv(socket.get(), buffer, sizeof buffer, 0)) > 0;)
    text.append(buffer, static_cast<size_t>(bytes));
  return text;
}

std::string answer_to(int port, const std::string& request) {
  const Descriptor socket = connected_to(port);
  ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  return all_from(socket);
}

std::unique_ptr<TextServer> server_of(TextServer::Text text) {
  return value_or_throw(TextServer::start({"127.0.0.1", 0}, "text/plain; version=0.0.4", std::move(text)));
}

TEST(HostAndPort, are_read_strictly) {
  EXPECT_EQ(parse_host_and_port("localhost:9400"), (HostAndPort{"localhost", 9400}));
  EXPECT_EQ(parse_host_and_port("[::1]:0"), (HostAndPort{"::1", 0}));
  for (const char* text :
       {"", "9400", ":9400", "host:", "host:x", "host:65536", "host:-1", "::1:9400", "a b:1", "[]:1"})
    EXPECT_FALSE(parse_host_and_port(text)) << text;
}

TEST(TextServer, gives_the_text_as_it_is_now) {
  std::atomic<int> count = 0;
  const auto server = server_of([&] { return fmt::format("served {} times\n", ++count); });
  EXPECT_EQ(answer_to(server->port(), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: 15\r\n"
            "Connection: close\r\n\r\nserved 1 times\n");
  EXPECT_TRUE(answer_to(server->port(), "GET /metrics?a=b HTTP/1.0\r\n\r\n").ends_with("served 2 times\n"));
  EXPECT_TRUE(answer_to(server->port(), "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("Connection: close\r\n\r\n"));
  EXPECT_TRUE(answer_to(server->port(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(answer_to(server->port(), "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
  EXPECT_EQ(count, 3);
}

TEST(TextServer, refuses_a_port_that_is_taken) {
  const auto server = server_of([] { return ""; });
  const auto second = TextServer::start({"127.0.0.1", server->port()}, "", [] { return ""; });
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message.find("in use"), std::string::npos) << second.error().message;
}

TEST(TextServer, serves_while_idle_clients_are_connected) {
  const std::string large(8 << 20, 'x');  // more than the sockets hold: a client that does not read blocks it
  const auto server = server_of([&] { return large; });
  std::vector<Descriptor> idle;
  for (int i = 0; i < 3 * TextServer::kMostConnections; ++i) {
    idle.push_back(connected_to(server->port()));
    const std::string part = i % 2 == 0 ? "GET /met" : "GET /metrics HTTP/1.1\r\n\r\n";
    ::send(idle.back().get(), part.data(), part.size(), MSG_NOSIGNAL);
  }
  EXPECT_GT(answer_to(server->port(), "GET /metrics HTTP/1.1\r\n\r\n").size(), large.size());
  // A request that is too long, and an invalid one.
  EXPECT_EQ(answer_to(server->port(), std::string(100000, 'a')), "");
}

}  // namespace
}  // namespace tri
