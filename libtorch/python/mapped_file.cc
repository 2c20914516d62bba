#include "libtorch/python/mapped_file.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "libtorch/accelerator/guarded.h"

namespace terrace {
namespace {

constexpr int64_t kAlignment = 64;  // as torch's own tensors have

int64_t FreeBytes(const std::string& directory) {
  struct statvfs system = {};
  if (statvfs(directory.c_str(), &system) != 0) return 0;
  return static_cast<int64_t>(system.f_bavail * system.f_frsize);
}

absl::Status NoRoom(const std::string& directory, int64_t size_bytes,
                    int error) {
  return WithIoFault(
      absl::ResourceExhaustedError(absl::StrCat(
          "no room for a copy of the state, ", size_bytes, " bytes, in ",
          directory, ", of which ", FreeBytes(directory), " are free: ",
          std::strerror(error), "; terrace.save() makes no copy")),
      {.error = error, .path = directory});
}

absl::Status CannotMap(const std::string& directory, const char* what,
                       int error) {
  return absl::UnimplementedError(
      absl::StrCat(directory, " has no file that can be ", what, ": ",
                   std::strerror(error)));
}

int OpenUnnamed(const std::string& directory) {
  const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) {
    return fd;
  }
  std::string name = absl::StrCat(directory, "/.terrace-copy-XXXXXX");
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

// 0, or an errno. A file system that cannot reserve says so when written to.
int Reserve(int fd, int64_t size_bytes) {
  int error = 0;
  do {
    error = fallocate(fd, 0, 0, size_bytes) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error != EOPNOTSUPP) return error;
  return ftruncate(fd, size_bytes) == 0 ? 0 : errno;
}

bool IsLackOfRoom(int error) {
  return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

void Release(void* holder) {
  delete static_cast<std::shared_ptr<MappedFile>*>(holder);
}

}  // namespace

absl::StatusOr<std::shared_ptr<MappedFile>> MappedFile::Create(
    const std::vector<std::string>& directories, int64_t size_bytes) {
  std::vector<std::string> ordered = directories;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const std::string& a, const std::string& b) {
                     return FreeBytes(a) > FreeBytes(b);
                   });
  absl::Status failure =
      absl::UnimplementedError("no directory is among the paths");
  for (const std::string& directory : ordered) {
    auto file = CreateIn(directory, size_bytes);
    if (file.ok()) return file;
    // The first lack of room is that of the most room.
    if (!absl::IsResourceExhausted(failure)) failure = file.status();
  }
  return failure;
}

absl::StatusOr<std::shared_ptr<MappedFile>> MappedFile::CreateIn(
    const std::string& directory, int64_t size_bytes) {
  const int fd = OpenUnnamed(directory);
  if (fd < 0) {
    return IsLackOfRoom(errno) ? NoRoom(directory, size_bytes, errno)
                               : CannotMap(directory, "made", errno);
  }
  const int error = Reserve(fd, size_bytes);
  if (error != 0) {
    close(fd);
    return IsLackOfRoom(error) ? NoRoom(directory, size_bytes, error)
                               : CannotMap(directory, "reserved", error);
  }
  const auto size = static_cast<size_t>(size_bytes);
  void* mapping =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapping == MAP_FAILED) {
    const int refused = errno;
    close(fd);
    return CannotMap(directory, "mapped", refused);
  }
  // A save goes through it once: read far ahead.
  madvise(mapping, size, MADV_SEQUENTIAL);
  return std::shared_ptr<MappedFile>(new MappedFile(
      fd, directory, absl::MakeSpan(static_cast<std::byte*>(mapping), size)));
}

MappedFile::MappedFile(int fd, std::string directory,
                       absl::Span<std::byte> mapping)
    : fd_(fd),
      directory_(std::move(directory)),
      mapping_(mapping),
      limit_(std::make_unique<ResidencyLimit>(mapping)) {}

