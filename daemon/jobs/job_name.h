// Whose something is: a user's job. Jobs of one name are a user's own; "": all
// that have none.
#pragma once

#include <sys/types.h>

#include <string>

namespace terrace {

struct JobName {
  uid_t uid = 0;
  std::string job;

  friend auto operator<=>(const JobName&, const JobName&) = default;
};

}  // namespace terrace
