// The files of a checkpoint as others read them: by the letter of the format's
// description, with nothing of Terrace's.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The one file whose name begins with `prefix`.
inline std::string FileOf(const TemporaryDirectory& directory,
                          const std::string& prefix) {
  for (const std::string& name : directory.Entries()) {
    if (name.rfind(prefix, 0) == 0) return directory.path() + "/" + name;
  }
  return "";
}

struct ForeignTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// By the letter of the format's description; nothing of Terrace's.
inline std::map<std::string, ForeignTensor> ReadSafetensors(
    const std::string& file) {
  uint64_t length = 0;
  EXPECT_GE(file.size(), 8u);
  for (size_t i = 8; i-- > 0;) {
    length = length * 256 + static_cast<unsigned char>(file[i]);
  }
  EXPECT_EQ(length % 8, 0u);
  EXPECT_LE(8 + length, file.size());
  EXPECT_EQ(file[8], '{');
  std::map<std::string, ForeignTensor> tensors;
  const std::string data = file.substr(8 + length);
  size_t covered = 0;
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    const size_t begin = entry["data_offsets"][0];
    const size_t end = entry["data_offsets"][1];
    EXPECT_LE(begin, end);
    EXPECT_LE(end, data.size());
    covered += end - begin;
    tensors[name] = {entry["dtype"], entry["shape"],
                     data.substr(begin, end - begin)};
  }
  EXPECT_EQ(covered, data.size()) << "a gap or an overlap";
  return tensors;
}

}  // namespace terrace