MappedFile::~MappedFile() {
  limit_.reset();
  munmap(mapping_.data(), mapping_.size());
  close(fd_);
}

int64_t MappedFile::TakenBytes(int64_t tensor_bytes) {
  return (tensor_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

absl::StatusOr<at::Tensor> MappedFile::Take(at::IntArrayRef sizes) {
  const at::TensorOptions options = at::TensorOptions(at::kFloat);
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  at::Tensor tensor;
  if (count == 0) {
    TERRACE_RETURN_IF_ERROR(
        Guarded(c10::kCPU, [&] { tensor = at::empty(sizes, options); }));
    return tensor;
  }
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  const auto free_bytes = static_cast<int64_t>(mapping_.size()) - taken_bytes_;
  if (bytes > free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a copy of ", bytes, " bytes is more than the ",
                     free_bytes, " that are left of its file"));
  }
  std::byte* data = mapping_.data() + taken_bytes_;
  TERRACE_RETURN_IF_ERROR(Guarded(c10::kCPU, [&] {
    auto holder =
        std::make_unique<std::shared_ptr<MappedFile>>(shared_from_this());
    c10::DataPtr pointer(data, holder.get(), &Release, c10::kCPU);
    static_cast<void>(holder.release());
    // Its holder may resize it, into memory then.
    c10::Storage storage(c10::Storage::use_byte_size_t(),
                         static_cast<size_t>(bytes), std::move(pointer),
                         c10::GetCPUAllocator(), /*resizable=*/true);
    tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        options.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }));
  taken_bytes_ += TakenBytes(bytes);
  return tensor;
}

absl::Status MappedFile::Write(const at::Tensor& tensor, int64_t first,
                               absl::Span<const float> values) {
  const auto* target =
      reinterpret_cast<const std::byte*>(tensor.const_data_ptr<float>());
  const int64_t start =
      target - mapping_.data() + first * static_cast<int64_t>(sizeof(float));
  int64_t offset = start;
  auto bytes =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float));
  while (!bytes.empty()) {
    const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      if (IsLackOfRoom(error)) {
        return NoRoom(directory_, static_cast<int64_t>(mapping_.size()), error);
      }
      return WithIoFault(
          absl::UnavailableError(
              absl::StrCat("cannot write ", bytes.size(), " bytes at offset ",
                           offset, " of a copy of the state in ", directory_,
                           ": ", std::strerror(error))),
          {.error = error, .path = directory_, .offset = offset});
    }
    offset += written;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  // Pages that are clean when memory is wanted are there for the taking.
  sync_file_range(fd_, start, offset - start, SYNC_FILE_RANGE_WRITE);
  return absl::OkStatus();
}

Outcome MappedFileBinding::Open(const std::vector<std::string>& directories,
                                const std::vector<at::Tensor>& parameters) {
  int64_t size_bytes = 0;
  for (const at::Tensor& parameter : parameters) {
    const int64_t arrays = parameter.scalar_type() == at::kFloat ? 2 : 3;
    size_bytes +=
        arrays * MappedFile::TakenBytes(parameter.numel() *
                                        static_cast<int64_t>(sizeof(float)));
  }
  auto file = MappedFile::Create(directories, size_bytes);
  if (!file.ok()) return ToOutcome(file.status());
  file_ = *std::move(file);
  return Answer(absl::StrCat(size_bytes));
}

std::tuple<Outcome, at::Tensor> MappedFileBinding::Take(
    const std::vector<int64_t>& sizes) {
  if (file_ == nullptr) {
    return {ToOutcome(absl::FailedPreconditionError("the file is not open")),
            at::empty({0})};
  }
  auto tensor = file_->Take(sizes);
  if (!tensor.ok()) return {ToOutcome(tensor.status()), at::empty({0})};
  return {ToOutcome(absl::OkStatus()), *std::move(tensor)};
}

}  // namespace terrace
