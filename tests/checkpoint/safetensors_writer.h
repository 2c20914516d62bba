// Safetensors files as others write them: by the letter of the format's
// description, with nothing of Terrace's.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace terrace {

// A header and what follows it, whatever they are.
inline std::string SafetensorsFile(const std::string& header,
                                   const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xff);
  }
  return bytes + header + data;
}

// A file's tensors, in the order in which they are added.
class SafetensorsWriter {
 public:
  void Add(const std::string& name, const std::string& dtype,
           const std::vector<int64_t>& shape, const std::string& bytes) {
    std::string sizes;
    for (const int64_t size : shape) {
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    }
    header_ += (header_.empty() ? "\"" : ",\"") + name + "\":{\"dtype\":\"" +
               dtype + "\",\"shape\":[" + sizes + "],\"data_offsets\":[" +
               std::to_string(data_.size()) + "," +
               std::to_string(data_.size() + bytes.size()) + "]}";
    data_ += bytes;
  }
  template <typename Value>
  void Add(const std::string& name, const std::string& dtype,
           const std::vector<int64_t>& shape,
           const std::vector<Value>& values) {
    std::string bytes(values.size() * sizeof(Value), '\0');
    if (!values.empty()) {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    Add(name, dtype, shape, bytes);
  }

  std::string Bytes() const {
    return SafetensorsFile("{" + header_ + "}", data_);
  }

 private:
  std::string header_, data_;
};

}  // namespace terrace
