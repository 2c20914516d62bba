#include "checkpoint/weight_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/io_fault.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "checkpoint/json_bounds.h"
#include "checkpoint/manifest.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/memory.h"
#include "checkpoint/safetensors.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr char kUsualIndex[] = "model.safetensors.index.json";
constexpr char kUsualFile[] = "model.safetensors";

absl::Status Refused(const std::string& path, absl::string_view what,
                     int64_t offset = IoFault::kNoOffset) {
  return WithIoFault(absl::InvalidArgumentError(absl::StrCat(path, ": ", what)),
                     {.path = path, .offset = offset});
}

// As stat(2): a link counts as what it leads to.
absl::StatusOr<mode_t> ModeOf(const std::string& path) {
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) {
    return ErrnoError(path, "cannot be opened", errno);
  }
  return found.st_mode;
}

absl::StatusOr<std::string> ReadText(const SourceFile& file, int64_t offset,
                                     int64_t size_bytes) {
  std::string text(static_cast<size_t>(size_bytes), '\0');
  TERRACE_RETURN_IF_ERROR(file.Read(
      offset, {reinterpret_cast<std::byte*>(text.data()), text.size()}));
  return text;
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const SourceFile& file) {
  const int64_t size_bytes = file.size_bytes();
  const auto refused = [&](absl::string_view what) {
    return Refused(file.path(), absl::StrCat("is no safetensors file: ", what),
                   0);
  };
  const auto cut = [&](absl::string_view what) {
    return Damaged(file.path(), absl::StrCat("is cut: ", what), size_bytes);
  };
  if (size_bytes < kSafetensorsLengthBytes) {
    return cut(absl::StrCat("it has ", size_bytes,
                            " bytes, and its header begins with ",
                            kSafetensorsLengthBytes));
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string start,
                           ReadText(file, 0, kSafetensorsLengthBytes));
  uint64_t length = 0;
  for (size_t i = start.size(); i > 0; --i) {
    length = length << 8 | static_cast<unsigned char>(start[i - 1]);
  }
  if (length > static_cast<uint64_t>(kLongestSafetensorsHeader)) {
    return refused(absl::StrCat("its header would have ", length,
                                " bytes, and may have ",
                                kLongestSafetensorsHeader));
  }
  if (static_cast<int64_t>(length) > size_bytes - kSafetensorsLengthBytes) {
    return cut(absl::StrCat("its header has ", length, " bytes from offset ",
                            kSafetensorsLengthBytes, " on, and the file ",
                            size_bytes, " in all"));
  }
  TERRACE_ASSIGN_OR_RETURN(
      const std::string text,
      ReadText(file, kSafetensorsLengthBytes, static_cast<int64_t>(length)));
  auto header = ParseSafetensorsHeader(text);
  if (!header.ok()) return refused(header.status().message());
  if (size_bytes == header->file_bytes) return header;
  for (const SafetensorsEntry& tensor : header->tensors) {
    if (tensor.offset + tensor.size_bytes <= size_bytes) continue;
    return Damaged(file.path(),
                   absl::StrCat("has ", size_bytes, " bytes of ",
                                header->file_bytes, ": tensor '", tensor.name,
                                "', ", tensor.size_bytes, " bytes from offset ",
                                tensor.offset, " on, is not there whole"),
                   size_bytes);
  }
  return Refused(file.path(),
                 absl::StrCat("has ", size_bytes,
                              " bytes, and its header is "
                              "of ",
                              header->file_bytes),
                 header->file_bytes);
}

absl::StatusOr<WeightFiles::Index> IndexIn(const SourceFile& file) {
  const std::string& path = file.path();
  const int64_t size_bytes = file.size_bytes();
  const auto refused = [&](absl::string_view what) {
    return Refused(path, absl::StrCat("is no index of weights: ", what));
  };
  if (size_bytes > kLongestSafetensorsHeader) {
    return refused(absl::StrCat("it has ", size_bytes, " bytes, and may have ",
                                kLongestSafetensorsHeader));
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string text,
                           ReadText(file, 0, size_bytes));
  const absl::Status bounds = CheckJsonBounds(text);
  if (!bounds.ok()) return refused(bounds.message());
  const auto json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object()) {
    return refused("it has no object weight_map");
  }
  WeightFiles::Index files;
  for (const auto& [tensor, value] : json["weight_map"].items()) {
    const std::string name =
        value.is_string() ? value.get<std::string>() : std::string();
    if (name.empty() || name == "." || name == ".." ||
        name.find_first_of(std::string("/\0", 2)) != std::string::npos) {
      const std::string shown =
          value.is_string() ? absl::StrCat("\"", name.substr(0, 64), "\"")
                            : absl::StrCat("(", value.type_name(), ")");
      return refused(absl::StrCat("tensor '", tensor, "' is in ", shown,
                                  ", which is no name of a file beside it"));
    }
    files[tensor] = name;
  }
  return files;
}

// Those of the folder that end as indices do, sorted.
absl::StatusOr<std::vector<std::string>> IndicesIn(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (absl::EndsWith(name, kIndexSuffix)) found.push_back(name);
  }
  if (error) return ErrnoError(folder, "cannot be listed", error.value());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

absl::StatusOr<WeightFiles> WeightFiles::Open(const std::string& path) {
  return WithinMemory(path, [&] { return OpenPath(path); });
}

absl::StatusOr<WeightFiles> WeightFiles::OpenPath(const std::string& path) {
  WeightFiles opened;
  TERRACE_ASSIGN_OR_RETURN(const mode_t mode, ModeOf(path));
  if (S_ISDIR(mode)) {
    TERRACE_RETURN_IF_ERROR(opened.OpenFolder(path));
  } else {
    TERRACE_ASSIGN_OR_RETURN(SourceFile file, SourceFile::Open(path));
    TERRACE_RETURN_IF_ERROR(opened.OpenOnly(std::move(file)));
  }
  return opened;
}

