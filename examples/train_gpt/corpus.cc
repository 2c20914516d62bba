#include "examples/train_gpt/corpus.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace train_gpt {
namespace {

namespace fs = std::filesystem;

bool HoldsTokens(const std::string& path) {
  return absl::EndsWith(path, ".bin");
}

// Every regular file below `folder`, by path.
absl::StatusOr<std::vector<std::string>> FilesBelow(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  while (!error && it != end) {
    const bool hidden = absl::StartsWith(it->path().filename().string(), ".");
    std::error_code gone;  // a file that vanished is no file
    if (hidden) {
      if (it->is_directory(gone)) it.disable_recursion_pending();
    } else if (it->is_regular_file(gone)) {
      paths.push_back(it->path().string());
    }
    it.increment(error);
  }
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data: cannot list ", folder.string(), ": ", error.message()));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// 0, or the length of the header of the token files of llm.c.
int64_t HeaderBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint32_t magic = 0;
  file.read(reinterpret_cast<char*>(&magic), sizeof magic);
  return file && magic == 20240520 ? 1024 : 0;
}

// A well-mixed 64-bit hash (the finisher of SplitMix64).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

absl::StatusOr<Corpus> Corpus::Open(const std::string& path, int64_t vocab,
                                    int64_t least_tokens) {
  Corpus corpus;
  corpus.path_ = path;
  corpus.vocab_ = vocab;
  std::error_code error;
  const fs::file_status kind = fs::status(path, error);
  std::vector<std::string> paths;
  if (fs::is_directory(kind)) {
    auto below = FilesBelow(path);
    if (!below.ok()) return below.status();
    paths = *std::move(below);
  } else if (fs::is_regular_file(kind)) {
    paths.push_back(path);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: ", path, ": ",
                     error && fs::exists(kind) ? error.message()
                     : fs::exists(kind)        ? "not a file or a folder"
                                               : "no such file or folder"));
  }
  if (!paths.empty() && HoldsTokens(paths.front())) corpus.token_bytes_ = 2;
  for (const std::string& file : paths) {
    const auto size_bytes = static_cast<int64_t>(fs::file_size(file, error));
    absl::Status status =
        error ? absl::InvalidArgumentError(absl::StrCat(
                    "--data: cannot read ", file, ": ", error.message()))
              : corpus.Add(file, size_bytes);
    if (!status.ok()) return status;
  }
  if (corpus.size_ < least_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data: ", path, corpus.size_ == 0 ? " is empty" : " is too short",
        ": ", corpus.size_, " tokens, and a row needs ", least_tokens));
  }
  if (corpus.token_bytes_ == 1 && vocab < 256) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--vocab ", vocab, " is too small: text has 256 different bytes"));
  }
  return corpus;
}

absl::Status Corpus::Add(const std::string& path, int64_t size_bytes) {
  if (access(path.c_str(), R_OK) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: cannot read ", path, ": ", std::strerror(errno)));
  }
  if (HoldsTokens(path) != (token_bytes_ == 2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--data: ", path_, " mixes .bin token files and text: ", path));
  }
  const int64_t header_bytes = token_bytes_ == 2 ? HeaderBytes(path) : 0;
  if ((size_bytes - header_bytes) % token_bytes_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: ", path,
                     " is no row of uint16 tokens: ", size_bytes, " bytes"));
  }
  const int64_t count = (size_bytes - header_bytes) / token_bytes_;
  if (count <= 0) return absl::OkStatus();
  files_.push_back({path, size_, count, header_bytes});
  size_ += count;
  return absl::OkStatus();
}

absl::Status Corpus::Read(int64_t first, absl::Span<int64_t> tokens) const {
  auto file = std::upper_bound(
      files_.begin(), files_.end(), first,
      [](int64_t token, const File& f) { return token < f.first_token; });
  if (first < 0 || file == files_.begin() ||
      first + static_cast<int64_t>(tokens.size()) > size_) {
    return absl::OutOfRangeError(absl::StrCat("tokens from ", first, ", ",
                                              tokens.size(), " of ", size_));
  }
  for (--file; !tokens.empty(); ++file) {
    const int64_t skip = first - file->first_token;
    const auto count = static_cast<size_t>(
        std::min<int64_t>(file->token_count - skip, tokens.size()));
    absl::Status status = ReadFile(*file, skip, tokens.subspan(0, count));
    if (!status.ok()) return status;
    tokens.remove_prefix(count);
    first += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status Corpus::ReadFile(const File& file, int64_t first,
                              absl::Span<int64_t> tokens) const {
  std::vector<uint8_t> bytes(tokens.size() * token_bytes_);
  std::ifstream stream(file.path, std::ios::binary);
  stream.seekg(file.header_bytes + first * token_bytes_);
  stream.read(reinterpret_cast<char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
  if (!stream) {
    return absl::UnavailableError(absl::StrCat(
        "--data: cannot read ", bytes.size(), " bytes of ", file.path,
        " from token ", first, " on; has the file changed?"));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] =
        token_bytes_ == 1 ? bytes[i] : bytes[2 * i] | bytes[2 * i + 1] << 8;
    if (tokens[i] >= vocab_) {
      return absl::InvalidArgumentError(
          absl::StrCat("--data: ", file.path, " holds token ", tokens[i],
                       ", and --vocab is ", vocab_));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadBatch(const Corpus& corpus, uint64_t seed, int64_t step,
                       int64_t micro_batch, int64_t rows, int64_t seq,
                       std::vector<int64_t>* tokens) {
  const int64_t length = seq + 1;
  tokens->resize(rows * length);
  const auto windows = static_cast<uint64_t>(corpus.size() - seq);
  for (int64_t row = 0; row < rows; ++row) {
    uint64_t draw = Mix(seed);
    for (const int64_t part : {step, micro_batch, row}) draw = Mix(draw ^ part);
    const absl::Status status =
        corpus.Read(static_cast<int64_t>(draw % windows),
                    absl::MakeSpan(tokens->data() + row * length, length));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace train_gpt
