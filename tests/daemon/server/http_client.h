// A request over a raw socket to the metrics of a daemon, and the bytes that
// came back: no part of the daemon's own reads or writes them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace terrace {

// A connected stream socket; -1: nobody listens there. The caller closes it.
int ConnectToPath(const std::string& path);
int ConnectToPort(uint16_t port);
// A port of the loopback that nobody has now.
uint16_t FreePort();

bool SendAll(int fd, absl::string_view bytes);
// Up to the end of the stream, as far as it comes within 20 s.
std::string ReadToEnd(int fd);

struct HttpAnswer {
  int status = 0;  // 0: none came
  std::string head;
  std::string body;
};

// Sends the bytes and reads the answer; closes the socket.
HttpAnswer Exchange(int fd, absl::string_view request);
// GET of that path at a Unix socket.
HttpAnswer Get(const std::string& socket, const std::string& path);

// Samples of a text of metrics, by their name with labels as they stand there:
// "terrace_jobs" or "terrace_refusals_total{reason=\"limit\"}". A line that is
// no sample is a failure of the test.
std::map<std::string, double> SamplesOf(const std::string& text);

}  // namespace terrace
