#include "runtime/checkpoint/json_keys.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// Stops at the first key that its object has already.
class KeyReader final : public nlohmann::json_sax<Json> {
 public:
  bool has_twice() const { return has_twice_; }
  const std::string& twice() const { return twice_; }

  bool start_object(size_t /*count*/) override {
    objects_.emplace_back();
    return true;
  }
  bool key(std::string& name) override {
    has_twice_ = !objects_.back().insert(name).second;
    if (has_twice_) twice_ = name;
    return !has_twice_;
  }
  bool end_object() override {
    objects_.pop_back();
    return true;
  }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(int64_t /*value*/) override { return true; }
  bool number_unsigned(uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return true;
  }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(Json::binary_t& /*value*/) override { return true; }
  bool start_array(size_t /*count*/) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    return false;
  }

 private:
  std::vector<std::unordered_set<std::string>> objects_;  // open ones' keys
  bool has_twice_ = false;
  std::string twice_;
};

}  // namespace

absl::Status CheckKeysDiffer(absl::string_view json) {
  KeyReader reader;
  Json::sax_parse(json.begin(), json.end(), &reader);
  if (!reader.has_twice()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "an object has the key '", reader.twice().substr(0, 64), "' twice"));
}

}  // namespace terrace
