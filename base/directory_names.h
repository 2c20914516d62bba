// What lies in an open directory. Thread-safe, stateless.
#pragma once

#include <string>
#include <vector>

namespace terrace {

// The names in it, in no order, without "." and ".."; none where it cannot be
// read. The descriptor is neither closed nor moved: each call lists it from
// the start.
std::vector<std::string> NamesIn(int directory_fd);

}  // namespace terrace
