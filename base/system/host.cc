#include "base/system/host.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/process.h"

namespace terrace {
namespace {

constexpr size_t kLongestName = 64;  // that the kernel has
constexpr size_t kIdDigits = 16;
constexpr char kUnknown[] = "0000000000000000";

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
         c == '-';
}

bool IsIdCharacter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

// The first digits of an id in a file of the system's.
std::string IdIn(const char* path) {
  char text[64];
  const OwnDescriptor file = OwnDescriptor::Open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t size = file.ok() ? read(file.get(), text, sizeof(text)) : 0;
  std::string id;
  std::copy_if(text, text + std::max<ssize_t>(size, 0), std::back_inserter(id),
               IsIdCharacter);
  return id.size() < kIdDigits ? kUnknown : id.substr(0, kIdDigits);
}

// Takes "-<id>" from its end; empty: there is none.
std::string TakeId(absl::string_view* text) {
  if (text->size() <= kIdDigits) return "";
  const absl::string_view id = text->substr(text->size() - kIdDigits);
  const size_t dash = text->size() - kIdDigits - 1;
  if ((*text)[dash] != '-' ||
      !std::all_of(id.begin(), id.end(), IsIdCharacter)) {
    return "";
  }
  *text = text->substr(0, dash);
  return std::string(id);
}

bool IsSame(const std::string& left, const std::string& right) {
  return left == right && left != kUnknown;
}

}  // namespace

Host Host::Current() {
  char text[kLongestName + 1] = {};
  Host host;
  if (gethostname(text, kLongestName) == 0) host.name = text;
  std::replace_if(
      host.name.begin(), host.name.end(),
      [](char c) { return !IsNameCharacter(c); }, '_');
  if (host.name.empty()) host.name.push_back('_');
  host.machine = IdIn("/etc/machine-id");
  host.boot = IdIn("/proc/sys/kernel/random/boot_id");
  return host;
}

std::optional<Host> Host::Parse(absl::string_view text) {
  Host host;
  host.boot = TakeId(&text);
  host.machine = TakeId(&text);
  host.name = std::string(text);
  if (host.boot.empty() || host.machine.empty() || host.name.empty() ||
      host.name.size() > kLongestName ||
      !std::all_of(host.name.begin(), host.name.end(), IsNameCharacter)) {
    return std::nullopt;
  }
  return host;
}

std::string Host::Text() const {
  return absl::StrCat(name, "-", machine, "-", boot);
}

bool IsKnownHere(const Host& host) {
  const Host here = Host::Current();
  return host.name == here.name &&
         (IsSame(host.boot, here.boot) || IsSame(host.machine, here.machine));
}

bool LocksCountForAll(int fd) {
  constexpr int64_t kXfs = 0x58465342, kZfs = 0x2fc12fc1,
                    kBcachefs = 0xca451a4e, kExfat = 0x2011bab0,
                    kNtfs3 = 0x7366746e;
  constexpr int64_t kOwn[] = {EXT4_SUPER_MAGIC,  // and ext2, ext3
                              BTRFS_SUPER_MAGIC,
                              F2FS_SUPER_MAGIC,
                              TMPFS_MAGIC,
                              RAMFS_MAGIC,
                              HUGETLBFS_MAGIC,
                              OVERLAYFS_SUPER_MAGIC,
                              MSDOS_SUPER_MAGIC,
                              kXfs,
                              kZfs,
                              kBcachefs,
                              kExfat,
                              kNtfs3};
  struct statfs system = {};
  return fstatfs(fd, &system) == 0 &&
         std::find(std::begin(kOwn), std::end(kOwn),
                   static_cast<int64_t>(system.f_type)) != std::end(kOwn);
}

}  // namespace terrace
