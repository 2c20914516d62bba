#include "checkpoint/json_bounds.h"

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kDeepest = 8;
// A tensor's entry has three objects and lists and four keys in 50 bytes.
constexpr size_t kBytesOfContainer = 14;
constexpr size_t kBytesOfKey = 10;
constexpr size_t kOfAnything = 4096;  // bytes that may be more densely filled

// Stops at the first thing that is out of bounds.
class BoundsReader final : public nlohmann::json_sax<Json> {
 public:
  explicit BoundsReader(size_t size_bytes)
      : most_containers_((size_bytes + kOfAnything) / kBytesOfContainer),
        most_keys_((size_bytes + kOfAnything) / kBytesOfKey) {}

  const std::string& fault() const { return fault_; }

  bool start_object(size_t /*count*/) override { return Begin(); }
  bool start_array(size_t /*count*/) override { return Begin(); }
  bool key(std::string& name) override {
    if (++keys_ > most_keys_) {
      return Stop(absl::StrCat("it has more than ", most_keys_,
                               " keys, too many for its size"));
    }
    return open_.back().insert(name).second ||
           Stop(absl::StrCat("an object has the key '", name.substr(0, 64),
                             "' twice"));
  }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(int64_t /*value*/) override { return true; }
  bool number_unsigned(uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override {
    return true;
  }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(Json::binary_t& /*value*/) override { return true; }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    return false;
  }

 private:
  bool Begin() {
    open_.emplace_back();
    if (open_.size() > kDeepest) return Stop("it is nested too deep");
    if (++containers_ <= most_containers_) return true;
    return Stop(absl::StrCat("it has more than ", most_containers_,
                             " objects and lists, too many for its size"));
  }
  bool End() {
    open_.pop_back();
    return true;
  }
  bool Stop(std::string fault) {
    fault_ = std::move(fault);
    return false;
  }

  const size_t most_containers_;
  const size_t most_keys_;
  size_t containers_ = 0;
  size_t keys_ = 0;
  std::vector<std::unordered_set<std::string>> open_;  // keys; none of lists
  std::string fault_;
};

}  // namespace

absl::Status CheckJsonBounds(absl::string_view json) {
  BoundsReader reader(json.size());
  Json::sax_parse(json.begin(), json.end(), &reader);
  if (reader.fault().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(reader.fault());
}

}  // namespace terrace
