// Descriptors beside a byte, as a process may send them to another.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace terrace {

// The errno of it; 0: they are on their way.
inline int SendDescriptors(int socket, const std::vector<int>& descriptors) {
  const size_t size = descriptors.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(size));
  char byte = 'x';
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(header), descriptors.data(), size);
  return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

}  // namespace terrace
