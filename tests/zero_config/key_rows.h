// What becomes of each key of DeepSpeed's JSON, written out by hand: a row is
// a value at a path, and what reading it must do.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/zero_config.h"

namespace terrace::zero_config_test {

enum class Expect {
  kPlain,       // accepted, nothing to say about this key
  kSized,       // accepted, with the note that Terrace sizes it
  kIgnored,     // accepted, with the note that it has no effect
  kDeprecated,  // accepted, with the note that it is old
  kMeaning,     // accepted, with the note that it is not what it seems
  kInvalid,     // InvalidArgument
  kNotBuilt,    // Unimplemented
};

struct Row {
  const char* path;
  const char* value;  // JSON
  Expect expect;
  const char* text = "";    // in the note or the message
  const char* beside = "";  // members beside it: "\"a\": 1, "
  const char* top = "";     // members of the top level
};

absl::Span<const Row> ZeroRows();
absl::Span<const Row> OffloadRows();
absl::Span<const Row> TrainingRows();
absl::Span<const Row> TopRows();
absl::Span<const Row> OtherRows();
std::vector<Row> AllRows();

// {"train_micro_batch_size_per_gpu": 1, top, "a": {"b": {beside, "c": value}}}
std::string TextOf(const Row& row);

inline absl::StatusOr<ZeroConfigSettings> Read(
    const std::string& text, const ZeroConfigCaller& caller = {}) {
  return ReadZeroConfig(text, caller);
}

// With a micro-batch, which every text needs.
inline absl::StatusOr<ZeroConfigSettings> ReadMembers(
    const std::string& members, const ZeroConfigCaller& caller = {}) {
  return Read("{\"train_micro_batch_size_per_gpu\": 1, " + members + "}",
              caller);
}

}  // namespace terrace::zero_config_test
