// Requests to NCCL's RAS service and the use of its answer; a server of the test replaces the service.
#include "lib/fault/nccl_report.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

namespace tri {
namespace {

// Serves one client by calling `serve` with its socket.
class Service {
 public:
  explicit Service(std::function<void(int)> serve) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&place), size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(place.sin_port));
    ::setenv("NCCL_RAS_ADDR", address_.c_str(), 1);
    thread_ = std::thread([this, serve = std::move(serve)] {
      const int client = ::accept(listener_, nullptr, nullptr);
      serve(client);
      ::close(client);
    });
  }
  ~Service() {
    thread_.join();
    ::close(listener_);
    ::unsetenv("NCCL_RAS_ADDR");
  }

 private:
  int listener_ = -1;
  std::string address_;
  std::thread thread_;
};

std::string line_from(int client) {
  std::string line;
  for (char c = 0; c != '\n' && ::read(client, &c, 1) == 1;) line += c;
  return line;
}

void say(int client, const std::string& text) {
  ASSERT_EQ(::write(client, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST(NcclReport, asks_for_a_timeout_and_the_verbose_status) {
  const std::string status = std::string(100'000, '.') + "\nrank 3 does not answer\n";
  std::string requests;
  std::string report;
  {
    const Service service([&](int client) {
      requests = line_from(client);
      say(client, "OK\n");
      requests += line_from(client);
      say(client, status);
    });
    report = nccl_report(60);
  }
  EXPECT_EQ(requests, "timeout 30\nverbose status\n");
  EXPECT_EQ(report, status);
}

TEST(NcclReport, a_service_that_stops_in_the_middle_is_not_waited_for) {
  std::string report;
  {
    const Service service([](int client) {
      line_from(client);
      say(client, "OK\n");
      line_from(client);
      say(client, "half of");
      line_from(client);  // returns when the other side has closed
    });
    report = nccl_report(0.1);
  }
  EXPECT_EQ(report, "half of");
}

TEST(NcclReport, is_empty_without_an_answer) {
  std::string report = "?";
  {
    const Service service([](int client) { line_from(client), line_from(client); });
    report = nccl_report(0.05);
  }
  EXPECT_EQ(report, "");
  const int taken = ::socket(AF_INET, SOCK_STREAM, 0);  // bound, but not listening
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  ASSERT_EQ(::bind(taken, reinterpret_cast<sockaddr*>(&place), size), 0);
  ASSERT_EQ(::getsockname(taken, reinterpret_cast<sockaddr*>(&place), &size), 0);
  ::setenv("NCCL_RAS_ADDR", ("127.0.0.1:" + std::to_string(ntohs(place.sin_port))).c_str(), 1);
  EXPECT_EQ(nccl_report(60), "");
  ::setenv("NCCL_RAS_ADDR", "[::1:no", 1);
  EXPECT_EQ(nccl_report(60), "");
  ::unsetenv("NCCL_RAS_ADDR");
  ::close(taken);
}

}  // namespace
}  // namespace tri
