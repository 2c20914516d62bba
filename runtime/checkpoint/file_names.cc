#include "runtime/checkpoint/file_names.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <iterator>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

constexpr char kSuffix[] = ".safetensors";
constexpr const char* kKinds[] = {"parameters-", "optimizer-", "values-"};

}  // namespace

std::string NewCheckpointFileName(absl::string_view kind) {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    // Time and place: the file is made with O_EXCL in any case.
    static std::atomic<uint64_t> count{0};
    random = static_cast<uint64_t>(time(nullptr)) << 32 ^
             static_cast<uint64_t>(getpid()) << 16 ^ ++count;
  }
  return absl::StrFormat("%s-%016x%s", kind, random, kSuffix);
}

bool IsCheckpointFileName(absl::string_view name) {
  if (!absl::ConsumeSuffix(&name, kSuffix)) return false;
  const bool known =
      std::any_of(std::begin(kKinds), std::end(kKinds),
                  [&](const char* k) { return absl::ConsumePrefix(&name, k); });
  return known && name.size() == 16 &&
         name.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

}  // namespace terrace
