// Final parameters, kept on disk for a later comparison, so that memory never
// holds them twice. The file has no name: it is gone with its descriptor.
// One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace train_gpt {

class ParameterFile {
 public:
  // In an existing directory.
  static absl::StatusOr<ParameterFile> Create(const std::string& directory);

  ParameterFile(ParameterFile&& other) noexcept;
  ParameterFile& operator=(ParameterFile&& other) noexcept;
  ~ParameterFile();

  absl::Status Append(absl::Span<const std::byte> bytes);
  // Fills `bytes` from `offset` on; fewer there are DataLoss.
  absl::Status Read(int64_t offset, absl::Span<std::byte> bytes) const;

 private:
  ParameterFile(int descriptor, std::string directory)
      : descriptor_(descriptor), directory_(std::move(directory)) {}

  int descriptor_ = -1;
  std::string directory_;  // for messages
  int64_t size_ = 0;
};

}  // namespace train_gpt
