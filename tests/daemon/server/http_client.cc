#include "tests/daemon/server/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

constexpr int kPatienceMs = 20'000;

int Connected(int fd, const sockaddr* address, socklen_t size) {
  if (fd >= 0 && connect(fd, address, size) == 0) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(port);
  return at;
}

}  // namespace

int ConnectToPath(const std::string& path) {
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  if (path.size() >= sizeof(at.sun_path)) return -1;
  std::memcpy(at.sun_path, path.data(), path.size());
  return Connected(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
                   reinterpret_cast<const sockaddr*>(&at), sizeof(at));
}

int ConnectToPort(uint16_t port) {
  const sockaddr_in at = Loopback(port);
  return Connected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                   reinterpret_cast<const sockaddr*>(&at), sizeof(at));
}

uint16_t FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = Loopback(0);
  socklen_t size = sizeof(at);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&at), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size), 0);
  close(fd);
  return ntohs(at.sin_port);
}

bool SendAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string ReadToEnd(int fd) {
  std::string all;
  std::array<char, 4096> room;
  pollfd wait = {fd, POLLIN, 0};
  while (poll(&wait, 1, kPatienceMs) > 0) {
    const ssize_t got = recv(fd, room.data(), room.size(), 0);
    if (got <= 0) break;
    all.append(room.data(), static_cast<size_t>(got));
  }
  return all;
}

HttpAnswer Exchange(int fd, absl::string_view request) {
  HttpAnswer answer;
  if (fd < 0) return answer;
  SendAll(fd, request);
  const std::string all = ReadToEnd(fd);
  close(fd);
  const size_t end = all.find("\r\n\r\n");
  if (all.rfind("HTTP/1.1 ", 0) != 0 || end == std::string::npos) return answer;
  answer.status = std::atoi(all.c_str() + 9);
  answer.head = all.substr(0, end + 2);
  answer.body = all.substr(end + 4);
  return answer;
}

HttpAnswer Get(const std::string& socket, const std::string& path) {
  return Exchange(ConnectToPath(socket),
                  absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n"));
}

std::map<std::string, double> SamplesOf(const std::string& text) {
  std::map<std::string, double> samples;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t end = line.rfind(' ');
    double value = 0;
    EXPECT_TRUE(end != absl::string_view::npos &&
                absl::SimpleAtod(line.substr(end + 1), &value))
        << line;
    const bool is_new =
        samples.emplace(std::string(line.substr(0, end)), value).second;
    EXPECT_TRUE(is_new) << line;
  }
  return samples;
}

}  // namespace terrace
