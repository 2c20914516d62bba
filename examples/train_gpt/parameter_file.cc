#include "examples/train_gpt/parameter_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

absl::Status Failure(const char* what, const std::string& directory,
                     int64_t offset, int error) {
  return absl::UnavailableError(
      absl::StrCat("a temporary file in ", directory, " cannot be ", what,
                   " at offset ", offset, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<ParameterFile> ParameterFile::Create(
    const std::string& directory) {
  int descriptor =
      open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor < 0) {  // not every file system has files without a name
    std::string name = directory + "/train_gpt_XXXXXX";
    descriptor = mkostemp(name.data(), O_CLOEXEC);
    if (descriptor >= 0) unlink(name.c_str());
  }
  if (descriptor < 0) return Failure("made", directory, 0, errno);
  return ParameterFile(descriptor, directory);
}

ParameterFile::ParameterFile(ParameterFile&& other) noexcept {
  *this = std::move(other);
}

ParameterFile& ParameterFile::operator=(ParameterFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(directory_, other.directory_);
  std::swap(size_, other.size_);
  return *this;
}

ParameterFile::~ParameterFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status ParameterFile::Append(absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(descriptor_, bytes.data(), bytes.size(), size_);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Failure("written", directory_, size_, errno);
    bytes.remove_prefix(static_cast<size_t>(n));
    size_ += n;
  }
  return absl::OkStatus();
}

absl::Status ParameterFile::Read(int64_t offset,
                                 absl::Span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = pread(descriptor_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failure("read", directory_, offset, errno);
    if (n == 0) {
      return absl::DataLossError(
          absl::StrCat("a temporary file in ", directory_, " ends at offset ",
                       offset, ", ", bytes.size(), " bytes too early"));
    }
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
