// A child that writes to its parent's connection, which it has a copy of.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>

#include "absl/types/span.h"
#include "gtest/gtest.h"

namespace terrace {

// Its pid, once it has ended; a failure fails the test.
inline pid_t SendFromChild(int socket, absl::Span<const std::byte> bytes) {
  const int fd = dup(socket);  // which a child keeps
  const pid_t child = fork();
  if (child == 0) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), 0);
    _exit(sent == static_cast<ssize_t>(bytes.size()) ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(fd);
  return child;
}

}  // namespace terrace
