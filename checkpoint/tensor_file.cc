#include "checkpoint/tensor_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "kernels/checksum.h"

namespace terrace {
namespace {

int64_t BlockCount(int64_t size_bytes, int64_t block_bytes) {
  return (size_bytes + block_bytes - 1) / block_bytes;
}

}  // namespace

absl::StatusOr<TensorFileWriter> TensorFileWriter::Create(
    int directory_fd, const std::string& directory, const std::string& name,
    std::vector<SafetensorsEntry> tensors) {
  SafetensorsHeader header;
  TERRACE_ASSIGN_OR_RETURN(const std::string text,
                           MakeSafetensorsHeader(std::move(tensors), &header));
  TERRACE_ASSIGN_OR_RETURN(File file,
                           File::Create(directory_fd, directory, name));
  TensorFileWriter writer(std::move(file));
  TERRACE_RETURN_IF_ERROR(writer.file_.Reserve(header.file_bytes));
  TERRACE_RETURN_IF_ERROR(writer.file_.Write(
      0, {reinterpret_cast<const std::byte*>(text.data()), text.size()}));
  ManifestFile& manifest = writer.manifest_;
  manifest.name = name;
  manifest.size_bytes = header.file_bytes;
  manifest.header_bytes = header.header_bytes;
  manifest.header_checksum = Checksum(text.data(), text.size());
  for (const SafetensorsEntry& tensor : header.tensors) {
    writer.offsets_[tensor.name] = tensor.offset;
    manifest.checksums[tensor.name].resize(static_cast<size_t>(
        BlockCount(tensor.size_bytes, kCheckpointBlockBytes)));
  }
  return writer;
}

absl::Status TensorFileWriter::WriteBlock(const std::string& tensor,
                                          int64_t block,
                                          absl::Span<const std::byte> bytes) {
  manifest_.checksums.at(tensor).at(static_cast<size_t>(block)) =
      Checksum(bytes.data(), bytes.size());
  return file_.Write(offsets_.at(tensor) + block * kCheckpointBlockBytes,
                     bytes);
}

absl::StatusOr<ManifestFile> TensorFileWriter::Finish() {
  TERRACE_RETURN_IF_ERROR(file_.Flush());
  file_.DropCache();
  return manifest_;
}

absl::StatusOr<TensorFileReader> TensorFileReader::Open(const File& directory,
                                                        ManifestFile manifest,
                                                        int64_t block_bytes,
                                                        bool stays_open) {
  TERRACE_ASSIGN_OR_RETURN(
      SourceFile file, SourceFile::Open(directory, manifest.name, stays_open));
  TensorFileReader reader(std::move(file), std::move(manifest), block_bytes);
  TERRACE_RETURN_IF_ERROR(reader.ReadHeader());
  TERRACE_RETURN_IF_ERROR(reader.CheckSize());
  TERRACE_RETURN_IF_ERROR(reader.CheckChecksums());
  return reader;
}

absl::Status TensorFileReader::ReadHeader() {
  const auto damaged = [this](absl::string_view what) {
    return Damaged(path(),
                   absl::StrCat("its header, ", manifest_.header_bytes,
                                " bytes from offset 0 on, ", what),
                   /*offset=*/0);
  };
  if (manifest_.header_bytes < kSafetensorsLengthBytes ||
      manifest_.header_bytes >
          kSafetensorsLengthBytes + kLongestSafetensorsHeader) {
    return damaged("cannot be that long");
  }
  std::string text(static_cast<size_t>(manifest_.header_bytes), '\0');
  TERRACE_RETURN_IF_ERROR(
      file_.Read(0, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  if (Checksum(text.data(), text.size()) != manifest_.header_checksum) {
    return damaged("is not what was written");
  }
  auto header = ParseSafetensorsHeader(
      absl::string_view(text).substr(kSafetensorsLengthBytes));
  if (!header.ok()) return damaged(header.status().message());
  header_ = *std::move(header);
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    places_[header_.tensors[i].name] = i;
  }
  return absl::OkStatus();
}

absl::Status TensorFileReader::CheckSize() const {
  const int64_t size_bytes = file_.size_bytes();
  if (size_bytes == header_.file_bytes && size_bytes == manifest_.size_bytes) {
    return absl::OkStatus();
  }
  for (const SafetensorsEntry& tensor : header_.tensors) {
    if (tensor.offset + tensor.size_bytes <= size_bytes) continue;
    return Damaged(path(),
                   absl::StrCat("truncated to ", size_bytes, " bytes of ",
                                header_.file_bytes, ": tensor '", tensor.name,
                                "', ", tensor.size_bytes, " bytes from offset ",
                                tensor.offset, " on, is not there whole"),
                   size_bytes);
  }
  return Damaged(path(), absl::StrCat("has ", size_bytes, " bytes, ",
                                      manifest_.size_bytes, " were written"));
}

absl::Status TensorFileReader::CheckChecksums() const {
  bool fits = header_.tensors.size() == manifest_.checksums.size();
  for (const SafetensorsEntry& tensor : header_.tensors) {
    const auto found = manifest_.checksums.find(tensor.name);
    fits = fits && found != manifest_.checksums.end() &&
           static_cast<int64_t>(found->second.size()) == Blocks(tensor);
  }
  if (fits) return absl::OkStatus();
  return Damaged(path(),
                 "its tensors are not those that there are checksums of");
}

const SafetensorsEntry* TensorFileReader::Find(
    const std::string& tensor) const {
  const auto place = places_.find(tensor);
  return place == places_.end() ? nullptr : &header_.tensors[place->second];
}

int64_t TensorFileReader::Blocks(const SafetensorsEntry& tensor) const {
  return BlockCount(tensor.size_bytes, block_bytes_);
}

int64_t TensorFileReader::BlockSize(const SafetensorsEntry& tensor,
                                    int64_t block) const {
  return std::min(block_bytes_, tensor.size_bytes - block * block_bytes_);
}

absl::Status TensorFileReader::ReadBlock(const SafetensorsEntry& tensor,
                                         int64_t block,
                                         absl::Span<std::byte> bytes) const {
  TERRACE_CHECK(static_cast<int64_t>(bytes.size()) == BlockSize(tensor, block));
  const int64_t offset = tensor.offset + block * block_bytes_;
  const auto about = [&](absl::string_view message) {
    return absl::StrCat("tensor '", tensor.name, "': ", message);
  };
  const absl::Status status = file_.Read(offset, bytes);
  if (!status.ok()) {
    return Reworded(status, about(status.message()));
  }
  const uint64_t written =
      manifest_.checksums.at(tensor.name).at(static_cast<size_t>(block));
  if (Checksum(bytes.data(), bytes.size()) == written) return absl::OkStatus();
  const absl::Status damaged =
      Damaged(path(),
              absl::StrCat(bytes.size(), " bytes from offset ", offset,
                           " on are not what was written"),
              offset);
  return Reworded(damaged, about(damaged.message()));
}

void TensorFileReader::DropCache(const SafetensorsEntry& tensor) const {
  if (tensor.size_bytes > 0) file_.DropCache(tensor.offset, tensor.size_bytes);
}

absl::Status TensorFileReader::Verify() const {
  std::vector<std::byte> buffer;
  for (const SafetensorsEntry& tensor : header_.tensors) {
    for (int64_t block = 0; block < Blocks(tensor); ++block) {
      buffer.resize(static_cast<size_t>(BlockSize(tensor, block)));
      TERRACE_RETURN_IF_ERROR(ReadBlock(tensor, block, absl::MakeSpan(buffer)));
    }
  }
  return absl::OkStatus();
}

}  // namespace terrace
