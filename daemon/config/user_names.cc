#include "daemon/config/user_names.h"

#include <pwd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "daemon/config/table_reader.h"

namespace terrace {
namespace {

uid_t OverflowUid() {
  uid_t uid = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> uid;
  return uid;
}

absl::StatusOr<uid_t> LookUp(const std::string& name) {
  std::vector<char> buffer(1024);
  passwd entry{};
  passwd* found = nullptr;
  int error = ERANGE;
  while (error == ERANGE && buffer.size() <= (1u << 20)) {
    buffer.resize(2 * buffer.size());
    error =
        getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  }
  if (found != nullptr) return found->pw_uid;
  return absl::NotFoundError(
      error == 0
          ? absl::StrCat("this host has no user ", name)
          : absl::StrCat("the user ", name,
                         " cannot be looked up: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<uid_t> UidOf(const std::string& user) {
  uint32_t number = 0;
  uid_t uid = 0;
  if (absl::SimpleAtoi(user, &number)) {
    uid = number;
  } else {
    TERRACE_ASSIGN_OR_RETURN(uid, LookUp(user));
  }
  if (uid != OverflowUid()) return uid;
  return absl::InvalidArgumentError(absl::StrCat(
      "the uid ", uid, " stands for all users that are not known here"));
}

absl::Status CheckUsers(const DaemonConfig& config) {
  std::map<uid_t, std::string> seen;
  for (const auto& [name, user] : config.users) {
    const absl::StatusOr<uid_t> uid = UidOf(name);
    if (!uid.ok()) {
      return ErrorAt(config.file, user.position, uid.status().message());
    }
    const auto [before, is_new] = seen.try_emplace(*uid, name);
    if (is_new) continue;
    return ErrorAt(config.file, user.position,
                   absl::StrCat("users.", name, " and users.", before->second,
                                " are both the uid ", *uid));
  }
  return absl::OkStatus();
}

}  // namespace terrace
