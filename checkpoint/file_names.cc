#include "checkpoint/file_names.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace terrace {
namespace {

constexpr char kCheckpoint[] = "checkpoint-";
constexpr char kJson[] = ".json";
constexpr char kLock[] = ".lock";
constexpr char kTensors[] = ".safetensors";
constexpr const char* kKinds[] = {"parameters-", "optimizer-", "values-"};

std::string NewId() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) {
    // Time and place: the file is made with O_EXCL in any case.
    static std::atomic<uint64_t> count{0};
    random = static_cast<uint64_t>(time(nullptr)) << 32 ^
             static_cast<uint64_t>(getpid()) << 16 ^ ++count;
  }
  return absl::StrFormat("%016x", random);
}

bool IsName(absl::string_view name, absl::string_view prefix,
            absl::string_view suffix) {
  return absl::ConsumePrefix(&name, prefix) &&
         absl::ConsumeSuffix(&name, suffix) && name.size() == 16 &&
         name.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

}  // namespace

std::string NewCheckpointFileName(absl::string_view kind) {
  return absl::StrCat(kind, "-", NewId(), kTensors);
}

bool IsCheckpointFileName(absl::string_view name) {
  return std::any_of(
      std::begin(kKinds), std::end(kKinds),
      [&](const char* kind) { return IsName(name, kind, kTensors); });
}

std::string NewManifestName() {
  return absl::StrCat(kCheckpoint, NewId(), kJson);
}

bool IsSaveFileName(absl::string_view name) {
  return IsCheckpointFileName(name) || IsName(name, kCheckpoint, kJson);
}

std::string NewFileListName() {
  return absl::StrCat(kCheckpoint, NewId(), kLock);
}

bool IsFileListName(absl::string_view name) {
  return IsName(name, kCheckpoint, kLock);
}

}  // namespace terrace