absl::StatusOr<WeightFiles::Index> WeightFiles::ReadIndex(
    const std::string& path) {
  return WithinMemory(path, [&]() -> absl::StatusOr<Index> {
    TERRACE_ASSIGN_OR_RETURN(const SourceFile file, SourceFile::Open(path));
    return IndexIn(file);
  });
}

absl::Status WeightFiles::OpenOnly(SourceFile file) {
  TERRACE_ASSIGN_OR_RETURN(tensors_, Add(std::move(file)));
  return absl::OkStatus();
}

absl::StatusOr<WeightFiles::Tensors> WeightFiles::Add(SourceFile file) {
  TERRACE_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(file));
  Tensors tensors;
  for (SafetensorsEntry& entry : header.tensors) {
    tensors[std::move(entry.name)] = {.dtype = entry.dtype,
                                      .shape = std::move(entry.shape),
                                      .size_bytes = entry.size_bytes,
                                      .file = files_.size(),
                                      .offset = entry.offset};
  }
  files_.push_back(std::move(file));
  return tensors;
}

absl::Status WeightFiles::OpenFolder(const std::string& folder) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<std::string> indices,
                           IndicesIn(folder));
  const bool has_usual =
      std::find(indices.begin(), indices.end(), kUsualIndex) != indices.end();
  if (!has_usual && indices.size() > 1) {
    return Refused(folder, absl::StrCat("has several indices of weights: ",
                                        absl::StrJoin(indices, ", ")));
  }
  if (!indices.empty()) {
    const std::string& name = has_usual ? kUsualIndex : indices.front();
    return OpenIndex(folder, name);
  }
  auto file = SourceFile::Open(absl::StrCat(folder, "/", kUsualFile));
  if (absl::IsNotFound(file.status())) return OpenCheckpoint(folder);
  if (!file.ok()) return file.status();
  return OpenOnly(*std::move(file));
}

absl::Status WeightFiles::OpenCheckpoint(const std::string& folder) {
  TERRACE_ASSIGN_OR_RETURN(const File opened, File::OpenDirectory(folder));
  const auto text = ReadManifestText(opened);
  if (absl::IsNotFound(text.status())) {
    return ErrnoError(
        folder,
        absl::StrCat("the folder has none of an index *", kIndexSuffix, ", ",
                     kUsualFile, " and ", kManifestName),
        ENOENT);
  }
  if (!text.ok()) return text.status();
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, ParseManifest(*text, path));
  const std::string name =
      manifest.parameters ? manifest.parameters->name : std::string();
  if (!IsCheckpointFileName(name)) {
    return Damaged(path, absl::StrCat("names '", name,
                                      "', which is no file of parameters"));
  }
  TERRACE_ASSIGN_OR_RETURN(SourceFile file,
                           SourceFile::Open(absl::StrCat(folder, "/", name)));
  return OpenOnly(std::move(file));
}

absl::Status WeightFiles::OpenIndex(const std::string& folder,
                                    const std::string& name) {
  TERRACE_ASSIGN_OR_RETURN(File opened, File::OpenDirectory(folder));
  folder_ = std::make_unique<const File>(std::move(opened));
  TERRACE_ASSIGN_OR_RETURN(
      const SourceFile index_file,
      SourceFile::Open(*folder_, name, /*stays_open=*/true));
  TERRACE_ASSIGN_OR_RETURN(const Index index, IndexIn(index_file));
  const size_t most_open = SourceFile::MostOpen();
  std::map<std::string, Tensors> by_file;
  std::vector<std::string> absent;
  for (const auto& [tensor, file] : index) {
    auto known = by_file.find(file);
    if (known == by_file.end()) {
      TERRACE_ASSIGN_OR_RETURN(
          SourceFile source,
          SourceFile::Open(*folder_, file, by_file.size() < most_open));
      TERRACE_ASSIGN_OR_RETURN(Tensors tensors, Add(std::move(source)));
      known = by_file.emplace(file, std::move(tensors)).first;
    }
    const auto found = known->second.find(tensor);
    if (found == known->second.end()) {
      absent.push_back(absl::StrCat("'", tensor, "' in ", file));
    } else {
      tensors_[tensor] = found->second;
    }
  }
  if (absent.empty()) return absl::OkStatus();
  return Refused(absl::StrCat(folder, "/", name),
                 absl::StrCat("names tensors that its files have not: ",
                              absl::StrJoin(absent, ", ")));
}

absl::Status WeightFiles::Read(const Tensor& tensor, int64_t offset,
                               absl::Span<std::byte> bytes) const {
  const auto count = static_cast<int64_t>(bytes.size());
  TERRACE_CHECK(offset >= 0 && count <= tensor.size_bytes - offset);
  const SourceFile& file = files_[tensor.file];
  TERRACE_RETURN_IF_ERROR(file.Read(tensor.offset + offset, bytes));
  if (tensor.dtype != StoredDType(StoredDType::kBool)) return absl::OkStatus();
  const auto wrong = std::find_if(
      bytes.begin(), bytes.end(),
      [](std::byte byte) { return std::to_integer<int>(byte) > 1; });
  if (wrong == bytes.end()) return absl::OkStatus();
  const int64_t at = tensor.offset + offset + (wrong - bytes.begin());
  return Damaged(file.path(),
                 absl::StrCat("the byte at offset ", at, " is ",
                              std::to_integer<int>(*wrong),
                              ", and that of a BOOL is 0 or 1"),
                 at);
}

}  // namespace terrace
